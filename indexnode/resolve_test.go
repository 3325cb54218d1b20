package indexnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	dto "github.com/prometheus/client_model/go"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// members opens a node with some records of each of several members, of which
// the cache knows nothing, and returns their names.
func members(t testing.TB, n *Node, h *replica.Replicas, count, records int) (names []string) {
	next := map[millrace.Partition]millrace.Offset{}
	for i := range count {
		names = append(names, fmt.Sprint("member:", i))
		var events []event
		for j := range records {
			body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"%d/%d","actor":%q,"verb":"post","created_at":%d,"text":"About photos of a day at sea"}`, i, j, names[i], 1_700_000_000_000+int64(j)))
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, event{stream: kafka.Timeline, entity: millrace.Entity(names[i]), schema: schemas.Activity(), body: body})
		}
		p := partition.Of(millrace.Entity(names[i]))
		next[p] += millrace.Offset(records)
		if err := bring(t.Context(), h, events, next[p]); err != nil {
			t.Fatal(err)
		}
	}
	n.cache.Purge()
	return names
}

func ofAll(names []string) *nodev1.QueryRequest {
	return &nodev1.QueryRequest{Entities: pack(names...), Types: []string{"post"}, ToMs: int64(millrace.MaxTime), Limit: 10, Model: "recency"}
}

// Of a hundred who ask the same of a cold node at once, one reads each
// timeline, and all are answered.
func TestNoStampede(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 60, 3)
	want := 3 * len(names)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			<-start
			resp, err := n.query(t.Context(), ofAll(names))
			if err != nil || int(resp.Stages.Candidates) != want {
				t.Errorf("%v candidates, %v; want %d", resp.GetStages().GetCandidates(), err, want)
			}
		})
	}
	close(start)
	wg.Wait()
	var m dto.Metric
	if err := n.counters.reads.Write(&m); err != nil || int(m.Counter.GetValue()) != len(names) {
		t.Errorf("%v reads of %d timelines, %v", m.Counter.GetValue(), len(names), err)
	}
}

// Nor where a window reaches behind what is cached.
func TestNoStampedeBehindTheCache(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	const records, readers = 20_000, 32
	req := ofAll(members(t, n, h, 1, records))
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			resp, err := n.query(t.Context(), req)
			if err != nil || resp.Stages.Candidates != records {
				t.Errorf("%v candidates, %v", resp.GetStages().GetCandidates(), err)
			}
		})
	}
	wg.Wait()
	var m dto.Metric
	if err := n.counters.reads.Write(&m); err != nil || m.Counter.GetValue() > readers/2 {
		t.Errorf("%v reads for %d readers at once, %v", m.Counter.GetValue(), readers, err)
	}
}

// One whose question is over while it reads for others does not fail them.
func TestACancelledReaderFailsNobodyElse(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 60, 3)
	for range 50 {
		n.cache.Purge()
		gone, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				ctx := t.Context()
				if i%2 == 0 {
					ctx = gone
				}
				_, err := n.query(ctx, ofAll(names))
				if err != nil && (ctx != gone || !errors.Is(err, context.Canceled)) {
					t.Errorf("reader %d: %v", i, err)
				}
			})
		}
		cancel()
		wg.Wait()
	}
}

// While as many partitions are read as may be, a question that the cache
// answers is answered, and another waits until its time is over.
func TestReadsAreBounded(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 2, 3)
	if _, err := n.query(t.Context(), ofAll(names[:1])); err != nil {
		t.Fatal(err)
	}
	for range maxNodeReads {
		n.readers <- struct{}{}
	}
	if _, err := n.query(t.Context(), ofAll(names[:1])); err != nil {
		t.Errorf("what is cached: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.query(short, ofAll(names)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what is not cached: %v", err)
	}
	for range maxNodeReads {
		<-n.readers
	}
	if _, err := n.query(t.Context(), ofAll(names)); err != nil || len(n.readers) != 0 {
		t.Errorf("%v, and %d read", err, len(n.readers))
	}
}

func TestRun(t *testing.T) {
	records := make([]millrace.Record, 7)
	for i, size := range []int{100, 1, 2, 3, 4, 200, 0} {
		records[i].Body = make([]byte, size)
	}
	var runs []int
	for rest := records; len(rest) > 0; {
		n := run(rest, 6)
		runs, rest = append(runs, n), rest[n:]
	}
	if fmt.Sprint(runs) != "[1 3 1 1 1]" {
		t.Errorf("%v", runs)
	}
}

// slowDisk writes nothing while it is stuck.
type slowDisk struct {
	stuck atomic.Bool
	free  chan struct{} // closed once it is not
}

func (d *slowDisk) String() string { return "a slow disk" }

func (d *slowDisk) MaybeError(op errorfs.Op) error {
	if d.stuck.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		<-d.free
	}
	return nil
}

// While ingest waits for the disk, since too much is not on it yet, readers go
// on with what is applied.
func TestReadersDoNotWaitForTheDisk(t *testing.T) {
	disk := &slowDisk{free: make(chan struct{})}
	n, h := openStored(t, cache.Config{}, store.Options{FS: errorfs.Wrap(vfs.NewMem(), disk), FlushEvery: -1, MaxDirtyBytes: 1})
	post := func(i int) error {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":"member:1","verb":"post","created_at":%d}`, i, 1_700_000_000_000+int64(i)))
		if err != nil {
			return err
		}
		return bring(t.Context(), h, []event{{stream: kafka.Timeline, entity: "member:1", schema: schemas.Activity(), body: body}}, millrace.Offset(i))
	}
	err := errors.Join(post(1), n.store.Flush())
	if err != nil {
		t.Fatal(err)
	}
	disk.stuck.Store(true)
	const last = 8
	brought, asked := make(chan error, 1), make(chan error, 1)
	go func() {
		var err error
		for i := 2; i <= last && err == nil; i++ {
			err = post(i)
		}
		brought <- err
	}()
	go func() {
		var err error
		for began := time.Now(); time.Since(began) < 100*time.Millisecond && err == nil; n.cache.Purge() {
			_, err = n.query(t.Context(), all(func(r *nodev1.QueryRequest) {}))
		}
		asked <- err
	}()
	select {
	case err = <-asked:
	case <-time.After(10 * time.Second):
		err = errors.New("a reader waits for the disk")
	}
	if len(brought) > 0 {
		t.Error("ingest did not wait for the disk: the test shows nothing")
	}
	disk.stuck.Store(false)
	close(disk.free)
	if err := errors.Join(err, <-brought); err != nil {
		t.Fatal(err)
	}
	if resp, err := n.query(t.Context(), all(func(r *nodev1.QueryRequest) {})); err != nil || len(resp.Items) != last {
		t.Errorf("%v, %v", resp, err)
	}
}

// An answer is as old as what it has read, also where the replica catches up
// before the answer is told: from the cache, and from the store.
func TestAnAnswerIsAsOldAsWhatItRead(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 2, 3)
	for i, late := range []bool{false, true} {
		for _, cached := range []bool{false, true} {
			before, after := time.Now(), time.Now().Add(-time.Hour)
			if late {
				before, after = after, before
			}
			r := resolutions.Get().(*resolution)
			req := all(func(req *nodev1.QueryRequest) { req.Entities = pack(names[i]) })
			spec, err := n.spec(req)
			if err != nil {
				t.Fatal(err)
			}
			r.node, r.loan, r.spec = n, n.memory.Borrow(), &spec
			if err := r.decode(req.Entities); err != nil {
				t.Fatal(err)
			}
			p := partition.Of(millrace.Entity(names[i]))
			n.replicas.Serve(p, before)
			if err := r.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(r.views) != 1 || r.views[0].locked == cached {
				t.Fatalf("cached %v: %d views, from the store %v", cached, len(r.views), r.views[0].locked)
			}
			n.replicas.Serve(p, after)
			if got := r.answered(); (len(got.LagMs) > 0) != late {
				t.Errorf("cached %v: read late %v, and told %v", cached, late, got.LagMs)
			}
			r.release()
		}
	}
}
