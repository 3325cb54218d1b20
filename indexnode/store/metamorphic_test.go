package store

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/tally"
)

// TestMetamorphic does random things to stores with random options, and
// compares them with the oracle at the offsets they say they are at: a million
// of them or what two minutes allow, as under the race detector; with -short
// for 3 s.
//
// MILLRACE_METAMORPHIC says how long instead, MILLRACE_SEED repeats one run.
func TestMetamorphic(t *testing.T) {
	enough, length := 1_000_000, 2*time.Minute
	if testing.Short() {
		length = 3 * time.Second
	}
	if v := os.Getenv("MILLRACE_METAMORPHIC"); v != "" {
		var err error
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
		enough = math.MaxInt
	}
	if v := os.Getenv("MILLRACE_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		runMeta(t, seed)
		return
	}
	runs, ops := 0, 0
	for start := time.Now(); time.Since(start) < length && ops < enough && !t.Failed(); runs++ {
		ops += runMeta(t, rand.Uint64())
	}
	t.Logf("%d operations in %d runs", ops, runs)
}

const metaOps = 4_000

func runMeta(t *testing.T, seed uint64) (ops int) {
	m := newMeta(t, seed)
	defer func() {
		if t.Failed() {
			t.Logf("repeat with MILLRACE_SEED=%d go test -run TestMetamorphic ./indexnode/store", seed)
		}
	}()
	for m.ops < metaOps && !t.Failed() {
		m.step()
	}
	m.compareAll()
	m.close(m.s)
	return m.ops
}

// metaPartitions are the partitions in play, one of them the last.
var metaPartitions = []millrace.Partition{0, 1, 719}

type meta struct {
	*script
	t     *testing.T
	fs    *vfs.MemFS
	s     *Store
	opts  Options
	ops   int
	dirs  int
	parts map[millrace.Partition]*metaPart
}

// metaPart is a partition's log, and the oracle folded up to applied.
type metaPart struct {
	log     []entry
	applied int
	oracle  *oracle
	// A restore begins the counts anew:
	restored int // where
	counts   map[millrace.ContentType]tally.Counts
}

// entry is a record of either stream.
type entry struct {
	clock    millrace.Time
	timeline millrace.Timeline
	record   millrace.Record
	features *Features
}

var metaRetention = map[millrace.ContentType]Retention{
	"counted": {MaxCount: 9},
	"aged":    {MaxAge: 300 * time.Millisecond},
	"both":    {MaxCount: 14, MaxAge: 200 * time.Millisecond},
}

// script makes up the log.
type script struct {
	rng   *rand.Rand
	types []millrace.ContentType
	ids   int
	now   millrace.Time
}

func newScript(seed uint64) *script {
	s := &script{rng: rand.New(rand.NewPCG(seed, 1)), types: []millrace.ContentType{"post", "post", "counted", "aged", "both"}}
	s.ids = 5 + s.rng.IntN(200)
	return s
}

func (s *script) timeline() millrace.Timeline {
	return millrace.Timeline{Entity: millrace.Entity("e" + strconv.Itoa(s.rng.IntN(3))), Type: s.types[s.rng.IntN(len(s.types))]}
}

func (s *script) id() millrace.RecordID {
	return millrace.RecordID("r" + strconv.Itoa(s.rng.IntN(s.ids)))
}

func (s *script) entry() entry {
	r := s.rng
	s.now += millrace.Time(r.IntN(4))
	e := entry{clock: s.now - millrace.Time(r.IntN(3)), timeline: s.timeline()}
	if r.IntN(12) == 0 {
		e.features = &Features{Subject: "s" + strconv.Itoa(r.IntN(5)), Version: int64(r.IntN(20)), Time: s.now, Schema: 5, Body: s.body()}
		return e
	}
	e.record = millrace.Record{
		ID:      s.id(),
		Time:    s.now,
		Version: int64(r.IntN(4)),
		Deleted: r.IntN(10) == 0,
		Schema:  millrace.Fingerprint(r.IntN(3)),
		Body:    s.body(),
	}
	switch r.IntN(6) {
	case 0:
		e.record.Time = millrace.Time(r.IntN(int(s.now) + 50))
	case 1:
		// Never before MinTime, which no record is: it means "from the beginning".
		e.record.Time = max(millrace.MinTime, e.record.Time-millrace.Time(r.IntN(20)))
	case 2:
		e.record.Time -= e.record.Time % 50 // many of one time
	}
	if r.IntN(4) == 0 {
		e.record.Version = int64(s.now)
	}
	if r.IntN(3) == 0 {
		e.record.Object = millrace.Object("o" + strconv.Itoa(r.IntN(9)))
	}
	return e
}

func (s *script) body() []byte {
	n := s.rng.IntN(60)
	if s.rng.IntN(100) == 0 {
		n = 2000
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(s.rng.Uint32())
	}
	return b
}

func (s *script) options() Options {
	r := s.rng
	return Options{
		MaxBlobBytes:  []int{1, 100, 150, 300, 1000, 8 << 10}[r.IntN(6)],
		MaxDirtyBytes: []int64{1, 1 << 10, 64 << 10, 1 << 20, 1 << 30}[r.IntN(5)],
		MaxHotBytes:   []int64{-1, 2 << 10, 16 << 10, 0}[r.IntN(4)],
		FlushEvery:    -1,
		CacheBytes:    1 << 20,
		Retention:     metaRetention,
		memTableBytes: []uint64{4 << 10, 16 << 10, 256 << 10}[r.IntN(3)],
	}
}

func newMeta(t *testing.T, seed uint64) *meta {
	m := &meta{script: newScript(seed), t: t, fs: vfs.NewCrashableMem(), parts: map[millrace.Partition]*metaPart{}}
	for _, p := range metaPartitions {
		m.parts[p] = &metaPart{oracle: newOracle(metaRetention)}
	}
	m.s = m.open("db")
	return m
}

func (m *meta) open(dir string) *Store {
	m.opts = m.options()
	m.opts.FS = m.fs
	s, err := Open(dir, m.opts)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *meta) close(s *Store) {
	if err := s.Close(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *meta) fail(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("operation %d: %v", m.ops, err)
	}
}

func (m *meta) partition() millrace.Partition {
	return metaPartitions[m.rng.IntN(len(metaPartitions))]
}

func (m *meta) dir() string {
	m.dirs++
	return fmt.Sprintf("d%d", m.dirs)
}

func (m *meta) step() {
	m.ops++
	switch n := m.rng.IntN(1000); {
	case n < 600:
		m.apply()
	case n < 730:
		m.read(m.s, m.partition())
	case n < 780:
		m.find(m.s, m.partition())
	case n < 860:
		m.newest(m.s, m.partition())
	case n < 900:
		m.features(m.s, m.partition())
	case n < 930:
		m.fail(m.s.Flush())
	case n < 950:
		p := m.partition()
		m.fail(m.s.Sweep(m.t.Context(), p, nil))
		m.compare(m.s, p)
	case n < 965:
		m.check(m.s, m.partition())
	case n < 975:
		m.close(m.s)
		m.s = m.open("db")
		m.expectApplied()
	case n < 988:
		m.crash()
	case n < 993:
		m.restore()
	case n < 998:
		m.replicate()
	default:
		p := m.partition()
		m.fail(m.s.DropPartition(p))
		m.parts[p].restored, m.parts[p].counts = 0, nil
		m.rewind(p, 0)
		m.compare(m.s, p)
	}
}

// apply applies a run of the log to some partitions, writing it first where it
// ends.
func (m *meta) apply() {
	var b Batch
	ends := map[millrace.Partition]int{}
	for range 1 + m.rng.IntN(2) {
		p := m.partition()
		if _, twice := ends[p]; twice {
			continue
		}
		ends[p] = m.batch(&b, p, 1+m.rng.IntN(30))
	}
	_, err := m.s.Apply(&b, nil)
	m.fail(err)
	for p, end := range ends {
		m.ops += end - m.parts[p].applied
		m.forward(p, end)
	}
}

func (m *meta) batch(b *Batch, p millrace.Partition, n int) (end int) {
	part := m.parts[p]
	for len(part.log) < part.applied+n {
		part.log = append(part.log, m.entry())
	}
	end = part.applied + n
	putEntries(b, p, part.log[part.applied:end])
	b.SetApplied(p, Content, millrace.Offset(end))
	b.SetApplied(p, FeatureStream, millrace.Offset(end))
	return end
}

func putEntries(b *Batch, p millrace.Partition, log []entry) {
	for _, e := range log {
		b.SetClock(p, e.clock)
		if e.features != nil {
			b.PutFeatures(p, e.timeline.Entity, *e.features)
		} else {
			b.Put(p, e.timeline, e.record)
		}
	}
}

// forward folds the log into the oracle.
func (m *meta) forward(p millrace.Partition, end int) {
	part := m.parts[p]
	fold(part.oracle, part.log[part.applied:end])
	part.applied = end
}

func fold(o *oracle, log []entry) {
	for _, e := range log {
		o.clock = max(o.clock, e.clock)
		if e.features != nil {
			o.putFeatures(e.timeline.Entity, *e.features)
		} else {
			o.put(e.timeline, e.record)
		}
	}
}

// rewind takes the oracle back.
func (m *meta) rewind(p millrace.Partition, applied int) {
	part := m.parts[p]
	part.oracle, part.applied = newOracle(metaRetention), 0
	m.forward(p, part.restored)
	if part.counts != nil {
		clear(part.oracle.counts)
		for name, c := range part.counts {
			part.oracle.counts[name] = &c
		}
	}
	m.forward(p, applied)
}

// restored takes the oracle back to a restore, with which the counts began anew.
func (m *meta) restored(s *Store, p millrace.Partition, at int) {
	m.t.Helper()
	there, err := scanCounts(s, p)
	m.fail(err)
	c, err := s.Counts(p)
	m.fail(err)
	for name, n := range c.Types {
		if want := there[name]; want == nil || n.Taken != want.Records || n.Newest != want.Newest || n.Hidden != 0 || n.Expired != 0 {
			m.t.Fatalf("operation %d: partition %d is restored, %s: counted %+v, there are %+v", m.ops, p, name, n, want)
		}
	}
	m.parts[p].restored, m.parts[p].counts = at, c.Types
	m.rewind(p, at)
}

func appliedOf(o Offsets) (int, error) {
	if o.Content != o.Features {
		return 0, fmt.Errorf("the two streams, applied together, are at %v", o)
	}
	return max(0, int(o.Content)), nil
}

func (m *meta) expectApplied() {
	m.t.Helper()
	for _, p := range metaPartitions {
		got, err := appliedOf(m.s.Applied(p))
		m.fail(err)
		if got != m.parts[p].applied {
			m.t.Fatalf("operation %d: partition %d is at %d, want %d", m.ops, p, got, m.parts[p].applied)
		}
	}
}

// crash loses what was not synced, or some of it.
func (m *meta) crash() {
	least := map[millrace.Partition]int{}
	for _, p := range metaPartitions {
		least[p], _ = appliedOf(durable(m.s, p))
	}
	fs := m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: m.rng.IntN(101), RNG: m.rng})
	m.close(m.s)
	m.fs = fs
	m.s = m.open("db")
	for _, p := range metaPartitions {
		got, err := appliedOf(m.s.Applied(p))
		m.fail(err)
		if got < least[p] || got > m.parts[p].applied {
			m.t.Fatalf("operation %d: partition %d came back at %d of %d, and was durable to %d", m.ops, p, got, m.parts[p].applied, least[p])
		}
		m.rewind(p, got)
	}
	m.compareAll()
}

// checkpoint takes a checkpoint of some partitions, one of them p, and verifies
// what it says.
func (m *meta) checkpoint(s *Store, p millrace.Partition, dir string) Checkpoint {
	m.t.Helper()
	set := []millrace.Partition{p}
	for _, other := range metaPartitions {
		if m.rng.IntN(2) == 0 {
			set = append(set, other)
		}
	}
	all, err := s.Checkpoint(set, dir)
	m.fail(err)
	m.fail(onlyNamed(m.fs, dir, all))
	for _, c := range all {
		if c.Partition != p {
			continue
		}
		if want := m.parts[p].oracle.digest; c.Digest != want {
			m.t.Fatalf("operation %d: checkpoint has digest %x, want %x", m.ops, c.Digest, want)
		}
		return c
	}
	m.t.Fatalf("operation %d: no checkpoint of partition %d", m.ops, p)
	return Checkpoint{}
}

// onlyNamed verifies that a directory has the files of checkpoints, as long as
// they say, and nothing else.
func onlyNamed(fs vfs.FS, dir string, all []Checkpoint) error {
	sizes := map[string]int64{}
	for _, c := range all {
		for i, f := range c.Files {
			sizes[f.Name] = f.Size
			if i > 0 && c.Files[i-1].Bottom && !f.Bottom {
				return fmt.Errorf("%s stands behind the bottom", f.Name)
			}
		}
	}
	names, err := fs.List(dir)
	if err != nil || len(names) != len(sizes) {
		return fmt.Errorf("%v, want %v: %v", names, sizes, err)
	}
	for _, name := range names {
		if info, err := fs.Stat(fs.PathJoin(dir, name)); err != nil || info.Size() != sizes[name] {
			return fmt.Errorf("%s: %d bytes, want %d: %v", name, info.Size(), sizes[name], err)
		}
	}
	return nil
}

// restore goes back to a checkpoint after more was applied, once or twice.
func (m *meta) restore() {
	p, dir := m.partition(), m.dir()
	c := m.checkpoint(m.s, p, dir)
	at := m.parts[p].applied
	for range 1 + m.rng.IntN(2) {
		for range m.rng.IntN(4) {
			m.apply()
		}
		if m.rng.IntN(2) == 0 {
			m.fail(m.s.Flush())
		}
		m.fail(m.s.Restore(context.Background(), dir, c))
		m.restored(m.s, p, at)
		m.compareAll()
	}
}

// replicate builds a second store from a checkpoint, and a third from one of
// the second, applies the rest of the log in other batches, and compares.
func (m *meta) replicate() {
	p, dir := m.partition(), m.dir()
	c := m.checkpoint(m.s, p, dir)
	other := m.open(m.dir())
	// The replica has counts of its own, and so a part of its own.
	main, replica := m.parts[p], &metaPart{}
	compare := func(begin func(p millrace.Partition, at int)) {
		m.t.Helper()
		replica.log = main.log
		m.parts[p] = replica
		begin(p, main.applied)
		m.compare(other, p)
		m.check(other, p)
		m.parts[p] = main
	}
	begin := func(p millrace.Partition, at int) { m.restored(other, p, at) }
	m.fail(other.Restore(context.Background(), dir, c))
	compare(begin)
	if m.rng.IntN(2) == 0 {
		dir = m.dir()
		c = m.checkpoint(other, p, dir)
		m.close(other)
		other = m.open(m.dir())
		m.fail(other.Restore(context.Background(), dir, c))
		compare(begin)
	}
	at := m.parts[p].applied
	for range 1 + m.rng.IntN(10) {
		m.apply()
	}
	for end := m.parts[p].applied; at < end; {
		next := min(end, at+1+m.rng.IntN(20))
		var b Batch
		putEntries(&b, p, m.parts[p].log[at:next])
		b.SetApplied(p, Content, millrace.Offset(next))
		b.SetApplied(p, FeatureStream, millrace.Offset(next))
		_, err := other.Apply(&b, nil)
		m.fail(err)
		at = next
	}
	compare(m.forward)
	m.close(other)
}

func (m *meta) read(s *Store, p millrace.Partition) {
	m.t.Helper()
	name := m.timeline()
	from := millrace.Time(m.rng.IntN(int(m.now)+2) - 1)
	to := from + millrace.Time(m.rng.IntN(100))
	if m.rng.IntN(4) == 0 {
		from, to = 0, millrace.MaxTime
	}
	m.compareRead(s, p, name, from, to)
}

func (m *meta) compareRead(s *Store, p millrace.Partition, name millrace.Timeline, from, to millrace.Time) {
	m.t.Helper()
	got, err := s.Read(nil, p, name, from, to)
	m.fail(err)
	if want := m.parts[p].oracle.read(name, from, to); !equalRecords(got, want) {
		m.t.Fatalf("operation %d: partition %d, %s from %d to %d:\n got %s want %s%s", m.ops, p, name, from, to, short(got, nil), short(want, nil), drawTimeline(s, p, name))
	}
}

func (m *meta) find(s *Store, p millrace.Partition) {
	m.t.Helper()
	name, id := m.timeline(), m.id()
	got, ok, err := s.Find(p, name, id)
	m.fail(err)
	want, kept := m.parts[p].oracle.find(name, id)
	switch {
	case !kept && ok && !got.Expired:
		m.t.Fatalf("operation %d: partition %d, %s: found %s, which is not there: %+v", m.ops, p, name, id, got)
	case kept && (!ok || got.Expired || !equalRecords([]millrace.Record{got.Record}, []millrace.Record{want})):
		m.t.Fatalf("operation %d: partition %d, %s: found %t %+v, want %+v%s", m.ops, p, name, ok, got, want, drawTimeline(s, p, name))
	}
}

func (m *meta) newest(s *Store, p millrace.Partition) {
	m.t.Helper()
	name, least := m.timeline(), m.rng.IntN(40)
	got, err := readNewest(s, p, name, least)
	m.fail(err)
	all := m.parts[p].oracle.read(name, -1000, millrace.MaxTime)
	want := m.parts[p].oracle.read(name, got.From, millrace.MaxTime)
	if got.From == millrace.MinTime {
		want = all
	}
	if !equalRecords(got.Records, want) {
		m.t.Fatalf("operation %d: partition %d, %s, newest %d from %d:\n got %s want %s%s", m.ops, p, name, least, got.From, short(got.Records, nil), short(want, nil), drawTimeline(s, p, name))
	}
	if len(got.Records) < min(least, len(all)) {
		m.t.Fatalf("operation %d: newest %d of %d: got %d", m.ops, least, len(all), len(got.Records))
	}
}

func (m *meta) features(s *Store, p millrace.Partition) {
	m.t.Helper()
	e := m.timeline().Entity
	got, err := s.Features(p, e)
	m.fail(err)
	if want := m.parts[p].oracle.readFeatures(e); !equalFeatures(got, want) {
		m.t.Fatalf("operation %d: features of %s: got %v, want %v", m.ops, e, got, want)
	}
}

func (m *meta) check(s *Store, p millrace.Partition) {
	m.t.Helper()
	r, err := s.Check(m.t.Context(), p)
	m.fail(err)
	if r.Miscounted != 0 {
		m.t.Fatalf("operation %d: partition %d: the counts of %d types were wrong", m.ops, p, r.Miscounted)
	}
	checkHot(m.t, s)
}

func (m *meta) compareAll() {
	m.t.Helper()
	m.expectApplied()
	for _, p := range metaPartitions {
		m.compare(m.s, p)
		m.check(m.s, p)
	}
}

// compare compares a partition with the oracle in full.
func (m *meta) compare(s *Store, p millrace.Partition) {
	m.t.Helper()
	o := m.parts[p].oracle
	if got := s.Digest(p); got != o.digest {
		m.t.Fatalf("operation %d: partition %d at %d has digest %x, want %x", m.ops, p, m.parts[p].applied, got, o.digest)
	}
	m.fail(compareCounts(s, p, o))
	seen := map[millrace.Timeline]bool{}
	for name, err := range s.Timelines(p) {
		m.fail(err)
		seen[name] = true
	}
	for name := range o.timelines {
		m.compareRead(s, p, name, -1000, millrace.MaxTime)
		if !seen[name] && len(o.read(name, -1000, millrace.MaxTime)) > 0 {
			m.t.Fatalf("operation %d: %s is not among the timelines", m.ops, name)
		}
	}
}
