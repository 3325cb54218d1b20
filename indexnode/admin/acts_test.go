package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
)

// A request that says what cannot be is refused, by the field that is at fault; the largest
// one that may be is not.
func TestWhatIsRefused(t *testing.T) {
	s, _ := openNode(t)
	ctx := t.Context()
	gone, goes := context.WithCancel(ctx)
	goes()
	name := strings.Repeat("x", millrace.MaxEntityBytes)
	typ, id := strings.Repeat("x", millrace.MaxTypeBytes), strings.Repeat("x", millrace.MaxIDBytes)
	timeline := func(req *nodev1.ReadTimelineRequest) error {
		req.Store = !req.Cache || req.Store
		return s.ReadTimeline(req, &sent[nodev1.ReadTimelineResponse]{ctx: ctx})
	}
	find := func(ctx context.Context, n int, w *nodev1.WantedRecord) error {
		req := &nodev1.FindRecordsRequest{}
		for range n {
			req.Wanted = append(req.Wanted, w)
		}
		return s.FindRecords(req, &sent[nodev1.FindRecordsResponse]{ctx: ctx})
	}
	pause := func(ms int64) error {
		_, err := s.PauseIngest(ctx, &nodev1.PauseIngestRequest{ForMs: ms})
		return err
	}
	drop := func(req *nodev1.DropCacheRequest) error { _, err := s.DropCache(ctx, req); return err }
	quarantine := func(p int32, why string) error {
		_, err := s.QuarantinePartition(ctx, &nodev1.QuarantinePartitionRequest{Partition: p, Why: why})
		return err
	}
	release := func(p int32) error {
		_, err := s.ReleasePartition(ctx, &nodev1.ReleasePartitionRequest{Partition: p})
		return err
	}
	replay := func(n int) error {
		_, err := s.ReplayDeadLetters(ctx, &nodev1.ReplayDeadLettersRequest{Offsets: make([]int64, n)})
		return err
	}
	bury := func(n int) error {
		_, err := s.DeleteRecords(ctx, &nodev1.DeleteRecordsRequest{Tombstones: make([]*nodev1.Tombstone, n)})
		return err
	}
	within, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	away := func(err error) error { // Kafka is away, so what is not refused waits in vain
		if e, is := errors.AsType[*millrace.Error](rpcerr.FromStatus(err)); is && e.Field != "kafka" && e.Reason != millrace.ReasonDeadline {
			return err
		}
		return nil
	}
	first, last, none, below := int32(0), int32(partition.Count-1), int32(partition.Count), int32(-1)
	const invalid = string(millrace.ReasonInvalid)
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"a timeline of nobody":        {timeline(&nodev1.ReadTimelineRequest{}), invalid + " entity"},
		"of a name too long":          {timeline(&nodev1.ReadTimelineRequest{Entity: name + "x"}), invalid + " entity"},
		"of a long name":              {timeline(&nodev1.ReadTimelineRequest{Entity: name}), ""},
		"of a type too long":          {timeline(&nodev1.ReadTimelineRequest{Entity: "e", Type: typ + "x"}), invalid + " type"},
		"of a long type":              {timeline(&nodev1.ReadTimelineRequest{Entity: "e", Type: typ}), ""},
		"of less than none":           {timeline(&nodev1.ReadTimelineRequest{Entity: "e", Limit: -1}), invalid + " limit"},
		"of too many":                 {timeline(&nodev1.ReadTimelineRequest{Entity: "e", Limit: maxLimit + 1}), invalid + " limit"},
		"of many":                     {timeline(&nodev1.ReadTimelineRequest{Entity: "e", Limit: maxLimit}), ""},
		"of no time":                  {timeline(&nodev1.ReadTimelineRequest{Entity: "e", FromMs: 7, ToMs: 7}), invalid + " until"},
		"of a time":                   {timeline(&nodev1.ReadTimelineRequest{Entity: "e", FromMs: 7, ToMs: 8}), ""},
		"of neither":                  {s.ReadTimeline(&nodev1.ReadTimelineRequest{Entity: "e"}, &sent[nodev1.ReadTimelineResponse]{ctx: ctx}), invalid + " from"},
		"of the cache":                {timeline(&nodev1.ReadTimelineRequest{Entity: "e", Cache: true}), ""},
		"of who has gone":             {s.ReadTimeline(&nodev1.ReadTimelineRequest{Entity: "e", Store: true}, &sent[nodev1.ReadTimelineResponse]{ctx: gone}), context.Canceled.Error()},
		"no records":                  {find(ctx, 0, nil), invalid + " id"},
		"too many records":            {find(ctx, maxWanted+1, &nodev1.WantedRecord{Id: "a", Entity: "e"}), invalid + " id"},
		"many records":                {find(ctx, maxWanted, &nodev1.WantedRecord{Id: "a", Entity: "e"}), ""},
		"a record without an id":      {find(ctx, 1, &nodev1.WantedRecord{Entity: "e"}), invalid + " id"},
		"of an id too long":           {find(ctx, 1, &nodev1.WantedRecord{Id: id + "x"}), invalid + " id"},
		"of a long id":                {find(ctx, 1, &nodev1.WantedRecord{Id: id}), ""},
		"a record of a name too long": {find(ctx, 1, &nodev1.WantedRecord{Id: "a", Entity: name + "x"}), invalid + " entity"},
		"a record for who has gone":   {find(gone, 1, &nodev1.WantedRecord{Id: "a"}), context.Canceled.Error()},
		"a state of a type too long":  {s.ReadState(&nodev1.ReadStateRequest{Type: typ + "x"}, &sent[nodev1.ReadStateResponse]{ctx: ctx}), invalid + " type"},
		"a state of a long type":      {s.ReadState(&nodev1.ReadStateRequest{Type: typ}, &sent[nodev1.ReadStateResponse]{ctx: ctx}), ""},
		"a history of nobody":         {s.ReadHistory(&nodev1.ReadHistoryRequest{}, &sent[nodev1.ReadHistoryResponse]{ctx: ctx}), invalid + " entity"},
		"a history for who has gone":  {s.ReadHistory(&nodev1.ReadHistoryRequest{Entity: "e"}, &sent[nodev1.ReadHistoryResponse]{ctx: gone}), context.Canceled.Error()},
		"letters for who has gone":    {func() error { _, err := s.CountDeadLetters(gone, &nodev1.CountDeadLettersRequest{}); return err }(), context.Canceled.Error()},
		"a replay for who has gone": {func() error {
			_, err := s.ReplayDeadLetters(gone, &nodev1.ReplayDeadLettersRequest{Offsets: []int64{1}})
			return err
		}(), context.Canceled.Error()},
		"no letters":                       {replay(0), invalid + " OFFSET"},
		"too many letters":                 {replay(maxLetters + 1), invalid + " OFFSET"},
		"no deletions":                     {bury(0), invalid + " id"},
		"too many deletions":               {bury(maxWanted + 1), invalid + " id"},
		"no pause":                         {pause(0), invalid + " for"},
		"a pause too long":                 {pause(maxPause.Milliseconds() + 1), invalid + " for"},
		"a long pause":                     {pause(maxPause.Milliseconds()), ""},
		"a short pause":                    {pause(1), ""},
		"nothing of the cache":             {drop(&nodev1.DropCacheRequest{}), invalid + " entity"},
		"two things of the cache":          {drop(&nodev1.DropCacheRequest{Entity: "e", All: true}), invalid + " entity"},
		"two other things":                 {drop(&nodev1.DropCacheRequest{Partition: &first, All: true}), invalid + " entity"},
		"a name too long, of the cache":    {drop(&nodev1.DropCacheRequest{Entity: name + "x"}), invalid + " entity"},
		"the first partition of the cache": {drop(&nodev1.DropCacheRequest{Partition: &first}), ""},
		"the last partition of the cache":  {drop(&nodev1.DropCacheRequest{Partition: &last}), ""},
		"no partition of the cache":        {drop(&nodev1.DropCacheRequest{Partition: &none}), invalid + " partition"},
		"a negative one":                   {drop(&nodev1.DropCacheRequest{Partition: &below}), invalid + " partition"},
		"a quarantine of none":             {quarantine(none, "why"), invalid + " partition"},
		"a quarantine for nothing":         {quarantine(1, ""), invalid + " why"},
		"a quarantine for too much":        {quarantine(1, strings.Repeat("x", maxWhy+1)), invalid + " why"},
		"a quarantine for much":            {quarantine(1, strings.Repeat("x", maxWhy)), ""},
		"a quarantine for two lines":       {quarantine(1, "a\nb"), invalid + " why"},
		"a release of none":                {release(none), invalid + " partition"},
		"a release of what is ready":       {release(1), invalid + " partition"},
	} {
		if got := refusal(c.err); got != c.want && !(strings.Contains(c.want, "cancel") && strings.Contains(got, c.want)) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	s.kafkaWait = time.Millisecond
	for what, err := range map[string]error{
		"as many letters": func() error {
			_, err := s.ReplayDeadLetters(within, &nodev1.ReplayDeadLettersRequest{Offsets: make([]int64, maxLetters)})
			return err
		}(),
		"as many deletions": func() error {
			_, err := s.DeleteRecords(within, &nodev1.DeleteRecordsRequest{Tombstones: make([]*nodev1.Tombstone, maxWanted)})
			return err
		}(),
	} {
		if err := away(err); err != nil {
			t.Errorf("%s as may be: %v", what, err)
		}
	}
	if len(s.turn) != 0 {
		t.Errorf("%d calls still read", len(s.turn))
	}
}

// An operator pauses and resumes ingest, and is told before what that would do.
func TestIngestIsPausedAndResumed(t *testing.T) {
	s, all := openNode(t)
	acts := audited(t, s)
	if _, err := s.ResumeIngest(t.Context(), &nodev1.ResumeIngestRequest{}); err != nil {
		t.Fatal(err)
	}
	pause := func(minutes int64, apply bool) *nodev1.PauseIngestResponse {
		t.Helper()
		began := time.Now()
		resp, err := s.PauseIngest(t.Context(), &nodev1.PauseIngestRequest{ForMs: minutes * time.Minute.Milliseconds(), Apply: apply})
		if err != nil {
			t.Fatal(err)
		}
		lasts := time.Duration(minutes) * time.Minute
		if until := time.UnixMilli(resp.UntilMs); resp.Partitions != partition.Count || until.Before(began.Add(lasts-time.Millisecond)) || until.After(time.Now().Add(lasts)) {
			t.Errorf("a pause of %d min is answered with %v", minutes, resp)
		}
		return resp
	}
	if pause(5, false); !all.Paused(time.Now()).IsZero() || len(acts()) > 0 {
		t.Error("it is done before it is applied")
	}
	first := pause(5, true)
	if got := all.Paused(time.Now()).UnixMilli(); got != first.UntilMs || first.WasUntilMs != 0 {
		t.Errorf("paused until %d; told was %v", got, first)
	}
	text := func(ms int64) string { return "paused until " + time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }
	says(t, acts(), 1, "pause ingest", "node test", "not paused", text(first.UntilMs))
	second := pause(7, true)
	if second.WasUntilMs != first.UntilMs {
		t.Errorf("it was paused until %d, not %d", first.UntilMs, second.WasUntilMs)
	}
	says(t, acts(), 2, "pause ingest", "node test", text(first.UntilMs), text(second.UntilMs))
	for i, apply := range []bool{false, true} {
		resp, err := s.ResumeIngest(t.Context(), &nodev1.ResumeIngestRequest{Apply: apply})
		if err != nil || resp.WasUntilMs != second.UntilMs || all.Paused(time.Now()).IsZero() != apply || len(acts()) != 2+i {
			t.Errorf("resumed (%t): %v, %v", apply, resp, err)
		}
	}
	says(t, acts(), 3, "resume ingest", "node test", text(second.UntilMs), "not paused")
	if err := s.cfg.Audit.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PauseIngest(t.Context(), &nodev1.PauseIngestRequest{ForMs: 1000, Apply: true}); err == nil {
		t.Error("it is paused, and nobody has written that down")
	}
	if _, err := s.ResumeIngest(t.Context(), &nodev1.ResumeIngestRequest{Apply: true}); err == nil {
		t.Error("it is resumed, and nobody has written that down")
	}
}

// An operator quarantines and releases a replica, and is told before where it is.
func TestAReplicaIsQuarantinedAndReleased(t *testing.T) {
	s, all := openNode(t)
	acts := audited(t, s)
	nodetest.Members(t, all, 2, 3)
	p := partition.Of("member:1")
	r := all.Of(p)
	at := fmt.Sprint(&nodev1.ReplicaAt{Partition: int32(p), State: "ready", Content: 3})
	on := fmt.Sprintf("partition %d of test", p)
	for i, apply := range []bool{false, true} {
		resp, err := s.QuarantinePartition(t.Context(), &nodev1.QuarantinePartitionRequest{Partition: int32(p), Why: "doubt", Apply: apply})
		if err != nil || fmt.Sprint(resp.At) != at || (r.State() == replica.Quarantined) != apply || len(acts()) != i {
			t.Errorf("quarantined (%t): %v, %v; it is %s", apply, resp, err, r.State())
		}
	}
	says(t, acts(), 1, "quarantine", on, "ready", "quarantined: doubt")
	why, _ := r.Why()
	if why.Reason != replica.ByOperator || !strings.Contains(why.Detail, "doubt (anybody)") {
		t.Errorf("it is quarantined for %v", why)
	}
	if _, err := s.QuarantinePartition(t.Context(), &nodev1.QuarantinePartitionRequest{Partition: int32(p), Why: "doubt"}); refusal(err) != "INVALID_ARGUMENT partition" {
		t.Errorf("twice: %v", err)
	}
	for i, apply := range []bool{false, true} {
		resp, err := s.ReleasePartition(t.Context(), &nodev1.ReleasePartitionRequest{Partition: int32(p), Apply: apply})
		now, _ := r.Why()
		if err != nil || resp.At.State != "quarantined" || resp.Detail != why.Detail || (now.Reason == replica.Differs) != apply || len(acts()) != 1+i {
			t.Errorf("released (%t): %v, %v; it is %v", apply, resp, err, now)
		}
	}
	says(t, acts(), 2, "release", on, "quarantined: "+why.Detail, "to be made anew")
}

// What is to be dropped of the cache is counted, and dropped if that is applied.
func TestTheCacheIsDropped(t *testing.T) {
	one, other := partition.Of("member:1"), partition.Of("member:2")
	p := int32(one)
	for what, c := range map[string]struct {
		req    *nodev1.DropCacheRequest
		on     string
		counts string
		stays  int
	}{
		"an entity":   {&nodev1.DropCacheRequest{Entity: "member:1"}, `entity "member:1" in the cache of test`, "1 timelines, 2 known to be empty, features of 2", 5},
		"a partition": {&nodev1.DropCacheRequest{Partition: &p}, fmt.Sprintf("partition %d in the cache of test", p), "1 timelines, 2 known to be empty, features of 2", 5},
		"all":         {&nodev1.DropCacheRequest{All: true}, "everything in the cache of test", "2 timelines, 4 known to be empty, features of 4", 0},
	} {
		s, all, l := openCached(t)
		acts := audited(t, s)
		nodetest.Members(t, all, 3, 1)
		var keys []millrace.Timeline
		warming := l.Warming(s.cfg.Cache.Warm())
		for _, e := range []millrace.Entity{"member:1", "member:2"} {
			for _, typ := range []millrace.ContentType{"post", "like", "share", cache.Features, cache.Objects} {
				keys = append(keys, millrace.Timeline{Entity: e, Type: typ})
				if typ == "post" {
					warming.Warm(map[millrace.Entity]millrace.Partition{"member:1": one, "member:2": other}[e], keys[len(keys)-1])
				} else {
					s.cfg.Cache.Warm().Put(keys[len(keys)-1], cache.Empty)
				}
			}
		}
		warming.Release()
		cached := func() (n int) {
			reader := s.cfg.Cache.Reader()
			defer reader.Leave()
			for _, k := range keys {
				if reader.Peek(k) != nil {
					n++
				}
			}
			return n
		}
		for _, apply := range []bool{false, true} {
			c.req.Apply = apply
			resp, err := s.DropCache(t.Context(), c.req)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%d timelines, %d known to be empty, features of %d", resp.Timelines, resp.Empty, resp.Features); got != c.counts {
				t.Errorf("%s: %s, want %s", what, got, c.counts)
			}
			if want := map[bool]int{false: 10, true: c.stays}[apply]; cached() != want || !apply && len(acts()) > 0 {
				t.Errorf("%s (applied: %t): %d of 10 keys are cached, not %d", what, apply, cached(), want)
			}
		}
		says(t, acts(), 1, "drop cache", c.on, c.counts, "nothing")
	}
}

// What the cache does not name is dropped with its entity, and the list of types that the
// store gives is not written to.
func TestLongNamesAreDroppedWithTheirEntity(t *testing.T) {
	s, all, l := openCached(t)
	hold(t, s, all, l, []held{{typ: "a", id: "a", inStore: true}, {typ: "b", id: "b", inStore: true}, {typ: "c", id: "c", inStore: true}, {typ: "d", id: "d", inStore: true}, {typ: "e", id: "e", inStore: true}})
	long := millrace.Entity("member:" + strings.Repeat("x", 90))
	for _, typ := range []millrace.ContentType{"a", "b", "c", cache.Features, cache.Objects} {
		s.cfg.Cache.Warm().Put(millrace.Timeline{Entity: long, Type: typ}, cache.Empty)
	}
	if resp, err := s.DropCache(t.Context(), &nodev1.DropCacheRequest{Entity: string(long), Apply: true}); err != nil || resp.Empty > 0 {
		t.Fatal(resp, err)
	}
	reader := s.cfg.Cache.Reader()
	defer reader.Leave()
	for _, typ := range []millrace.ContentType{"a", "b", "c", cache.Features, cache.Objects} {
		if reader.Peek(millrace.Timeline{Entity: long, Type: typ}) != nil {
			t.Errorf("its %q is cached", typ)
		}
	}
	types, _ := s.cfg.Store.Types()
	if len(types)+2 > cap(types) {
		t.Fatal("the list has no room: the test shows nothing")
	}
	for _, typ := range types[len(types):cap(types)] {
		if typ != "" {
			t.Errorf("%q is written behind the types of the store, which others read", typ)
		}
	}
}
