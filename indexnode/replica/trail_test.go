package replica

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/digest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// fed is replicas that are brought a log by hand.
type fed struct {
	all     *Replicas
	store   *store.Store
	disk    *disk
	letters *letters
	host    *counting
	logged  *strings.Builder // of what is done by the test's own goroutine
	next    int              // of the log
}

func newFed(t testing.TB) *fed {
	t.Helper()
	f := newIdle(t, vfs.NewMem())
	f.all.Serve(partHere, time.Now())
	return f
}

// newIdle returns replicas that are all absent, of which the test calls what
// their goroutines would.
func newIdle(t testing.TB, fs vfs.FS) *fed {
	t.Helper()
	f := &fed{disk: &disk{FS: fs}, letters: new(letters), host: new(counting), logged: new(strings.Builder)}
	var err error
	f.store, err = store.Open("", store.Options{FS: f.disk, FlushEvery: -1, CacheBytes: 1})
	must(t, err)
	t.Cleanup(func() { must(t, f.store.Close()) })
	registry, err := registry.New(nil, nil)
	must(t, err)
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		_, err = registry.Admit(s)
		must(t, err)
	}
	f.all = New(Config{
		Store: f.store, Topics: kafka.Topics{}.WithDefaults(), Schemas: registry, SchemaLog: &schemaLog{refused: map[millrace.Fingerprint]bool{}},
		Letters: f.letters, Host: f.host, Limit: time.Minute, Log: slog.New(slog.NewTextHandler(f.logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return f
}

// bring applies the next records of a log, as one fetch that has them does.
func (f *fed) bring(t testing.TB, log []streams.Record, n int) {
	t.Helper()
	n = min(n, len(log)-f.next)
	records := log[f.next : f.next+n]
	if f.next += n; n == 0 {
		return
	}
	must(t, f.all.Bring(t.Context(), streams.Fetched{
		TopicPartition: kafka.TopicPartition{Stream: kafka.Timeline, Partition: partHere}, Records: records, Next: records[n-1].Offset + 1,
	}))
}

// trail is what a node tells of the replica.
func (f *fed) trail(id millrace.NodeID) digest.Trail {
	t := &nodev1.Trail{Partition: int32(partHere), Answers: true, Log: "log"}
	for _, x := range f.all.Of(partHere).Trail()[kafka.Timeline] {
		t.ContentAt, t.Content = append(t.ContentAt, int64(x.At)), append(t.Content, x.Digest)
	}
	return digest.Trail{Node: id, Trail: t}
}

// logOf makes a log of posts, some of which replace others. Between its offsets
// are holes, as the ends of transactions leave them.
func logOf(t testing.TB, n int, random *rand.Rand) []streams.Record {
	t.Helper()
	var all []streams.Record
	at := millrace.Offset(0)
	for i := range n {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":%q,"verb":"post","created_at":%d,"version":%d}`, random.IntN(n), here, 1_700_000_000_000+i, i))
		must(t, err)
		value := schemas.Frame(schemas.Activity().Fingerprint(), body)
		out := kafka.ToStream("timeline", here, value, kafka.Source{Topic: "posts", Offset: at})
		r := streams.Record{Offset: at, Key: out.Key, Value: out.Value}
		for _, h := range out.Headers {
			if h.Key == kafka.HeaderCRC {
				r.CRC = h.Value
			}
		}
		all = append(all, r)
		if at++; random.IntN(10) == 0 {
			at += millrace.Offset(1 + random.IntN(3))
		}
	}
	return all
}

// Replicas that apply one log in pieces of any size, one far behind the other,
// are never called different, and have an offset in common as soon as both have
// passed a mark that both still know.
func TestReplicasAtDifferentOffsetsAreNotDifferent(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 14))
	log := logOf(t, 12_000, random)
	replicas := []*fed{newFed(t), newFed(t), newFed(t)}
	shared := 0
	for step := 0; replicas[0].next < len(log) || replicas[1].next < len(log) || replicas[2].next < len(log); step++ {
		r := replicas[random.IntN(len(replicas))]
		r.bring(t, log, 1+random.IntN([]int{3, 50, 3000}[random.IntN(3)]))
		trails := []digest.Trail{replicas[0].trail("a"), replicas[1].trail("b"), replicas[2].trail("c")}
		if all := digest.Judge(partHere, trails); len(all) > 0 {
			t.Fatalf("step %d: %s", step, &all[0])
		}
		for i := range trails {
			a, b := trails[i], trails[(i+1)%len(trails)]
			if min(replicas[i].next, replicas[(i+1)%len(replicas)].next) < 2*markEvery {
				continue
			}
			if !common(a, b) {
				t.Fatalf("step %d: %s at %v and %s at %v have no offset in common", step, a.Node, a.ContentAt, b.Node, b.ContentAt)
			}
			shared++
		}
	}
	if shared == 0 {
		t.Fatal("nothing was compared")
	}
}

func common(a, b digest.Trail) bool {
	for _, x := range a.ContentAt {
		for _, y := range b.ContentAt {
			if x == y {
				return true
			}
		}
	}
	return false
}

// One record that a replica has otherwise shows at the next mark, whatever else
// comes meanwhile: of three the one is named, of two both are in doubt.
func TestOneRecordThatDiffersIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	log := logOf(t, 5000, random)
	a, b, c := newFed(t), newFed(t), newFed(t)
	for _, f := range []*fed{a, b, c} {
		f.bring(t, log, 1500)
	}
	damage(t, b.store)
	for _, f := range []*fed{a, b, c} {
		for f.next < 2500 {
			f.bring(t, log, 1+random.IntN(400))
		}
	}
	all := digest.Judge(partHere, []digest.Trail{a.trail("a"), b.trail("b"), c.trail("c")})
	if len(all) != 1 || len(all[0].Wrong) != 1 || all[0].Wrong[0] != "b" || all[0].Right != "a" {
		t.Fatalf("of three: %+v", all)
	}
	if d := all[0]; d.Offset%markEvery != 0 || d.Agreed < 0 || d.Agreed >= d.Offset {
		t.Errorf("at %d, equal at %d", d.Offset, d.Agreed)
	}
	all = digest.Judge(partHere, []digest.Trail{a.trail("a"), b.trail("b")})
	if len(all) != 1 || len(all[0].Wrong) != 0 || len(all[0].Digests) != 2 {
		t.Fatalf("of two: %+v", all)
	}
}

// damage puts a record into a store that no log has.
func damage(t testing.TB, s *store.Store) {
	t.Helper()
	var b store.Batch
	b.Put(partHere, millrace.Timeline{Entity: here, Type: "post"}, millrace.Record{ID: "no log has it", Time: 1_700_000_000_001, Schema: schemas.Activity().Fingerprint(), Body: []byte{0}})
	_, err := s.Apply(&b, nil)
	must(t, err)
}

// A replica stands still where it is told to, at no record more, holds what it
// held there, and goes on when it is let go of, or by itself.
func TestReplicaStandsStillWhereTold(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	w.start(partHere)
	w.until("ready", func() bool { return w.replicas.Of(partHere).State() == Ready && w.count(here) == 5 })
	st, err := w.replicas.Stop(w.ctx, partHere)
	must(t, err)
	at := st.At()
	if _, err := w.replicas.Stop(w.ctx, partHere); err == nil {
		t.Error("it is stopped twice")
	}
	w.posts(5, here)
	to := at
	to[kafka.Timeline] += 2
	must(t, st.Move(to))
	c, err := st.Contents()
	must(t, err)
	defer c.Close()
	if got := c.Applied().Content; got != to[kafka.Timeline] {
		t.Errorf("the contents are of %d, want %d", got, to[kafka.Timeline])
	}
	if err := st.Move(at); err == nil {
		t.Error("it went back")
	}
	st.Release()
	w.until("all of it", func() bool { return w.count(here) == 10 })
	rows := 0
	for _, err := range c.Rows() {
		must(t, err)
		rows++
	}
	if rows != w.countUpTo(to[kafka.Timeline]) {
		t.Errorf("%d rows, want %d", rows, w.countUpTo(to[kafka.Timeline]))
	}
	if _, err := w.replicas.Stop(w.ctx, partHere); err != nil { // and is not let go of
		t.Fatal(err)
	}
	w.post(here)
	w.until("it goes on by itself", func() bool { return w.count(here) == 11 })
}

// countUpTo counts the records of the timeline log before an offset.
func (w *world) countUpTo(at millrace.Offset) (n int) {
	w.t.Helper()
	spans := map[kafka.TopicPartition]streams.Span{{Stream: kafka.Timeline, Partition: partHere}: {To: at, From: kafka.Position{Epoch: -1}}}
	must(w.t, streams.ReadTails(w.ctx, streams.TailsConfig{Brokers: kafka.At(w.kafka.ListenAddrs()...), Topics: w.topics}, spans, func(f streams.Fetched) error {
		n += len(f.Records)
		return f.Err
	}))
	return n
}

// A replica that differs is taken out, also across a restart, and made anew from
// the log, and not from a backup of itself. An order that is not about the
// replica as it is changes nothing.
func TestReplicaThatDiffersIsRenewed(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	w.backups = ownBackups{}
	w.start(partHere)
	w.until("ready", func() bool { return w.replicas.Of(partHere).State() == Ready && w.count(here) == 5 })
	r := w.replicas.Of(partHere)
	right := last(r)
	damage(t, w.store)
	w.post(here)
	w.until("six and the damage", func() bool { return w.count(here) == 7 })
	v := &Verdict{Stream: kafka.Timeline, At: last(r), Expected: 1, Agreed: right.At, Peer: "another"}
	for what, wrong := range map[string]Verdict{
		"another digest": {At: Pass{v.At.At, 5}, Expected: 1}, "another offset": {At: Pass{1, v.At.Digest}, Expected: 1}, "no difference": {At: v.At, Expected: v.At.Digest},
	} {
		if err := w.replicas.CondemnDiffering(partHere, &wrong); err == nil || r.State() != Ready {
			t.Errorf("%s: %v, and it is %s", what, err, r.State())
		}
	}
	must(t, w.replicas.CondemnDiffering(partHere, v))
	w.until("renewed", func() bool { return r.State() == Ready && w.count(here) == 6 })
	if err := w.replicas.CondemnDiffering(partHere, v); err == nil {
		t.Error("an order from before the renewal took it out again")
	}

	must(t, w.store.Quarantine(partHere, fmt.Errorf("%s: so it said before it ended", differsText)))
	w.stop()
	w.start(partHere)
	w.until("renewed after a restart", func() bool { return w.replicas.Of(partHere).State() == Ready && w.count(here) == 6 })
}

// What is known to differ is so in the store, too, before anybody hears that it is done:
// a restart makes nothing of it right.
func TestADifferenceIsKept(t *testing.T) {
	f := newFed(t)
	must(t, f.bringTo(t, kafka.Timeline, partHere, recordOf(0, here, postOf(t, here, "a"))))
	r := f.all.Of(partHere)
	at := last(r)
	for what, c := range map[string]struct {
		of      millrace.Partition
		verdict Verdict
	}{
		"answers nobody":                     {partThere, Verdict{At: at, Expected: 1}},
		"has the digest that it should have": {partHere, Verdict{At: at, Expected: at.Digest}},
		"has not had the digest":             {partHere, Verdict{At: Pass{at.At + 1, at.Digest}, Expected: 1}},
		"at 0 of ":                           {partHere, Verdict{Stream: kafka.Features, At: Pass{0, at.Digest}, Expected: 1}},
	} {
		var bad *millrace.Error
		if err := f.all.CondemnDiffering(c.of, &c.verdict); !errors.As(err, &bad) || bad.Field != "partition" || !strings.Contains(bad.Detail, what) || bad.WayOut == "" {
			t.Errorf("a verdict on one that %s: %v", what, err)
		}
	}
	f.want(t, "by verdicts that do not fit", partHere, Ready, "")
	waitsForReaders(t, r, func() {
		must(t, f.all.CondemnDiffering(partHere, &Verdict{Stream: kafka.Timeline, At: at, Expected: 1, Agreed: 0, Peer: "another"}))
	})
	if why, _ := r.Why(); !strings.Contains(why.Detail, fmt.Sprintf("at %d of %s its digest is %x, and should be 1 as that of another; at 0 they were equal", at.At, kafka.Timeline, at.Digest)) {
		t.Errorf("it says %s", why.Detail)
	}
	f.want(t, "condemned", partHere, Quarantined, Differs)
	if err := f.store.Quarantined(partHere); err == nil || whyQuarantined(err).Reason != Differs {
		t.Errorf("the store says %v", err)
	}
}

// waitsForReaders fails if do ends while somebody reads a replica.
func waitsForReaders(t *testing.T, r *Replica, do func()) {
	t.Helper()
	r.RLock()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	for r.mu.TryRLock() { // until do waits to write
		r.RUnlock()
		select {
		case <-done:
			t.Error("it does not wait for those who read")
			r.RUnlock()
			return
		default:
			runtime.Gosched()
		}
	}
	r.RUnlock()
	<-done
}

func last(r *Replica) Pass {
	trail := r.Trail()[kafka.Timeline]
	return trail[len(trail)-1]
}

// ownBackups fail a test that takes them.
type ownBackups struct{}

func (ownBackups) Rest(context.Context, time.Duration) {}

func (ownBackups) Forget(millrace.Partition) error                                        { return nil }
func (ownBackups) Healed(context.Context, millrace.Partition, Why, Backup, time.Duration) {}
func (ownBackups) Newest(context.Context, millrace.Partition) iter.Seq2[Backup, error] {
	return func(func(Backup, error) bool) {}
}
func (ownBackups) Restore(context.Context, millrace.Partition, Backup, func(string)) error {
	return fmt.Errorf("it is of the replica that differs")
}

// Where the log has lost its beginning, a backup is taken that another node
// made, or one of when the replica was right.
func TestBackupsOfAReplicaThatDiffersAreNotTrusted(t *testing.T) {
	var r Replica
	r.life.good = agreement{kafka.Timeline, 100}
	for _, c := range []struct {
		node millrace.NodeID
		at   millrace.Offset
		want bool
	}{{"self", 100, true}, {"self", 101, false}, {"other", 101, true}, {"", 101, false}} {
		b := Backup{Node: c.node, Applied: [kafka.Streams]millrace.Offset{c.at, 1000}}
		if got := r.trusts(&b, "self"); got != c.want {
			t.Errorf("a backup of %q at %d: %t, want %t", c.node, c.at, got, c.want)
		}
	}
}

// BenchmarkBring is what ingest costs with its marks: a log in large fetches, as
// a replica that catches up has them.
func BenchmarkBring(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	log := logOf(b, 20_000, random)
	for b.Loop() {
		f := newFed(b)
		for f.next < len(log) {
			f.bring(b, log, 5000)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(log)), "ns/record")
}
