package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/schemas"
)

// logOne is a log as Kafka tells of it.
var logOne = kafka.LogID{Cluster: "one", Topics: [kafka.Streams]kafka.TopicID{{1}, {2}}}

// has gives the store offsets of a partition, of logOne, as of one that was
// whole.
func (f *fed) has(t testing.TB, p millrace.Partition, content, features millrace.Offset) {
	t.Helper()
	var b store.Batch
	b.SetOrigin(p, OriginOf(logOne, false))
	b.SetApplied(p, store.Content, content)
	b.SetApplied(p, store.FeatureStream, features)
	_, err := f.store.Apply(&b, nil)
	must(t, err)
}

// hosted has the replicas hosted that are named, and no other.
func (f *fed) hosted(parts ...millrace.Partition) {
	f.all.Want(setOf(parts...))
	f.all.host(time.Now())
}

// attach judges a replica against a log from begin to end, and returns where it
// is read on.
func (f *fed) attach(t testing.TB, p millrace.Partition, begin, end [kafka.Streams]millrace.Offset) map[kafka.TopicPartition]kafka.Position {
	t.Helper()
	now := logNow{id: logOne, begin: map[kafka.TopicPartition]millrace.Offset{}, end: map[kafka.TopicPartition]millrace.Offset{}}
	for s, tp := range both(p) {
		now.begin[tp], now.end[tp] = begin[s], end[s]
	}
	at := map[kafka.TopicPartition]kafka.Position{}
	f.all.attachOne(t.Context(), f.all.Of(p), now, at)
	return at
}

func (f *fed) want(t testing.TB, when string, p millrace.Partition, s State, reason Reason) {
	t.Helper()
	r := f.all.Of(p)
	if why, _ := r.Why(); r.State() != s || why.Reason != reason {
		t.Errorf("%s it is %s (%s: %s), want %s (%s)", when, r.State(), why.Reason, why.Detail, s, reason)
	}
}

type offsets = [kafka.Streams]millrace.Offset

// A replica that has nothing begins at the log's beginning, and one that has
// something goes on there.
func TestWhereReadingBegins(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partThere, 3, 2)
	f.hosted(partHere, partThere)
	f.want(t, "with nothing", partHere, CatchingUp, Behind)
	f.want(t, "with something", partThere, Stale, KafkaAway)
	if f.all.Whole(partHere) || !f.all.Whole(partThere) {
		t.Error("a backup would be made of what is not whole, or none of what is")
	}
	for p, want := range map[millrace.Partition]offsets{partHere: {0, 0}, partThere: {3, 2}} {
		at := f.attach(t, p, offsets{}, offsets{9, 5})
		for s, tp := range both(p) {
			if at[tp] != (kafka.Position{Next: want[s], Epoch: -1}) || len(at) != kafka.Streams {
				t.Errorf("%v is read from %+v, want %d", tp, at[tp], want[s])
			}
		}
		r := f.all.Of(p)
		if r.Applied() != want || r.reading.Load()%2 != 1 || f.store.Applied(p) != (store.Offsets{Content: want[0], Features: want[1]}) {
			t.Errorf("%d is at %v, the store at %+v", p, r.Applied(), f.store.Applied(p))
		}
		if r.Log() != logOne.String() {
			t.Errorf("%d is of the log %q", p, r.Log())
		}
		if row, err := f.store.Origin(p); err != nil || LogOf(row) != logOne.String() {
			t.Errorf("the store of %d is of the log %q: %v", p, LogOf(row), err)
		}
	}
	f.want(t, "reading,", partHere, CatchingUp, Behind)
}

// A replica is not read before it is known from where on: what a fetch from before
// brings would be taken for what comes next.
func TestReadingBeginsBehindItsOffsets(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partHere, 3, 2)
	f.hosted(partHere)
	r := f.all.Of(partHere)
	r.applied[0].Store(9) // as memory had it before the store went back
	r.trail.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.attach(t, partHere, offsets{}, offsets{9, 5})
	}()
	for r.Applied() != (offsets{3, 2}) {
		if r.reading.Load()%2 == 1 {
			t.Fatalf("it is read at %v", r.Applied())
		}
		runtime.Gosched()
	}
	if r.reading.Load()%2 == 1 {
		t.Error("it is read, and its trail has not begun")
	}
	r.trail.Unlock()
	<-done
	if r.reading.Load()%2 == 0 {
		t.Error("it is not read")
	}
}

// A log that ends before what was read of it is waited for a moment, and told;
// then the replica is taken out, and tried again at once when that may be mended.
func TestALogThatIsShorter(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.has(t, partHere, 5, 0)
	f.hosted(partHere)
	r := f.all.Of(partHere)
	for range 2 {
		if at := f.attach(t, partHere, offsets{}, offsets{4, 0}); len(at) > 0 {
			t.Errorf("it is read at %v", at)
		}
		f.want(t, "at first", partHere, Stale, LogShorter)
	}
	r.shorter = time.Now().Add(-shorterFor)
	r.again.Store(time.Now().Add(time.Hour).UnixMilli())
	f.attach(t, partHere, offsets{}, offsets{4, 0})
	f.want(t, "after long", partHere, Quarantined, LogShorter)
	if r.again.Load() != 0 {
		t.Error("what was tried before puts off what is now")
	}
	if len(f.all.unread()) > 0 {
		t.Error("it is renewed without a person's word")
	}

	f = newIdle(t, vfs.NewMem()) // where it grows, that is forgotten
	f.has(t, partHere, 5, 0)
	f.hosted(partHere)
	f.attach(t, partHere, offsets{}, offsets{4, 0})
	if at := f.attach(t, partHere, offsets{}, offsets{5, 0}); len(at) != kafka.Streams || !f.all.Of(partHere).shorter.IsZero() {
		t.Errorf("it is read at %v, and was too short since %s", at, f.all.Of(partHere).shorter)
	}
}

// What reading has said of a log is heeded once: a log that was cut is another,
// and a batch that cannot be opened is told; another fault is tried again.
func TestWhatReadingSaidOfALog(t *testing.T) {
	for reason, err := range map[Reason]error{OtherLog: kafka.ErrCutLog, BatchTooLarge: kafka.ErrBatchTooLarge, BatchBroken: kafka.ErrBatchBroken, "": kafka.ErrLostPosition} {
		f := newIdle(t, vfs.NewMem())
		f.has(t, partHere, 5, 0)
		f.hosted(partHere)
		f.all.lost(f.all.Of(partHere), fmt.Errorf("reading: %w", err))
		at := f.attach(t, partHere, offsets{}, offsets{9, 0})
		if reason == "" {
			if len(at) != kafka.Streams {
				t.Errorf("%v: it is read at %v", err, at)
			}
			continue
		}
		f.want(t, err.Error(), partHere, Quarantined, reason)
		if len(at) > 0 || f.all.whyLost(f.all.Of(partHere)).Reason != "" {
			t.Errorf("%v: it is read at %v, or heeded again", err, at)
		}
	}
}

// A log that does not have what comes next is read no more, whatever the reason, and
// what passes by itself is read on.
func TestALostPositionEndsReading(t *testing.T) {
	for _, c := range []struct {
		err   error
		reads bool
	}{{errors.New("a broker is away"), true}, {kafka.ErrLostPosition, false}, {kafka.ErrCutLog, false}, {kafka.ErrBatchTooLarge, false}} {
		f := newFed(t)
		r := f.all.Of(partHere)
		f.all.ingest.take(t.Context(), &streams.Fetched{TopicPartition: both(partHere)[0], Epoch: -1, Err: fmt.Errorf("reading: %w", c.err)})
		if reads := r.reading.Load()%2 == 1; reads != c.reads || len(r.backlogs[kafka.Timeline].fetched) > 0 {
			t.Errorf("%v: it is read on %v, and %d fetches wait", c.err, reads, len(r.backlogs[kafka.Timeline].fetched))
		}
	}
}

// What reading has said of a log is about what was here then: it is not held
// against a replica that begins anew, nor against what a renewal has brought.
func TestWhatReadingSaidIsForgotten(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		f := newIdle(t, vfs.NewMem())
		f.has(t, partHere, 5, 0)
		f.hosted(partHere)
		r := f.all.Of(partHere)
		f.all.lost(r, fmt.Errorf("reading: %w", kafka.ErrCutLog))
		begin := offsets{}
		if renewed {
			begin[0] = 6
			f.attach(t, partHere, begin, offsets{9, 0})
			f.want(t, "with a hole", partHere, Quarantined, LogBeginsLater)
			f.has(t, partHere, 7, 0)
			f.all.step(r, Replaced, Why{Restores, "a backup"})
			f.all.finishOne(r, &renewal{was: r.condemnedFor()})
		} else {
			f.hosted()
			r.drained = time.Now()
			f.hosted()
			f.want(t, "assigned elsewhere", partHere, Absent, "")
			f.hosted(partHere)
		}
		if at := f.attach(t, partHere, begin, offsets{9, 0}); len(at) != kafka.Streams {
			why, _ := r.Why()
			t.Errorf("renewed %t: it is %s, and not read: %+v", renewed, r.State(), why)
		}
	}
}

// Of what is quarantined, that is mended without a person's word which a backup
// or the log can mend. Where nothing is here, that is every log that backups may
// come to be of.
func TestWhatIsCurable(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	for reason, want := range map[Reason][2]bool{ // without backups, and with
		Corrupt: {true, true}, Differs: {true, true}, LogBeginsLater: {false, true},
		OtherLog: {false, true}, LogShorter: {false, true}, BatchTooLarge: {}, BatchBroken: {}, ByOperator: {}, "": {},
	} {
		for i, backups := range []Backups{nil, ownBackups{}} {
			all := f.all
			all.cfg.Backups = backups
			r := all.Of(partHere)
			r.setCause(Why{Reason: reason})
			if got := all.curable(r); got != want[i] {
				t.Errorf("%q, with backups %v: %t", reason, backups != nil, got)
			}
		}
	}
}

// A replica is not ready before both of its streams are read to an end that was
// confirmed: without its features it would rank as nobody else does.
func TestNotReadyBeforeFeaturesAreRead(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.hosted(partHere)
	f.attach(t, partHere, offsets{}, offsets{2, 1})
	r := f.all.Of(partHere)
	now := time.Now()
	for s, end := range (offsets{2, 1}) {
		r.marks[s].confirm(mark{end, now, 7})
	}
	steps := []offsets{{0, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}}
	for i, at := range steps {
		r.applied[0].Store(int64(at[0]))
		r.applied[1].Store(int64(at[1]))
		f.all.judge(now)
		if whole := i == len(steps)-1; (r.State() == Ready) != whole || r.through.Load() > 0 != whole {
			t.Errorf("at %v it is %s", at, r.State())
		}
		if i == 1 {
			r.marks[0] = marks{ahead: []mark{{2, now, 7}}}
		}
	}
}

// Features that wait for their schema keep a replica from being ready, though its
// timelines are whole.
func TestHeldFeaturesKeepAReplicaFromBeingReady(t *testing.T) {
	w := newWorld(t)
	w.post(here)
	w.writeTo(w.topics.Features, here, schemas.Frame(0x1234, []byte{1}))
	w.start(partHere)
	w.until("the timelines are whole, and the features wait", func() bool {
		r := w.replicas.Of(partHere)
		return w.count(here) == 1 && w.is(partHere, CatchingUp, SchemaUnknown)() && len(r.Trail()[0]) > 1
	})
	for i := range 3 { // what is heard thrice was judged twice since
		said := time.Now().Add(time.Minute).UnixMilli() + int64(i)
		w.input.through.Store(said)
		w.until("the end was confirmed since", func() bool { return w.replicas.through.Load() == said })
	}
	if !w.is(partHere, CatchingUp, SchemaUnknown)() {
		t.Errorf("%s", w.states())
	}
	w.log.refuse(0x1234)
	w.until("it is ready", w.is(partHere, Ready, ""))
}

// That a replica was whole is kept before it is ready: a node that forgot it
// would not answer after a restart without Kafka.
func TestReadyIsKept(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.hosted(partHere)
	f.attach(t, partHere, offsets{}, offsets{})
	r := f.all.Of(partHere)
	r.fresh.Store(momentOf(time.Now()))
	r.through.Store(time.Now().UnixMilli())
	f.disk.full.Store(true)
	f.all.judgeOne(r, time.Now())
	f.want(t, "on a full disk", partHere, CatchingUp, DiskFull)
	f.hosted(partHere, partThere)
	if at := f.attach(t, partThere, offsets{}, offsets{}); len(at) > 0 || f.all.Of(partThere).reading.Load() != 0 {
		t.Errorf("a new one is read at %v, and the store does not know of which log", at)
	}
	f.want(t, "on a full disk, a new one", partThere, CatchingUp, DiskFull)
	f.disk.full.Store(false)
	if f.all.Whole(partHere) || r.origin().Whole {
		t.Error("it takes itself for whole")
	}
	f.all.judgeOne(r, time.Now())
	f.want(t, "with room,", partHere, Ready, "")
	row, err := f.store.Origin(partHere)
	must(t, err)
	if o, known, err := decodeOrigin(row); !o.Whole || !known || err != nil || !f.all.Whole(partHere) {
		t.Errorf("kept: %+v, %v", o, err)
	}
}

// A replica that stops to be read, as one that the store has rewound, before it is
// remembered as whole or announced as ready, is neither.
func TestNotReadyOnceReadingHasEnded(t *testing.T) {
	for _, whole := range []bool{false, true} {
		f := newIdle(t, vfs.NewMem())
		f.hosted(partHere)
		f.attach(t, partHere, offsets{}, offsets{})
		r := f.all.Of(partHere)
		r.fresh.Store(momentOf(time.Now()))
		r.through.Store(time.Now().UnixMilli())
		if whole {
			must(t, f.all.writeOrigin(r, Origin{Cluster: logOne.Cluster, Topics: logOne.Topics, Whole: true}, offsets{}))
		}
		r.mu.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.all.judgeOne(r, time.Now())
		}()
		time.Sleep(50 * time.Millisecond) // it waits by then
		f.all.stopReading(r)
		r.mu.Unlock()
		<-done
		f.want(t, "no longer read,", partHere, CatchingUp, Behind)
		row, err := f.store.Origin(partHere)
		must(t, err)
		if o, _, err := decodeOrigin(row); o.Whole != whole || err != nil || r.origin().Whole != whole {
			t.Errorf("kept: %+v, %v", o, err)
		}
	}
}

// A replica of which nothing is confirmed gets old though the clock is set back, and
// though the machine was suspended: one clock tells of either.
func TestAClockThatIsSetMakesNothingFresh(t *testing.T) {
	now := time.Now()
	for what, since := range map[string][2]time.Duration{ // by the time of day, and by the clock that runs
		"set back an hour":           {5*time.Minute - time.Hour, 5 * time.Minute},
		"suspended for five minutes": {5 * time.Minute, time.Second},
	} {
		f := newFed(t)
		r := f.all.Of(partHere)
		m := momentOf(now.Add(-time.Second))
		r.fresh.Store(m)
		f.all.judgeOne(r, now)
		f.want(t, "before", partHere, Ready, "")
		look := f.all.Look(partHere)
		m.unixMilli, m.ran = now.Add(-since[0]).UnixMilli(), now.Add(-since[1]).Sub(began)
		f.all.judgeOne(r, now)
		if age := f.all.AgeOf(&look, now); r.State() != Stale || age.Round(time.Second) != 5*time.Minute {
			t.Errorf("%s: it is %s, and told to be %s old", what, r.State(), age)
		}
	}
}

// While a replica should read its log and does not, that is tried again soon, and
// not only when the ends of the log are due to be asked for.
func TestKafkaThatComesIsFoundSoon(t *testing.T) {
	w := newWorld(t)
	w.limit = time.Hour
	w.post(here)
	away := w.away()
	w.start(partHere)
	w.until("it looks again, and not for what is wanted alone", func() bool { return w.input.asked.Load() > 2 })
	if !w.is(partHere, CatchingUp, KafkaAway)() {
		t.Errorf("%s", w.states())
	}
	away.Store(false)
	w.until("the log is applied", func() bool { return w.count(here) == 1 })
}

// A log that deletes makes no new replica, and that is told.
func TestALogThatDeletesMakesNoReplica(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	asked := 0
	keeps := errors.New("it deletes after a week")
	cfg := f.all.cfg
	cfg.Keeps = func(context.Context) error { asked++; return keeps }
	f.all.Configure(cfg)
	f.has(t, partThere, 1, 0)
	f.hosted(partHere, partThere)
	for range 2 {
		if at := f.attach(t, partHere, offsets{}, offsets{1, 0}); len(at) > 0 {
			t.Errorf("it is read at %v", at)
		}
	}
	f.want(t, "with such a log", partHere, CatchingUp, LogDeletes)
	if at := f.attach(t, partThere, offsets{}, offsets{1, 0}); len(at) != kafka.Streams {
		t.Error("one that has what was deleted does not go on")
	}
	if asked != 1 {
		t.Errorf("it was asked %d times in a moment", asked)
	}
	keeps, f.all.keeps.at = nil, time.Now().Add(-2*callTimeout)
	if at := f.attach(t, partHere, offsets{}, offsets{1, 0}); len(at) != kafka.Streams {
		t.Error("it is not asked again")
	}
}

// What holds a replica's ingest back is told before the reason of its state,
// unless it is in quarantine; standing still to be compared is no fault.
func TestWhatIsTold(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	r.explain(Why{Behind, "so"})
	for _, c := range []struct {
		held *Held
		want Reason
	}{{nil, Behind}, {held(Compared, errStands), Behind}, {held(DiskFull, store.ErrDiskFull), DiskFull}} {
		began := time.Now()
		r.setHeld(kafka.Features, c.held)
		if why, since := r.Why(); why.Reason == DiskFull && since.Before(began) {
			t.Errorf("held back since %v, before it was at %v", since, began)
		}
		f.want(t, fmt.Sprintf("held by %v", c.held), partHere, Ready, c.want)
		if r.isHeld() != (c.held != nil) {
			t.Errorf("held by %v: %v", c.held, r.isHeld())
		}
	}
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	f.want(t, "condemned", partHere, Quarantined, Corrupt)
}

// A quarantine is raised at once: it is announced, logged as an error, and
// reading ends. Other steps are nobody's business.
func TestAQuarantineIsAnnounced(t *testing.T) {
	f := newFed(t)
	r := f.all.Of(partHere)
	took := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	took(f.all.Moved())
	took(f.all.changed)
	if f.all.Wake(); !took(f.all.changed) {
		t.Error("nothing wakes the reconciler")
	}
	f.all.step(r, Aged, Why{Behind, "so"})
	if !took(f.all.Moved()) || strings.Contains(f.logged.String(), "ERROR") {
		t.Errorf("being stale is not announced, or logged as an error: %s", f.logged)
	}
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	if !took(f.all.Moved()) || !took(f.all.changed) || r.reading.Load()%2 != 0 || r.condemnedFor().Reason != Corrupt {
		t.Error("nobody is told, or it is read on")
	}
	if !strings.Contains(f.logged.String(), "level=ERROR msg=\"replica condemned\"") {
		t.Errorf("logged: %s", f.logged)
	}
	if answering, _, _ := f.all.Answering(time.Now()); answering.Len() > 0 {
		t.Error("it is announced as answering")
	}
	if since := r.stateSince(); time.Since(since) > time.Hour {
		t.Errorf("since %s", since)
	}
	f.all.Condemn(partHere, Why{OtherLog, "again"})
	if took(f.all.Moved()) || r.condemnedFor().Reason != Corrupt {
		t.Error("it is condemned twice")
	}
}

// What holds partitions back is said when it has lasted, of all together, and
// when it ends.
func TestWhatHoldsBackIsSaidOnce(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.hosted(partHere, partThere)
	said := func() string {
		f.logged.Reset()
		f.all.told.tell(f.all)
		return f.logged.String()
	}
	past := func(d time.Duration) {
		for _, at := range []map[Reason]time.Time{f.all.told.mu.since, f.all.told.mu.said} {
			for reason := range at {
				at[reason] = at[reason].Add(-d)
			}
		}
	}
	if got := said(); got != "" {
		t.Errorf("at once: %s", got)
	}
	past(tellAfter)
	if got := said(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "reason=behind partitions=2 for_one=\"the log is not read yet\"") {
		t.Errorf("of two: %s", got)
	}
	if got := said(); got != "" {
		t.Errorf("again at once: %s", got)
	}
	past(tellEvery)
	f.all.Of(partThere).explain(Why{Warming, "3 of 9"}) // is as it should be
	if got := said(); !strings.Contains(got, "partitions=1 ") {
		t.Errorf("after a minute, of one: %s", got)
	}
	for _, p := range []millrace.Partition{partHere, partThere} {
		f.all.Of(p).state.Store(int32(Ready))
	}
	if got := said(); !strings.Contains(got, "no partition is held back any more for this reason\" reason=behind") {
		t.Errorf("at the end: %s", got)
	}
	f.all.Of(partHere).setHeld(kafka.Timeline, held(DiskFull, store.ErrDiskFull))
	said()
	past(tellAfter)
	if got := said(); !strings.Contains(got, "reason=disk_full partitions=1 ") {
		t.Errorf("of one that is ready and held back: %s", got)
	}
}

// What a renewal has brought is taken over: offsets, the log's clock, and that
// there are features.
func TestARenewalIsTakenOver(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.hosted(partHere)
	r := f.all.Of(partHere)
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	f.all.step(r, Replaced, Why{Restores, "a backup"})
	var b store.Batch
	b.SetClock(partHere, 77)
	_, err := f.store.Apply(&b, nil)
	must(t, err)
	f.has(t, partHere, 3, 2)
	w := &renewal{cancel: func() {}, done: make(chan struct{}), was: Why{Corrupt, "a flipped bit"}}
	r.renewal, r.dropped = w, true
	f.all.finish()
	if r.renewal != w || r.State() != Restoring {
		t.Fatal("it is over before it is done")
	}
	close(w.done)
	f.all.finish()
	f.want(t, "restored,", partHere, CatchingUp, Behind)
	if r.Applied() != (offsets{3, 2}) || r.clock.Load() != 77 || f.host.features.Load() != 1 || f.host.forgotten.Load() != 1 {
		t.Errorf("at %v, clock %d, features %d, caches emptied %d times", r.Applied(), r.clock.Load(), f.host.features.Load(), f.host.forgotten.Load())
	}
	if r.renewal != nil || r.dropped || !r.sought || r.condemnedFor().Reason != "" || r.Log() != logOne.String() {
		t.Errorf("left of it: %+v", r.condemnedFor())
	}
	if all := r.Trail()[kafka.Features]; all[len(all)-1].At != 2 {
		t.Errorf("the trail ends at %v", all)
	}
}

// A renewal that failed is told with what was wrong before, and tried again after
// a while.
func TestARenewalThatFailedIsTold(t *testing.T) {
	f := newIdle(t, vfs.NewMem())
	f.hosted(partHere)
	r := f.all.Of(partHere)
	f.all.Condemn(partHere, Why{Corrupt, "a flipped bit"})
	w := &renewal{cancel: func() {}, done: make(chan struct{}), was: Why{Corrupt, "a flipped bit"}, err: errNothing}
	close(w.done)
	r.renewal = w
	f.all.finish()
	f.want(t, "not renewed,", partHere, Quarantined, Corrupt)
	if why, _ := r.Why(); why.Detail != "a flipped bit; it is not renewed: "+errNothing.Error() {
		t.Errorf("it says %q", why.Detail)
	}
	if len(f.all.unread()) > 0 || r.sought {
		t.Error("it is tried again at once")
	}
	r.again.Store(time.Now().UnixMilli())
	if got := f.all.unread(); !slices.Equal(got, []*Replica{r}) {
		t.Errorf("%d are tried again", len(got))
	}
}
