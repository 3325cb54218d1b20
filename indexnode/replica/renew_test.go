package replica

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
)

// kept is backups in the test's hand. What it restores has one record, "kept",
// of the timeline of an entity.
type kept struct {
	w  *world
	mu sync.Mutex
	// Guarded by mu:
	away     error
	silent   bool            // Newest says nothing for as long as it may
	waits    []time.Duration // which it did
	backups  map[millrace.Partition][]Backup
	damaged  map[string]bool
	failing  error    // the next restore fails so, before it begins
	tried    []string // to be restored
	restored []string
	left     []millrace.Partition // of which what was downloaded was to be removed
	parts    topology.Set         // of which something is there that was downloaded
	hold     chan struct{}        // restoring waits for it to be closed; nil: it does not
	healed   []string             // what was damaged, and where from it was replaced
	mute     bool                 // nothing can be recorded for as long as the node runs
	rests    int
	// restsLong has rests last until the end.
	restsLong bool
}

// newKept gives a world backups, of which there is none yet.
func newKept(w *world) *kept {
	k := &kept{w: w, backups: map[millrace.Partition][]Backup{}, damaged: map[string]bool{}}
	w.backups = k
	return k
}

// heldBack posts to two partitions and gives each a backup, that is restored once hold is
// closed.
func heldBack(w *world) *kept {
	w.post(here)
	w.post(there)
	k := newKept(w)
	k.hold = make(chan struct{})
	k.add(partHere, "a", 1, "")
	k.add(partThere, "b", 1, "")
	return k
}

// add adds a backup that is newer than those before it.
func (k *kept) add(p millrace.Partition, name string, content millrace.Offset, cluster string) {
	k.w.t.Helper()
	consumer, err := streams.NewConsumer(streams.Config{Brokers: kafka.At(k.w.kafka.ListenAddrs()...), Topics: k.w.topics})
	must(k.w.t, err)
	defer consumer.Close()
	id, err := consumer.LogID(k.w.ctx)
	must(k.w.t, err)
	if cluster != "" {
		id.Cluster = cluster
	}
	origin := Origin{Cluster: id.Cluster, Topics: id.Topics, Epochs: [kafka.Streams]int32{-1, -1}, Whole: true}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.backups[p] = append([]Backup{{Name: name, Taken: time.Now(), Applied: [kafka.Streams]millrace.Offset{content, 0}, Origin: origin.encode()}}, k.backups[p]...)
}

func (k *kept) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *kept) names() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.restored, " ")
}

func (k *kept) Newest(ctx context.Context, p millrace.Partition) iter.Seq2[Backup, error] {
	return func(yield func(Backup, error) bool) {
		k.mu.Lock()
		all, away, silent := slices.Clone(k.backups[p]), k.away, k.silent
		k.mu.Unlock()
		if silent {
			began := time.Now()
			<-ctx.Done()
			k.set(func() { k.waits = append(k.waits, time.Since(began)) })
		}
		for _, b := range all {
			if away = cmp.Or(away, ctx.Err()); away == nil && !yield(b, nil) {
				return
			}
		}
		away = cmp.Or(away, ctx.Err())
		if away != nil {
			yield(Backup{}, away)
		}
	}
}

func (k *kept) Rest(ctx context.Context, took time.Duration) {
	long := false
	k.set(func() { k.rests, long = k.rests+1, k.restsLong })
	if long {
		<-ctx.Done()
	}
}

func (k *kept) Forget(p millrace.Partition) error {
	k.set(func() {
		k.left = append(k.left, p)
		k.parts.Remove(p)
	})
	return nil
}

// tidy reports whether nothing is there that was downloaded.
func (k *kept) tidy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.parts.Len() == 0
}

func (k *kept) forgotten() (all []millrace.Partition) {
	k.set(func() { all = slices.Clone(k.left) })
	return all
}

func (k *kept) Restore(ctx context.Context, p millrace.Partition, b Backup, tell func(string)) error {
	tell("it begins")
	var failing error
	k.set(func() {
		k.tried = append(k.tried, b.Name)
		failing, k.failing = k.failing, nil
	})
	if failing != nil {
		return failing
	}
	if err := k.w.store.DropPartition(p); err != nil {
		return err
	}
	k.mu.Lock()
	hold, damaged := k.hold, k.damaged[b.Name]
	k.parts.Add(p)
	k.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if damaged {
		return errors.New("a flipped bit")
	}
	e := here
	if p == partThere {
		e = there
	}
	var batch store.Batch
	batch.Put(p, millrace.Timeline{Entity: e, Type: "post"}, millrace.Record{ID: "kept", Time: 1, Version: 1})
	batch.SetOrigin(p, b.Origin)
	batch.SetApplied(p, store.Content, b.Applied[0])
	batch.SetApplied(p, store.FeatureStream, b.Applied[1])
	_, err := k.w.store.Apply(&batch, nil)
	k.set(func() {
		k.restored = append(k.restored, b.Name)
		k.parts.Remove(p)
	})
	return err
}

func (k *kept) Healed(ctx context.Context, p millrace.Partition, was Why, b Backup, _ time.Duration) {
	var mute bool
	k.set(func() {
		k.healed, mute = append(k.healed, fmt.Sprintf("%d: %s, by %q", p, was.Detail, b.Name)), k.mute
	})
	if mute {
		<-ctx.Done()
		k.set(func() { k.healed = append(k.healed, "given up") })
	}
}

// A damaged partition that is replaced, by a backup or by the log, is recorded,
// with what was found; one that is new here was not damaged.
func TestHealingIsTold(t *testing.T) {
	for _, backed := range []bool{true, false} {
		w := newWorld(t)
		w.posts(5, here)
		k := newKept(w)
		from := ""
		if backed {
			from = "new"
			k.add(partHere, from, 4, "")
		}
		w.start(partHere)
		w.until("it is ready", w.is(partHere, Ready, ""))
		w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
		want := fmt.Sprintf("[%d: a flipped bit, by %q]", partHere, from)
		w.until("it is recorded", func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			return len(k.healed) > 0
		})
		w.until("it is ready again", w.is(partHere, Ready, ""))
		k.set(func() {
			if got := fmt.Sprint(k.healed); got != want {
				t.Errorf("recorded %s, want %s", got, want)
			}
		})
		w.stop()
	}
}

// A partition that is whole again answers, though what was found cannot be
// recorded; a node that stops waits for no record.
func TestNoReplicaWaitsForItsRecord(t *testing.T) {
	for _, backed := range []bool{true, false} {
		w := newWorld(t)
		w.post(here)
		k := newKept(w)
		k.mute = true
		if backed {
			k.add(partHere, "new", 1, "")
		}
		w.start(partHere)
		w.until("it is ready", w.is(partHere, Ready, ""))
		w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
		w.until("it is ready again", func() bool {
			var begun int
			k.set(func() { begun = len(k.healed) })
			return begun == 1 && w.is(partHere, Ready, "")()
		})
		w.stop()
		k.set(func() {
			if len(k.healed) != 2 {
				t.Errorf("recorded: %q", k.healed)
			}
		})
	}
}

// The rest after a restore that nobody waits for is before the next one: who is whole
// serves.
func TestWhoIsRestoredDoesNotRest(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	k := newKept(w)
	k.restsLong = true
	k.add(partHere, "new", 1, "")
	w.waited = func(millrace.Partition) bool { return false }
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	w.until("its lane rests", func() (rests bool) { k.set(func() { rests = k.rests == 1 }); return rests })
}

// A partition of which nothing is here comes from its newest backup and then
// from the log, never from the log's beginning; a log that was cut up to there
// is no hole.
func TestNewReplicaComesFromItsBackup(t *testing.T) {
	for _, cut := range []bool{false, true} {
		w := newWorld(t)
		w.posts(5, here)
		if cut {
			w.trim(partHere, 3)
		}
		k := newKept(w)
		k.add(partHere, "old", 1, "")
		k.add(partHere, "new", 3, "")
		w.start(partHere)
		w.until("it is ready", w.is(partHere, Ready, ""))
		if got := w.count(here); got != 3 {
			t.Errorf("cut %v: %d records; want that of the backup and two of the log", cut, got)
		}
		if got := k.names(); got != "new" {
			t.Errorf("cut %v: restored %q, want the newest alone", cut, got)
		}
		w.stop()
	}
}

// What others serve is restored one after the other, with rests; what becomes
// scarce meanwhile does not wait for that.
func TestRestoresThatNobodyWaitsFor(t *testing.T) {
	w := newWorld(t)
	k := heldBack(w)
	var scarce atomic.Bool
	w.waited = func(millrace.Partition) bool { return scarce.Load() }
	w.start(partHere, partThere)
	restoring := func() (n int) {
		for _, p := range []millrace.Partition{partHere, partThere} {
			if w.replicas.replicas[p].State() == Restoring {
				n++
			}
		}
		return n
	}
	w.until("one is restored", func() bool { return restoring() > 0 })
	time.Sleep(50 * time.Millisecond)
	if restoring() != 1 {
		t.Errorf("two are restored at a time that nobody waits for: %s", w.states())
	}
	scarce.Store(true)
	w.until("both are restored", func() bool { return restoring() == 2 })
	close(k.hold)
	w.until("they are ready", func() bool { return w.is(partHere, Ready, "")() && w.is(partThere, Ready, "")() })
	w.stop()
	if k.rests != 1 {
		t.Errorf("%d rests; only one restore was not waited for", k.rests)
	}
}

// Where neither the log nor a backup reaches, a partition is never ready, and
// says so; when a backup comes it is.
func TestNoReplicaWithAHole(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	w.trim(partHere, 3)
	k := newKept(w)
	k.add(partHere, "other", 4, "another Kafka")
	k.add(partHere, "behind", 2, "")
	w.start(partHere)
	w.until("it says why it is not ready", func() bool {
		why, _ := w.replicas.Of(partHere).Why()
		return w.is(partHere, Quarantined, LogBeginsLater)() && strings.Contains(why.Detail, "begins at 3")
	})
	if got := k.names(); got != "" {
		t.Errorf("restored %q", got)
	}
	k.add(partHere, "right", 3, "")
	w.until("it is ready", w.is(partHere, Ready, ""))
	if got := w.count(here); got != 3 {
		t.Errorf("%d records", got)
	}
}

// Where the log has its beginning, but backups are of another one or have what was
// before it, the log would make a replica that lacks that: it is not ready before
// one of those can be restored.
func TestTheLogAloneIsNotAllThatWas(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	k := newKept(w)
	k.add(partHere, "before", 4, "another Kafka")
	w.start(partHere)
	w.until("it says why it is not ready", func() bool {
		why, _ := w.replicas.Of(partHere).Why()
		return w.is(partHere, Quarantined, OtherLog)() && strings.Contains(why.Detail, "backup before of ")
	})
	if w.replicas.has(partHere) {
		t.Error("the new log is read all the same")
	}
	k.add(partHere, "after", 0, "")
	k.set(func() {
		b := &k.backups[partHere][0]
		b.Node, b.Origin = "elsewhere", bytes.Replace(b.Origin, []byte(`"whole":true`), []byte(`"whole":true,"past":true`), 1)
	})
	whole := func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 6 }
	w.until("it is ready, with what was before the log", whole)
	w.replicas.Condemn(partHere, Why{Differs, "for a test"})
	w.until("it comes from the backup again", func() bool { return k.names() == "after after" && whole() })
	w.stop()
	w.start(partHere) // which remembers that the log is not all
	w.until("it is ready again", whole)
	k.set(func() { k.damaged["after"] = true })
	w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	w.until("it waits for a backup", func() bool {
		why, _ := w.replicas.Of(partHere).Why()
		return w.is(partHere, Quarantined, Corrupt)() && strings.Contains(why.Detail, "it is not renewed: backup after of ")
	})
}

// addWithPast adds a backup, of another node, that has what was before the log.
func (k *kept) addWithPast(p millrace.Partition, name string) {
	k.w.t.Helper()
	k.add(p, name, 0, "")
	k.set(func() {
		b := &k.backups[p][0]
		b.Node, b.Origin = "elsewhere", bytes.Replace(b.Origin, []byte(`"whole":true`), []byte(`"whole":true,"past":true`), 1)
	})
}

// beAway has the backups not answer.
func (k *kept) beAway() {
	k.set(func() { k.away = errors.New("503 slow down") })
}

// A quarantined replica that has what was before the log is known to have it
// after a restart: while the backups do not answer it is not read from the log.
func TestAQuarantineForgetsNoPast(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.post(here)
	}
	k := newKept(w)
	k.addWithPast(partHere, "after")
	w.backups, w.seek = k, 300*time.Millisecond
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 6 })
	for _, cause := range []string{differsText, "a flipped bit"} {
		must(t, w.store.Flush())
		k.beAway()
		must(t, w.store.Quarantine(partHere, errors.New(cause)))
		w.stop()
		w.start(partHere)
		w.until("it waits for the backups", w.is(partHere, Quarantined, BackupAway))
		time.Sleep(2 * w.seek)
		w.replicas.Of(partHere).again.Store(0)
		w.replicas.Wake()
		w.until("it was tried again", func() bool { return w.replicas.Of(partHere).again.Load() > 0 })
		k.set(func() { k.away = nil })
		w.replicas.Of(partHere).again.Store(0)
		w.until("it is ready again", w.is(partHere, Ready, ""))
		if n := w.count(here); n != 6 {
			t.Fatalf("%s: it has %d records; want that of before the log and five of it", cause, n)
		}
	}
}

// A replica that was read from the log alone, and so differs from others that have
// what was before it, comes from a backup that has that; one that has not does not
// do, though it is newer.
func TestAReplicaThatLacksThePastComesFromABackup(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.post(here)
	}
	k := newKept(w)
	w.backups = k
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 5 })
	k.addWithPast(partHere, "after")
	k.add(partHere, "without", 4, "")
	k.set(func() { k.backups[partHere][0].Node = "another" })
	w.replicas.Condemn(partHere, Why{Differs, "for a test"})
	w.until("it is ready again", w.is(partHere, Ready, ""))
	if got := k.names(); got != "after" || w.count(here) != 6 {
		t.Errorf("restored %q, %d records", got, w.count(here))
	}
}

// While the backups do not answer, a replica of which nothing is here is not read
// from the log where another replica of the node has what was before that.
func TestWhatOthersHaveOfThePastIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.post(here)
	}
	k := newKept(w)
	k.addWithPast(partHere, "after")
	k.addWithPast(partThere, "there")
	w.backups, w.seek = k, 300*time.Millisecond
	w.start(partThere)
	w.until("the other is ready", w.is(partThere, Ready, ""))
	k.beAway()
	w.want(partHere, partThere)
	w.until("it waits for the backups", w.is(partHere, CatchingUp, BackupAway))
	time.Sleep(3 * w.seek)
	k.set(func() { k.away = nil })
	w.until("it is ready", w.is(partHere, Ready, ""))
	if got := k.names(); got != "there after" || w.count(here) != 6 {
		t.Errorf("restored %q, %d records", got, w.count(here))
	}
}

// Where nothing of a partition is here, and the backups that kept it from the log
// are removed, it is read from the log's beginning.
func TestBackupsThatWereInTheWayAreRemoved(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	k := newKept(w)
	k.add(partHere, "before", 4, "another Kafka")
	w.start(partHere)
	w.until("it says why it is not ready", w.is(partHere, Quarantined, OtherLog))
	k.set(func() { clear(k.backups) })
	w.replicas.Of(partHere).again.Store(0)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 5 })
}

// What somebody finds of a replica that is being replaced is about what gives
// way: it ends no renewal, and is not held against what that brings.
func TestWhatIsBeingReplacedIsNotCondemned(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	k := newKept(w)
	k.add(partHere, "new", 4, "")
	w.start(partHere)
	w.until("it is ready", w.is(partHere, Ready, ""))
	hold := make(chan struct{})
	k.set(func() { k.hold = hold })
	w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	w.until("it is being restored", w.is(partHere, Restoring, Restores))
	for _, reason := range []Reason{Corrupt, Differs, ByOperator} {
		if w.replicas.Condemn(partHere, Why{reason, "found by who began earlier"}) {
			t.Errorf("it is condemned (%s)", reason)
		}
	}
	close(hold)
	w.until("it is ready again", w.is(partHere, Ready, ""))
	if got := k.names(); got != "new new" {
		t.Errorf("restored %q", got)
	}
}

// A backup that does not say which log it is of is not taken, and that is told
// in words.
func TestABackupOfNoLogIsNotTaken(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.hosted(partHere)
	for what, row := range map[string][]byte{"it has no origin": nil, "origin: ": []byte("{")} {
		cfg := f.all.cfg
		cfg.Backups = unknown{row: row}
		f.all.Configure(cfg)
		_, err := f.all.restore(t.Context(), f.all.Of(partHere), search{})
		if err == nil || !strings.Contains(err.Error(), "backup odd does not say which log it is of: "+what) {
			t.Errorf("it says %v", err)
		}
	}
}

// unknown is one backup with an origin in the test's hand, which fails a test
// that takes it.
type unknown struct {
	ownBackups
	row []byte
}

func (u unknown) Newest(context.Context, millrace.Partition) iter.Seq2[Backup, error] {
	return func(yield func(Backup, error) bool) { yield(Backup{Name: "odd", Origin: u.row}, nil) }
}

// A place of backups that does not answer is waited for, and told; a damaged
// backup gives way to an older one.
func TestBackupsAwayOrDamaged(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	w.trim(partHere, 3)
	k := newKept(w)
	k.add(partHere, "old", 3, "")
	k.add(partHere, "new", 4, "")
	k.away = errors.New("503 slow down")
	k.damaged["new"] = true
	w.start(partHere)
	w.until("it waits for the bucket", w.is(partHere, Quarantined, BackupAway))
	k.set(func() { k.away = nil })
	w.until("it is ready", w.is(partHere, Ready, ""))
	if got := k.names(); got != "old" {
		t.Errorf("restored %q", got)
	}
}

// A replica that could not ask for backups says so until it can, also while it waits
// for its turn to ask again.
func TestBackupsAwayIsToldUntilTheyAreBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &Replicas{unhurried: make(chan struct{}, 1)}
		all.unhurried <- struct{}{} // another's turn, which lasts
		for told, want := range map[Reason]Reason{KafkaAway: Restores, BackupAway: BackupAway} {
			var r Replica
			r.explain(Why{Reason: told})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, _, err := all.turn(ctx, &r)
			cancel()
			if why, _ := r.Why(); err == nil || why.Reason != want {
				t.Errorf("after %s it says %s; %v", told, why.Reason, err)
			}
		}
	})
}

// A backup that this node's own disk cannot take is not damaged: no older one is
// taken instead, nor the log, and it is tried again. That is told.
func TestAFullDiskIsNoDamagedBackup(t *testing.T) {
	for failing, reason := range map[error]Reason{
		fmt.Errorf("store: restore partition 1: %w", store.ErrDiskFull): DiskFull,
		&os.PathError{Op: "write", Path: "in", Err: syscall.ENOSPC}:     DiskFull,
		fmt.Errorf("%w: write: %w", store.ErrFailed, syscall.EIO):       StoreFailing,
	} {
		w := newWorld(t)
		for range 5 {
			w.post(here)
		}
		k := newKept(w)
		w.backups = k
		w.start(partHere)
		w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 5 })
		k.add(partHere, "old", 1, "")
		k.add(partHere, "new", 3, "")
		k.set(func() { k.failing = failing })
		w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
		w.until("it failed", w.is(partHere, Quarantined, reason))
		if n := w.count(here); n != 5 {
			t.Errorf("%v: it has %d records, and nothing is restored yet", failing, n)
		}
		w.replicas.Of(partHere).again.Store(0)
		w.replicas.Wake()
		w.until("it is ready again", w.is(partHere, Ready, ""))
		k.set(func() {
			if got := strings.Join(k.tried, " "); got != "new new" {
				t.Errorf("%v: tried %q", failing, got)
			}
		})
		w.stop()
	}
}

// What a backup may be to blame for gives way to an older one.
func TestWhatIsNotThisNodesDisk(t *testing.T) {
	for _, err := range []error{
		errors.New("a flipped bit"), fmt.Errorf("%w: a table is not taken", store.ErrFailed), fmt.Errorf("%w: %w", store.ErrFailed, syscall.ENOENT),
		fmt.Errorf("%w: %w", store.ErrRefused, syscall.EIO), &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED},
	} {
		if failedHere(err) {
			t.Errorf("%v", err)
		}
	}
}

// A replica of which nothing was here is looked after again when its restore broke
// off, for whatever reason.
func TestARestoreThatBrokeOffIsTriedAgain(t *testing.T) {
	for reason, err := range map[Reason]error{BackupAway: &awayError{errSilent}, DiskFull: &hereError{store.ErrDiskFull}} {
		f := newIdle(t, vfs.NewMem())
		f.all.cfg.Backups = ownBackups{}
		f.hosted(partHere)
		r := f.all.Of(partHere)
		f.all.step(r, Replaced, Why{Restores, "a backup"})
		f.all.finishOne(r, &renewal{err: err})
		f.want(t, "then", partHere, Quarantined, reason)
		r.again.Store(0)
		if got := f.all.unread(); !slices.Equal(got, []*Replica{r}) {
			t.Errorf("%s: %d are tried again", reason, len(got))
		}
	}
}

// A place of backups that takes questions and says nothing is waited for once,
// and not once for each of the partitions that ask it in turn, where the log has
// its beginning.
func TestSilentBackupsAreWaitedForOnce(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	k := newKept(w)
	k.silent = true
	w.seek = 3 * time.Second
	hosted := []millrace.Partition{partHere}
	for p := range partition.All() {
		if p != partHere && len(hosted) < maxRenewing+maxRenewing/2 {
			hosted = append(hosted, p)
		}
	}
	w.start(hosted...)
	w.until("all are read from the log", func() bool {
		for _, p := range hosted {
			if !w.is(p, Ready, "")() {
				return false
			}
		}
		return w.count(here) == 1
	})
	k.set(func() {
		long := 0
		for _, waited := range k.waits {
			if waited > w.seek/2 {
				long++
			}
		}
		if len(k.waits) < len(hosted) || long > maxRenewing {
			t.Errorf("%d of %d partitions asked, and %d of them for long: %v", len(k.waits), len(hosted), long, k.waits)
		}
	})
}

// A download may take longer than the search for a backup, and the search goes on
// behind it.
func TestADownloadIsNoSearch(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	k := newKept(w)
	k.add(partHere, "old", 2, "")
	k.add(partHere, "new", 3, "")
	k.damaged["new"] = true
	hold := make(chan struct{})
	k.hold = hold
	w.seek = 300 * time.Millisecond
	w.start(partHere)
	w.until("it is being restored", w.is(partHere, Restoring, Restores))
	time.Sleep(2 * w.seek)
	k.set(func() { k.hold = nil })
	close(hold)
	w.until("it is ready", w.is(partHere, Ready, ""))
	if got := k.names(); got != "old" || w.count(here) != 4 {
		t.Errorf("restored %q, %d records; want that of the older backup and three of the log", got, w.count(here))
	}
}

// A corrupt partition comes from its backup where the log was cut; while it
// does it answers nobody, and a partition that is taken away meanwhile and
// given back waits until nothing writes into it.
func TestCorruptPartitionComesFromItsBackup(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	k := newKept(w)
	w.start(partHere)
	w.until("it is ready", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 5 })
	w.trim(partHere, 4)
	k.add(partHere, "new", 4, "")
	hold := make(chan struct{})
	k.set(func() { k.hold = hold })
	w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	w.until("it is being restored", w.is(partHere, Restoring, Restores))
	w.want()
	w.until("it is gone", w.is(partHere, Absent, Moved))
	k.set(func() { k.hold = nil })
	w.want(partHere)
	w.until("it is ready again", w.is(partHere, Ready, ""))
	if got := w.count(here); got != 2 {
		t.Errorf("%d records; want that of the backup and one of the log", got)
	}
}

// What was downloaded before a restore broke off goes once there is no next try:
// where the log brings what a damaged backup does not, and where the partition is
// taken away, during a restore and between two.
func TestNoNextTryLeavesNoDownload(t *testing.T) {
	w := newWorld(t)
	w.posts(5, here)
	k := newKept(w)
	k.add(partHere, "new", 3, "")
	k.damaged["new"] = true
	w.start(partHere)
	w.until("the log brings it", func() bool { return w.is(partHere, Ready, "")() && w.count(here) == 5 })
	if !k.tidy() {
		t.Error("what was downloaded of a damaged backup stays behind the log")
	}

	w.trim(partHere, 3)
	w.replicas.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	w.until("it waits for another backup", func() bool { return w.is(partHere, Quarantined, Corrupt)() && !k.tidy() })
	w.want()
	w.until("it is gone", w.is(partHere, Absent, Moved))
	w.until("what was downloaded between two tries is gone, too", k.tidy)

	hold := make(chan struct{}) // for ever
	k.set(func() { k.hold = hold })
	w.want(partHere)
	w.until("it is being restored", func() bool { return w.is(partHere, Restoring, Restores)() && !k.tidy() })
	w.want()
	w.until("it is gone again", w.is(partHere, Absent, Moved))
	w.until("what was downloaded is gone, too", k.tidy)
}

// Replicas that are stopped leave nobody behind who writes into the store.
func TestStopWaitsForRenewals(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	k := newKept(w)
	k.add(partHere, "new", 1, "")
	k.hold = make(chan struct{}) // for ever
	w.start(partHere)
	w.until("it is being restored", w.is(partHere, Restoring, Restores))
	w.stop() // closes the store
	if w.replicas.Of(partHere).renewal == nil {
		t.Fatal("there was none")
	}
	select {
	case <-w.replicas.Of(partHere).renewal.done:
	default:
		t.Error("a renewal goes on behind its store")
	}
}
