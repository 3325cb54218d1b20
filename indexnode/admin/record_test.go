package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// foundStream is a stream of found records in the test's hand.
type foundStream struct {
	grpc.ServerStream
	ctx  context.Context
	send func(*nodev1.FindRecordsResponse) error
}

func (s *foundStream) Context() context.Context                 { return s.ctx }
func (s *foundStream) Send(m *nodev1.FindRecordsResponse) error { return s.send(m) }

// A caller that stops reading what is found does not hold the ingest up: no
// replica is locked while it is sent.
func TestNothingIsLockedWhileWhatIsFoundIsSent(t *testing.T) {
	s, all := openNode(t)
	nodetest.Members(t, all, 1, 2*sentRecords+1)
	of := partition.Of("member:0")
	wanted := map[string]*nodev1.FindRecordsRequest{"named": {}, "anywhere": {}}
	for i := range 2*sentRecords + 1 {
		id := fmt.Sprintf("0/%d", i)
		wanted["named"].Wanted = append(wanted["named"].Wanted, &nodev1.WantedRecord{Id: id, Entity: "member:0"})
		wanted["anywhere"].Wanted = append(wanted["anywhere"].Wanted, &nodev1.WantedRecord{Id: id})
	}
	for how, req := range wanted {
		found, messages := map[string]bool{}, 0
		err := s.FindRecords(req, &foundStream{ctx: t.Context(), send: func(m *nodev1.FindRecordsResponse) error {
			messages++
			for _, f := range m.Found {
				found[f.Record.Id] = true
			}
			return written(all.Of(of))
		}})
		if err != nil || len(found) != len(req.Wanted) || messages != 4 {
			t.Errorf("%s: %d of %d records are found, in %d messages: %v", how, len(found), len(req.Wanted), messages, err)
		}
	}
}

// written reports whether a replica can be written.
func written(r interface{ Barrier() }) error {
	free := make(chan struct{})
	go func() {
		r.Barrier()
		close(free)
	}()
	select {
	case <-free:
		return nil
	case <-time.After(5 * time.Second):
		return errors.New("the replica is locked")
	}
}

// The audit says of a deletion what the node had of the record, and not what the caller
// believes.
func TestADeletionIsAuditedWithWhatWasThere(t *testing.T) {
	s, all := openNode(t)
	nodetest.Members(t, all, 2, 2)
	if err := all.Quarantine(partition.Of("member:1"), "doubt"); err != nil {
		t.Fatal(err)
	}
	for want, to := range map[string]*nodev1.Tombstone{
		"there in 1 timelines, the newest of version 0": {Id: "0/1", Type: "post", Entities: []string{"member:0", "member:2"}},
		"not there":                     {Id: "never", Type: "post", Entities: []string{"member:0"}},
		"not there; not known of 1 tim": {Id: "0/1", Type: "post", Entities: []string{"member:1", "member:2"}},
	} {
		if got := s.deletion(t.Context(), to, "content").Before; !strings.HasPrefix(got, want) {
			t.Errorf("of %q in %q it says %q, not %q", to.Id, to.Entities, got, want)
		}
	}
}

// Tombstones that cannot be written are in the audit with their fault, each of
// them.
func TestEveryDeletionThatFailsIsToldSo(t *testing.T) {
	s, _ := openNode(t)
	file := filepath.Join(t.TempDir(), "audit")
	acts, err := audit.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer acts.Close()
	s.cfg.Audit, s.cfg.Brokers, s.cfg.Topics = acts, kafka.At("127.0.0.1:1"), kafka.Topics{}.WithDefaults()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var all []*nodev1.Tombstone
	for i := range 3 {
		all = append(all, &nodev1.Tombstone{Id: fmt.Sprint("post:", i), Entities: []string{"member:1"}, Type: "post"})
	}
	if err := s.bury(ctx, "content", all, make([][]byte, len(all))); err == nil {
		t.Fatal("tombstones are written to a Kafka that is away")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		id := fmt.Sprint("post:", i)
		done, failed := 0, 0
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, id) && strings.Contains(line, `"fault":`) {
				failed++
			} else if strings.Contains(line, id) {
				done++
			}
		}
		if done != 1 || failed != 1 {
			t.Errorf("post:%d is written down %d times, and %d times as failed:\n%s", i, done, failed, text)
		}
	}
}

// A record is found in the timelines that are here, with what the store and the cache have of
// it, whether its entity is named or not, and however many types there are.
func TestRecordsAreFoundWhereTheyAre(t *testing.T) {
	s, all, l := openCached(t)
	nodetest.Members(t, all, 3, 2)
	hold(t, s, all, l, []held{
		{typ: "post", id: "a", at: 1, version: 4, object: "o", inStore: true, inCache: true}, {typ: "post", id: "b", at: 2, inCache: true}, {typ: "like", id: "a", at: 3, inStore: true}, {typ: "like", id: "c"},
	})
	away := partition.Of("member:2")
	if err := all.Quarantine(away, "doubt"); err != nil {
		t.Fatal(err)
	}
	for _, more := range []int{0, store.MaxTypes} { // the store lists all types by name, and does not
		var b store.Batch
		for i := range more {
			b.Put(1, millrace.Timeline{Entity: "e", Type: millrace.ContentType(fmt.Sprint("t", i))}, millrace.Record{ID: "x", Time: 1})
		}
		if _, err := s.cfg.Store.Apply(&b, nil); more > 0 && err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			id, entity string
			want       string
		}{
			{"a", "member:1", "like a 1700000000003 0 a store=true cache=false deleted=false of [member:1]; post a 1700000000001 4 o store=true cache=true deleted=false of [member:1]"},
			{"a", "", "like a 1700000000003 0 a store=true cache=false deleted=false of [member:1]; post a 1700000000001 4 o store=true cache=true deleted=false of [member:1]"},
			{"b", "member:1", "post b 1700000000002 9 b store=true cache=true deleted=true of []"},
			{"c", "member:1", "like c 1700000000000 9 c store=true cache=false deleted=true of []"},
			{"0/1", "member:1", ""},
			{"0/1", "", "post 0/1 1700000000001 0 0/1 store=true cache=false deleted=false of [member:0]"},
			{"2/1", "member:2", ""},
			{"2/1", "", ""},
		} {
			stream := &sent[nodev1.FindRecordsResponse]{ctx: t.Context()}
			if err := s.FindRecords(&nodev1.FindRecordsRequest{Wanted: []*nodev1.WantedRecord{{Id: c.id, Entity: c.entity}}}, stream); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range stream.all {
				for _, f := range m.Found {
					r := f.Record
					got = append(got, fmt.Sprintf("%s %s %d %d %s store=%t cache=%t deleted=%t of %v", r.Type, r.Id, r.TimeMs, r.Version, r.Object, r.InStore, r.InCache, r.Deleted, f.Timelines))
					if f.Partition != int32(partition.Of(millrace.Entity(f.Entity))) || !strings.HasPrefix(r.Id, "0") && f.Entity != "member:1" {
						t.Errorf("%s of %q is found in %q, partition %d", c.id, c.entity, f.Entity, f.Partition)
					}
				}
			}
			slices.Sort(got)
			if strings.Join(got, "; ") != c.want {
				t.Errorf("%s of %q (%d more types):\n%q, want\n%q", c.id, c.entity, more, got, c.want)
			}
			looked := stream.all[len(stream.all)-1].Partitions
			want := map[string]int{"": partition.Count - 1, "member:1": 1, "member:2": 0}[c.entity]
			if len(looked) != want || !slices.IsSorted(looked) || want == 1 && looked[0] != int32(here) {
				t.Errorf("%s of %q: %d partitions were looked into, not %d", c.id, c.entity, len(looked), want)
			}
		}
		for _, entity := range []string{"member:1", ""} {
			whoGoes(t, func(stream *sent[nodev1.FindRecordsResponse]) error {
				return s.FindRecords(&nodev1.FindRecordsRequest{Wanted: []*nodev1.WantedRecord{{Id: "a", Entity: entity}}}, stream)
			})
		}
	}
	all.Of(here).Barrier() // nothing is locked
	all.Of(away).Barrier()
}

// A disk that cannot be read is an error of every call that reads it, and holds nothing up.
func TestADiskThatCannotBeRead(t *testing.T) {
	fs := vfs.NewMem()
	before, err := store.Open("node", store.Options{FS: fs, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	for _, typ := range []string{"like", "post"} {
		b.Put(here, millrace.Timeline{Entity: "member:1", Type: millrace.ContentType(typ)}, held{typ: typ, id: "a"}.record(t))
	}
	for i := range store.MaxTypes { // so many that the store does not list all
		b.Put(1, millrace.Timeline{Entity: "e", Type: millrace.ContentType(fmt.Sprint("t", i))}, millrace.Record{ID: "x", Time: 1})
	}
	b.SetApplied(here, store.Content, 9)
	_, err = before.Apply(&b, nil)
	if err := errors.Join(err, before.Close()); err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	again, err := store.Open("node", store.Options{FS: errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && broken.Load() {
			return syscall.EIO
		}
		return nil
	})), FlushEvery: -1, CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	s, _ := openNode(t)
	all := replica.New(replica.Config{Store: again, Schemas: s.cfg.Schemas, Log: s.cfg.Log})
	all.Serve(here, time.Now())
	s.cfg.Store, s.cfg.Replicas = again, all
	find := func(entity string) error {
		return s.FindRecords(&nodev1.FindRecordsRequest{Wanted: []*nodev1.WantedRecord{{Id: "a", Entity: entity}}}, &sent[nodev1.FindRecordsResponse]{ctx: t.Context()})
	}
	read := func(until int64) error {
		return s.ReadTimeline(&nodev1.ReadTimelineRequest{Entity: "member:1", Type: "post", ToMs: until, Store: true, Cache: true}, &sent[nodev1.ReadTimelineResponse]{ctx: t.Context()})
	}
	seek := finding{s: s, of: map[millrace.Partition]map[owned]bool{}, looked: map[millrace.Partition]bool{}}
	for name, call := range map[string]func() error{
		"find": func() error { return find("member:1") }, "find anywhere": func() error { return find("") }, "read": func() error { return read(0) }, "read a window": func() error { return read(base + 9) },
		"look": func() error { return seek.lookIn("member:1", []millrace.ContentType{"post"}, "a") },
		"delete": func() error {
			if says := s.before(&nodev1.Tombstone{Id: "a", Type: "post", Entities: []string{"member:1"}}); strings.HasPrefix(says, "not known: ") {
				return errors.New(says)
			}
			return nil
		},
	} {
		broken.Store(true)
		failed := call()
		broken.Store(false)
		if err := call(); err != nil || failed == nil {
			t.Errorf("%s: the disk fails, and it says %v; when it is back %v", name, failed, err)
		}
	}
	all.Of(here).Barrier() // nothing is locked
}

// What retention has dropped is found for as long as its space is not reclaimed, and is said
// not to be there.
func TestWhatIsExpiredIsNotThere(t *testing.T) {
	kept, err := store.Open("node", store.Options{FS: vfs.NewMem(), FlushEvery: -1, Retention: map[millrace.ContentType]store.Retention{"post": {MaxCount: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	s, _ := openNode(t)
	all := replica.New(replica.Config{Store: kept, Schemas: s.cfg.Schemas, Log: s.cfg.Log})
	all.Serve(here, time.Now())
	s.cfg.Store, s.cfg.Replicas = kept, all
	hold(t, s, all, nil, []held{{typ: "post", id: "old", at: 1, inStore: true}, {typ: "post", id: "new", at: 2, inStore: true}})
	for id, is := range map[string]bool{"old": false, "new": true} {
		stream := &sent[nodev1.FindRecordsResponse]{ctx: t.Context()}
		if err := s.FindRecords(&nodev1.FindRecordsRequest{Wanted: []*nodev1.WantedRecord{{Id: id, Entity: "member:1"}}}, stream); err != nil || len(stream.all) != 2 || stream.all[0].Found[0].Record.InStore != is {
			t.Errorf("%s: %v, %v", id, stream.all, err)
		}
		want := map[bool]string{true: "there in 1 timelines, the newest of version 0", false: "deleted or expired already"}[is]
		if says := s.before(&nodev1.Tombstone{Id: id, Type: "post", Entities: []string{"member:1"}}); says != want {
			t.Errorf("of %s it says %s", id, says)
		}
	}
}

// What the cache alone has is found, as the cache has it.
func TestWhatIsOnlyCachedIsFound(t *testing.T) {
	s, all, l := openCached(t)
	hold(t, s, all, l, []held{{typ: "post", id: "a", at: 1, version: 4, object: "o", inStore: true, inCache: true}})
	if err := s.cfg.Store.DropPartition(here); err != nil {
		t.Fatal(err)
	}
	stream := &sent[nodev1.FindRecordsResponse]{ctx: t.Context()}
	if err := s.FindRecords(&nodev1.FindRecordsRequest{Wanted: []*nodev1.WantedRecord{{Id: "a", Entity: "member:1"}}}, stream); err != nil || len(stream.all) != 2 {
		t.Fatal(stream.all, err)
	}
	if r := stream.all[0].Found[0].Record; r.InStore || !r.InCache || r.Version != 4 || r.Object != "o" || r.TimeMs != base+1 || len(r.Json) == 0 {
		t.Errorf("found is %v", r)
	}
}
