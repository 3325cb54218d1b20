package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// base is about the time of records.
const base = 1_700_000_000_000

var here = partition.Of("member:1")

// held is a record of member:1, and where it is.
type held struct {
	typ, id          string
	at, version      int64
	object           string
	inStore, inCache bool
	size             int // of its text
}

func (h held) record(t *testing.T) millrace.Record {
	t.Helper()
	body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":%q,"actor":"member:1","verb":%q,"created_at":%d,"version":%d,"object":%q,"text":%q}`, h.id, h.typ, base+h.at, h.version, h.object, strings.Repeat("x", h.size)))
	if err != nil {
		t.Fatal(err)
	}
	e, err := schemas.Activity().Envelope(body)
	if err != nil {
		t.Fatal(err)
	}
	return e.Record
}

// hold brings records of member:1 to where they are said to be.
func hold(t *testing.T, s *Server, all *replica.Replicas, l *lookup.Lookup, records []held) {
	t.Helper()
	put := func(of func(held) (millrace.Record, bool)) {
		t.Helper()
		var b store.Batch
		for _, h := range records {
			if r, put := of(h); put {
				b.Put(here, millrace.Timeline{Entity: "member:1", Type: millrace.ContentType(h.typ)}, r)
			}
		}
		if _, err := s.cfg.Store.Apply(&b, nil); err != nil {
			t.Fatal(err)
		}
	}
	put(func(h held) (millrace.Record, bool) { return h.record(t), h.inCache })
	for _, h := range records {
		if !h.inCache {
			continue
		}
		warming := l.Warming(s.cfg.Cache.Warm())
		defer warming.Release()
		if h.inCache && !warming.Warm(here, millrace.Timeline{Entity: "member:1", Type: millrace.ContentType(h.typ)}) {
			t.Fatalf("%s is not cached", h.typ)
		}
	}
	put(func(h held) (millrace.Record, bool) {
		r := h.record(t)
		r.Deleted, r.Version = !h.inStore, h.version+9
		return r, !h.inStore
	})
	put(func(h held) (millrace.Record, bool) { return h.record(t), h.inStore && !h.inCache })
}

// What is shown of a timeline is what the store and the cache have of it within the window,
// the newest first, each up to the limit.
func TestATimelineIsShownAsItIs(t *testing.T) {
	s, all, l := openCached(t)
	records := []held{
		{typ: "like", id: "l1", at: 3, inStore: true},
		{typ: "like", id: "l2", at: 5, object: "o", inStore: true},
		{typ: "post", id: "a", at: 1, version: 3, inStore: true, inCache: true},
		{typ: "post", id: "b", at: 2, inCache: true},
		{typ: "post", id: "c", at: 2, object: "o", inStore: true, inCache: true},
		{typ: "post", id: "d", at: 2, inStore: true},
		{typ: "post", id: "e", at: 4, inStore: true, inCache: true},
		{typ: "post", id: "f", at: 5, inCache: true},
		{typ: "post", id: "g", at: 6, inStore: true},
	}
	hold(t, s, all, l, records)
	newest := func(a, b held) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(a.id, b.id)) }
	slices.SortFunc(records, func(a, b held) int { return cmp.Or(cmp.Compare(a.typ, b.typ), newest(a, b)) })
	for _, typ := range []string{"", "like", "post", "none"} {
		for window := range 9 * 9 {
			for _, limit := range []int32{0, 1, 2, 3, 4, 5, 100} {
				for _, read := range []struct{ store, cache bool }{{true, true}, {true, false}, {false, true}} {
					from, to := base+int64(window/9), base+int64(window%9)
					if to == base {
						to = 0 // no end
					}
					if to != 0 && from >= to {
						continue
					}
					var want []string
					types := map[string][]string{"": {"like", "post"}}[typ]
					if typ != "" {
						types = []string{typ}
					}
					for _, typ := range types {
						stored, cached, more, has := 0, 0, false, false
						for _, h := range records {
							if h.typ != typ {
								continue
							}
							has = has || h.inCache
							if base+h.at < from || to != 0 && base+h.at >= to {
								continue
							}
							shown := func(in bool, n *int) bool {
								if !in {
									return false
								}
								*n++
								more = more || *n > cmp.Or(int(limit), 100)
								return *n <= cmp.Or(int(limit), 100)
							}
							inStore, inCache := shown(h.inStore && read.store, &stored), shown(h.inCache && read.cache, &cached)
							if inStore || inCache {
								want = append(want, fmt.Sprint(h.typ, h.id, base+h.at, h.version, cmp.Or(h.object, h.id), inStore, inCache))
							}
						}
						want = append(want, fmt.Sprint(typ, " cached ", has && read.cache, more))
					}
					req := &nodev1.ReadTimelineRequest{Entity: "member:1", Type: typ, FromMs: from, ToMs: to, Limit: limit, Store: read.store, Cache: read.cache}
					stream := &sent[nodev1.ReadTimelineResponse]{ctx: t.Context()}
					if err := s.ReadTimeline(req, stream); err != nil {
						t.Fatalf("%v: %v", req, err)
					}
					var got []string
					for i, m := range stream.all {
						if (m.At != nil) != (i == 0) || i == 0 && (m.At.Partition != int32(here) || m.At.State != "ready") {
							t.Errorf("message %d of %v says that the replica is at %v", i, req, m.At)
						}
						for _, r := range m.Records {
							got = append(got, fmt.Sprint(r.Type, r.Id, r.TimeMs, r.Version, r.Object, r.InStore, r.InCache))
							if !strings.Contains(string(r.Json), fmt.Sprintf("%q:%q", "id", r.Id)) || r.Deleted || r.Schema != uint64(schemas.Activity().Fingerprint()) {
								t.Errorf("%v: %v", req, r)
							}
						}
						if c := m.Cached; c != nil {
							got = append(got, fmt.Sprint(c.Type, " cached ", c.Cached, c.More))
						}
					}
					if !slices.Equal(got, want) {
						t.Fatalf("%v:\n%q\nwant\n%q", req, got, want)
					}
				}
			}
		}
	}
	whoGoes(t, func(stream *sent[nodev1.ReadTimelineResponse]) error {
		return s.ReadTimeline(&nodev1.ReadTimelineRequest{Entity: "member:1", Store: true}, stream)
	})
}

// Large records are sent a few at a time.
func TestATimelineIsSentInPieces(t *testing.T) {
	s, all, l := openCached(t)
	var records []held
	for i := range 7 {
		records = append(records, held{typ: "post", id: fmt.Sprint("r", i), at: int64(i), size: sentBytes / 2, inStore: true})
	}
	hold(t, s, all, l, records)
	stream := &sent[nodev1.ReadTimelineResponse]{ctx: t.Context()}
	if err := s.ReadTimeline(&nodev1.ReadTimelineRequest{Entity: "member:1", Store: true}, stream); err != nil {
		t.Fatal(err)
	}
	var pieces []int
	for _, m := range stream.all {
		pieces = append(pieces, len(m.Records))
	}
	if !slices.Equal(pieces, []int{0, 2, 2, 2, 1, 0}) {
		t.Errorf("records are sent in pieces of %v", pieces)
	}
}

// What cannot be shown of a timeline is said: how far back the cache has it, a record whose
// schema is not known, a damaged cache, and a node that has nothing at all.
func TestWhatATimelineCannotShow(t *testing.T) {
	s, all, l := openCached(t)
	read := func(req *nodev1.ReadTimelineRequest) []*nodev1.ReadTimelineResponse {
		t.Helper()
		req.Entity = "member:1"
		stream := &sent[nodev1.ReadTimelineResponse]{ctx: t.Context()}
		if err := s.ReadTimeline(req, stream); err != nil {
			t.Fatal(err)
		}
		return stream.all
	}
	if all := read(&nodev1.ReadTimelineRequest{Store: true}); len(all) != 1 || all[0].At.GetPartition() != int32(here) {
		t.Errorf("of a node without records it says %v", all)
	}
	hold(t, s, all, l, []held{{typ: "post", id: "a", inCache: true, inStore: true}})
	if c := read(&nodev1.ReadTimelineRequest{Cache: true})[2].Cached; c.FromMs != int64(millrace.MinTime) {
		t.Errorf("the cache has it back to %d", c.FromMs)
	}
	var b store.Batch
	b.Put(here, millrace.Timeline{Entity: "member:1", Type: "odd"}, millrace.Record{ID: "x", Time: base, Schema: 7, Body: []byte("?")})
	b.SetApplied(here, store.Content, 3)
	b.SetApplied(here, store.FeatureStream, 4)
	if _, err := s.cfg.Store.Apply(&b, nil); err != nil {
		t.Fatal(err)
	}
	if m := read(&nodev1.ReadTimelineRequest{Type: "odd", Store: true}); len(m[1].Records) != 1 || m[1].Records[0].Json != nil || m[1].Records[0].Id != "x" {
		t.Errorf("a record of an unknown schema is %v", m)
	}
	b = store.Batch{}
	b.Put(here, millrace.Timeline{Entity: "member:1", Type: "late"}, millrace.Record{ID: "x", Time: millrace.MaxTime})
	if _, err := s.cfg.Store.Apply(&b, nil); err != nil {
		t.Fatal(err)
	}
	for until, want := range map[millrace.Time]int{0: 3, millrace.MaxTime: 2} {
		if m := read(&nodev1.ReadTimelineRequest{Type: "late", Store: true, ToMs: int64(until)}); len(m) != want {
			t.Errorf("until %d it says %v", until, m)
		}
	}
	nodetest.Serve(all)
	if at := read(&nodev1.ReadTimelineRequest{Store: true})[0].At; at.Content != 3 || at.Features != 4 {
		t.Errorf("the replica is at %v", at)
	}
	if err := all.Quarantine(here, "doubt"); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadTimeline(&nodev1.ReadTimelineRequest{Entity: "member:1", Store: true}, &sent[nodev1.ReadTimelineResponse]{ctx: t.Context()}); refusal(err) != "NOT_HERE partition" {
		t.Errorf("a quarantined replica: %v", err)
	}
	all.Of(here).Barrier() // it is not locked
}

// What a node shows of its replicas is what it has of each type.
func TestTheStateIsShown(t *testing.T) {
	s, all, l := openCached(t)
	hold(t, s, all, l, []held{
		{typ: "like", id: "l", at: 7, inStore: true}, {typ: "post", id: "a", at: 1, inStore: true, inCache: true}, {typ: "post", id: "b", at: 2, inStore: true, inCache: true}, {typ: "post", id: "c", at: 3},
	})
	nodetest.Members(t, all, 1, 3)
	there, none := int32(partition.Of("member:0")), int32(partition.Count)
	read := func(req *nodev1.ReadStateRequest) []*nodev1.ReadStateResponse {
		t.Helper()
		stream := &sent[nodev1.ReadStateResponse]{ctx: t.Context()}
		if err := s.ReadState(req, stream); err != nil {
			t.Fatal(err)
		}
		return stream.all
	}
	if all := read(&nodev1.ReadStateRequest{}); len(all) != partition.Count || all[there].At.Partition != there || all[there].At.State != "ready" || !all[there].Counted || all[there].At.Content != 3 || all[there].At.Features != -1 {
		t.Errorf("%d partitions are told, and of one of them %v", len(all), all[there])
	}
	p := int32(here)
	both := read(&nodev1.ReadStateRequest{Partition: &p})
	posts := read(&nodev1.ReadStateRequest{Partition: &p, Type: "post"})
	if len(both) != 1 || len(both[0].Types) != 2 || both[0].Types[0].Type != "like" || len(posts) != 1 || len(posts[0].Types) != 1 {
		t.Fatalf("told is %v, and of posts %v", both, posts)
	}
	x := posts[0].Types[0]
	if x.Bytes < 60 || x.Bytes > 1000 {
		t.Errorf("records have %d bytes", x.Bytes)
	}
	x.Bytes = 0
	want := &nodev1.TypeState{Type: "post", Records: 2, Deleted: 1, Timelines: 1, NewestMs: base + 2, Taken: 2, InRate: float64(p), OutRate: 4, CachedRecords: 2, CachedTimelines: 1}
	if x.String() != want.String() {
		t.Errorf("of posts it tells %v, want %v", x, want)
	}
	if x := both[0].Types[0]; x.CachedTimelines != 0 || x.Records != 1 || x.NewestMs != base+7 {
		t.Errorf("of likes it tells %v", x)
	}
	if err := s.ReadState(&nodev1.ReadStateRequest{Partition: &none}, &sent[nodev1.ReadStateResponse]{ctx: t.Context()}); refusal(err) != "INVALID_ARGUMENT partition" {
		t.Errorf("there is no such partition: %v", err)
	}
	whoGoes(t, func(stream *sent[nodev1.ReadStateResponse]) error {
		return s.ReadState(&nodev1.ReadStateRequest{Partition: &p}, stream)
	})
}
