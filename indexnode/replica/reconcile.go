package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/wait"
)

const (
	// drainFor is how long a partition that is assigned elsewhere still
	// answers: brokers hear of an assignment within a second.
	drainFor = 5 * time.Second
	// callTimeout bounds one question to Kafka.
	callTimeout = 5 * time.Second
	// shorterFor is how long a log may end before what was read of it, as one
	// does for moments while its leader starts, before it counts as another.
	shorterFor = 10 * time.Second
)

// reconcile brings what is into line with what is wanted, and judges by
// evidence what may answer, until ctx is done.
func (all *Replicas) reconcile(ctx context.Context) error {
	defer all.renewals.Wait() // they write into the store
	every := all.cfg.Limit / 5
	var confirmed time.Time
	for {
		proof := all.awaitProof()
		all.finish()
		all.host(time.Now())
		all.drop(ctx, time.Now())
		attached := all.attach(ctx)
		if now := time.Now(); now.Sub(confirmed) >= every || all.firstProof() {
			all.condemnDamaged()
			all.takeOutRewound()
			all.judgeInput()
			all.lookBack(ctx)
			all.confirm(ctx, all.read())
			confirmed = now
		} else if len(attached) > 0 { // the others have their time
			all.confirm(ctx, attached)
		}
		all.judge(time.Now())
		all.told.tell(all)
		next := time.Until(confirmed.Add(every))
		if len(all.unread()) > 0 {
			next = min(next, retryAfter)
		}
		due := time.NewTimer(next)
		select {
		case <-ctx.Done():
			due.Stop()
			return ctx.Err()
		case <-due.C:
		case <-proof:
			due.Stop()
		case <-all.changed:
			due.Stop()
			if err := wait.For(ctx, settle); err != nil {
				return err
			}
		}
	}
}

// settle is the pause that gathers changes.
const settle = 10 * time.Millisecond

// host begins and ends replicas so that exactly the wanted ones are there.
func (all *Replicas) host(now time.Time) {
	wanted, _ := all.orders()
	for p := range all.replicas {
		r := &all.replicas[p]
		switch state := r.State(); {
		case wanted.Has(r.partition) && (state == Absent || state == Draining):
			if r.renewal == nil { // or it waits until nothing writes into it
				all.begin(r)
			}
		case !wanted.Has(r.partition) && state != Absent && state != Draining:
			if all.step(r, Released, Why{Moved, "the partition is assigned to other nodes"}); r.State() == Draining {
				r.drained = now.Add(all.drainFor)
				continue
			}
			all.stopReading(r)
			if r.renewal.stop(); r.renewal == nil { // or what it leaves goes at its end
				all.forgetParts(r)
			}
		case state == Draining && !now.Before(r.drained):
			all.step(r, Left, Why{})
			all.stopReading(r)
		}
	}
}

// begin takes over what the store has of a partition, which needs no log: it
// answers with it, flagged as stale, if it is whole up to some time.
func (all *Replicas) begin(r *Replica) {
	if r.State() == Draining {
		all.step(r, Resumed, Why{Behind, "assigned again"})
		return
	}
	if all.isRewound(r) { // while it was not here, and what it had then may be cached
		all.cfg.Host.Forget()
	}
	all.load(r)
	r.gone, r.spared = false, false
	r.fresh.Store(nil)
	r.through.Store(0)
	for s := range r.marks {
		r.marks[s].forget()
	}
	if err := all.cfg.Store.Quarantined(r.partition); err != nil {
		all.recallOrigin(r)
		all.Condemn(r.partition, whyQuarantined(err))
		return
	}
	if err := all.loadOrigin(r); errors.Is(err, store.ErrFailed) {
		all.step(r, Assigned, whyFailing(err)) // attach reads it again
		return
	} else if err != nil {
		all.Condemn(r.partition, Why{Corrupt, err.Error()})
		return
	}
	if r.origin().Whole {
		all.step(r, Resumed, Why{KafkaAway, "the end of the log is not confirmed since the start"})
		all.warm(r) // Kafka may be away for long
	} else {
		all.step(r, Assigned, Why{Behind, "the log is not read yet"})
	}
}

// loadOrigin takes over what the store says of the log that it was read from. It
// may say less than it did, where it lost what was not flushed.
func (all *Replicas) loadOrigin(r *Replica) error {
	row, err := all.cfg.Store.Origin(r.partition)
	if err != nil {
		return err
	}
	origin, known, err := decodeOrigin(row)
	if err != nil {
		return err
	}
	r.life.Lock()
	defer r.life.Unlock()
	r.life.from, r.life.known = origin, known
	return nil
}

// recallOrigin takes over what is known of the log that a quarantined partition
// was read from: what takes its place must have as much.
func (all *Replicas) recallOrigin(r *Replica) {
	origin, known, err := decodeOrigin(all.cfg.Store.LastOrigin(r.partition))
	if err != nil {
		origin, known = Origin{}, false
	}
	r.life.Lock()
	defer r.life.Unlock()
	r.life.from, r.life.known = origin, known
}

// unread returns the replicas that should read the log and do not, and those
// that may be renewed now.
func (all *Replicas) unread() (out []*Replica) {
	now := time.Now()
	for p := range all.replicas {
		r := &all.replicas[p]
		switch s := r.State(); {
		case s == Absent || s == Restoring || r.reading.Load()%2 == 1 || r.renewal != nil:
		case s != Quarantined || all.curable(r) && now.UnixMilli() >= r.again.Load():
			out = append(out, r)
		}
	}
	return out
}

// logNow is what Kafka says of the log at one moment.
type logNow struct {
	id         kafka.LogID
	begin, end map[kafka.TopicPartition]millrace.Offset
}

// attach begins to read the log of replicas that do not, as far as it is the
// log that they were read from and has what comes next. It returns those that
// began.
func (all *Replicas) attach(ctx context.Context) (attached []*Replica) {
	unread := all.unread()
	if len(unread) == 0 {
		return nil
	}
	now, err := all.look(ctx, unread)
	if err != nil {
		for _, r := range unread {
			if r.State() != Quarantined {
				r.explain(Why{KafkaAway, err.Error()})
			}
		}
		return nil
	}
	at := make(map[kafka.TopicPartition]kafka.Position, 2*len(unread))
	for _, r := range unread {
		all.attachOne(ctx, r, now, at)
	}
	if len(at) > 0 {
		all.cfg.Consumer.Resume(slices.Collect(maps.Keys(at))...)
		all.cfg.Consumer.Add(at)
	}
	return slices.DeleteFunc(unread, func(r *Replica) bool { return r.reading.Load()%2 == 0 })
}

// look asks Kafka for the log's identity and where it begins and ends.
func (all *Replicas) look(ctx context.Context, of []*Replica) (now logNow, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var tps []kafka.TopicPartition
	for _, r := range of {
		tps = append(tps, both(r.partition)...)
	}
	if now.id, err = all.cfg.Consumer.LogID(ctx); err != nil {
		return now, err
	}
	if now.begin, err = all.cfg.Consumer.StartOffsets(ctx, tps...); err != nil {
		return now, err
	}
	now.end, err = all.cfg.Consumer.HighWatermarks(ctx, tps...)
	return now, err
}

// attachOne judges a replica against the log, and adds where it reads on to at.
func (all *Replicas) attachOne(ctx context.Context, r *Replica, now logNow, at map[kafka.TopicPartition]kafka.Position) {
	var e ends
	for s := range e.begin {
		tp := kafka.TopicPartition{Stream: kafka.Stream(s), Partition: r.partition}
		e.begin[s], e.end[s] = now.begin[tp], now.end[tp]
	}
	if r.State() == Quarantined {
		all.renew(ctx, r, now.id, e)
		return
	}
	if err := all.loadOrigin(r); errors.Is(err, store.ErrFailed) {
		r.explain(whyFailing(err))
		return
	} else if err != nil {
		all.Condemn(r.partition, whyQuarantined(err))
		return
	}
	// No commit hears of that any more. One that was draining ends with it.
	if all.checkRewound(r); r.State() == Absent {
		return
	}
	r.life.Lock()
	origin, known := r.life.from, r.life.known
	r.life.Unlock()
	var from *Origin
	if known {
		from = &origin
	}
	stored := all.cfg.Store.Applied(r.partition)
	next, why := judge([kafka.Streams]millrace.Offset{stored.Content, stored.Features}, from, now.id, e)
	switch {
	case why.Reason == LogShorter && all.mayGrow(r):
		r.explain(why)
		return
	case why.Reason == "":
		why = all.whyLost(r)
	}
	if why.Reason == "" && r.State() == CatchingUp {
		if all.cfg.Backups != nil && stored == (store.Offsets{Content: -1, Features: -1}) && !r.sought {
			all.renew(ctx, r, now.id, e)
			return
		}
		if err := all.logKeeps(); err != nil {
			r.explain(Why{LogDeletes, err.Error()})
			return
		}
	}
	if why.Reason != "" {
		r.again.Store(0)
		all.Condemn(r.partition, why)
		return
	}
	r.shorter = time.Time{}
	if !known {
		origin.Cluster, origin.Topics = now.id.Cluster, now.id.Topics
		if err := all.writeOrigin(r, origin, next); err != nil {
			r.explain(whyFailing(err))
			return
		}
	}
	r.fresh.Store(nil)
	r.through.Store(0)
	for s, n := range next {
		r.marks[s].forget()
		r.applied[s].Store(int64(n))
		at[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: r.partition}] = kafka.Position{Next: n, Epoch: origin.Epochs[s]}
	}
	r.trail.begin(next, all.cfg.Store.Digest(r.partition))
	r.reading.Add(1) // last: what was fetched before is compared with the offsets of now
	// Who took it out meanwhile found it read by nobody.
	if s := r.State(); s == Absent || s == Quarantined {
		all.stopReading(r)
		for _, tp := range both(r.partition) {
			delete(at, tp)
		}
		return
	}
	r.explain(Why{Behind, "the end of the log is not reached"})
}

// logKeeps reports why no new replica should be made from the log, or nil.
func (all *Replicas) logKeeps() error {
	if all.cfg.Keeps == nil {
		return nil
	}
	if k := &all.keeps; k.at.IsZero() || k.err != nil && time.Since(k.at) > callTimeout {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		k.err, k.at = all.cfg.Keeps(ctx), time.Now()
	}
	return all.keeps.err
}

// whyLost returns why a log that has what comes next cannot be read on, as
// reading has said; none if it may be tried again.
func (all *Replicas) whyLost(r *Replica) Why {
	all.mu.Lock()
	err := all.mu.lost[r.partition]
	delete(all.mu.lost, r.partition)
	all.mu.Unlock()
	switch {
	case errors.Is(err, kafka.ErrCutLog):
		return Why{OtherLog, err.Error()}
	case errors.Is(err, kafka.ErrBatchTooLarge):
		return Why{BatchTooLarge, err.Error()}
	case errors.Is(err, kafka.ErrBatchBroken):
		return Why{BatchBroken, err.Error()}
	}
	return Why{}
}

// whyFailing says why the store takes nothing in.
func whyFailing(err error) Why {
	if errors.Is(err, store.ErrDiskFull) || errors.Is(err, syscall.ENOSPC) {
		return Why{DiskFull, err.Error()}
	}
	return Why{StoreFailing, err.Error()}
}

// mayGrow reports whether a log that is shorter than what was read of it may
// be one whose leader is starting.
func (all *Replicas) mayGrow(r *Replica) bool {
	if r.shorter.IsZero() {
		r.shorter = time.Now()
	}
	return time.Since(r.shorter) < shorterFor
}

// writeOrigin keeps which log a partition is read from, and from where.
func (all *Replicas) writeOrigin(r *Replica, o Origin, next [kafka.Streams]millrace.Offset) error {
	var b store.Batch
	b.SetOrigin(r.partition, o.encode())
	for s, n := range next {
		b.SetApplied(r.partition, streamOf(kafka.Stream(s)), n)
	}
	r.mu.Lock()
	_, err := all.cfg.Store.Apply(&b, nil)
	r.mu.Unlock()
	if err == nil {
		r.setOrigin(o)
	}
	return err
}

// condemnDamaged takes out the replicas whose partitions the store has
// quarantined by itself, as for a file that a compaction found damaged. No record
// may come that would find that, and questions may be answered from the cache.
func (all *Replicas) condemnDamaged() {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State().Answers() || r.reading.Load()%2 == 1 {
			all.CondemnDamaged(r.partition)
		}
	}
}

// takeOutRewound takes out the replicas of which the store has less than memory. A
// flush, a sweep or a checkpoint may have lost what was not flushed, and no record
// may come whose commit would hear of that.
func (all *Replicas) takeOutRewound() {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State().Answers() || r.reading.Load()%2 == 1 {
			all.checkRewound(r)
		}
	}
}

// checkRewound takes a replica out if the store has less of it than memory.
func (all *Replicas) checkRewound(r *Replica) {
	if !all.isRewound(r) {
		return
	}
	r.mu.Lock()
	found := all.isRewound(r) // or a commit has heard of it meanwhile
	if found {
		all.rewind(r, Why{StoreFailing, "the store has less than was applied"})
	}
	r.mu.Unlock()
	if found {
		all.cfg.Log.Error("the store lost what was not flushed: reading it from the log again", "partition", r.partition, "from", r.Applied())
		all.cfg.Host.Forget()
		poke(all.changed)
	}
}

// isRewound reports whether the store has less of a replica than memory. A commit
// moves the store first, and memory is read first here, so that one under way is not
// taken for that.
func (all *Replicas) isRewound(r *Replica) bool {
	has := r.Applied()
	at := all.cfg.Store.Applied(r.partition)
	return max(0, at.Content) < has[kafka.Timeline] || max(0, at.Features) < has[kafka.Features]
}

// rewind takes a replica out of which the store has less than memory. It answers no
// more, and is read again from where the store is; the caller empties the caches then.
// r.mu is held.
func (all *Replicas) rewind(r *Replica, why Why) {
	all.stopReading(r) // before the state: what was confirmed is not so any more
	all.step(r, Rewound, why)
	at := all.cfg.Store.Applied(r.partition)
	r.applied[kafka.Timeline].Store(max(0, int64(at.Content)))
	r.applied[kafka.Features].Store(max(0, int64(at.Features)))
}

// judge moves replicas by what is confirmed and applied.
func (all *Replicas) judge(now time.Time) {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State() != Absent {
			r.judgeFresh()
			all.judgeOne(r, now)
		}
	}
}

// judgeFresh takes over up to when the log is known to be applied.
func (r *Replica) judgeFresh() {
	if r.reading.Load()%2 == 0 {
		return
	}
	has := r.marks[0].reach(millrace.Offset(r.applied[0].Load()))
	for s := range r.marks[1:] {
		has = has.earlier(r.marks[s+1].reach(millrace.Offset(r.applied[s+1].Load())))
	}
	if !has.at.IsZero() {
		r.fresh.Store(momentOf(has.at))
		r.through.Store(has.through)
	}
}

func (all *Replicas) judgeInput() {
	if all.cfg.Input == nil {
		return
	}
	if through, known := all.cfg.Input.Through(); known {
		all.through.Store(max(1, through.UnixMilli())) // a group that has proven nothing yet is one
	} else {
		all.through.Store(0)
	}
}

// awaitProof is closed by what partitioners say next, while they have proven
// nothing: who waits for that need not wait for the next look at the log too.
func (all *Replicas) awaitProof() <-chan struct{} {
	if all.cfg.Input == nil || all.through.Load() > 1 {
		return nil
	}
	return all.cfg.Input.Moved()
}

// firstProof reports whether partitioners have proven something since nothing
// was.
func (all *Replicas) firstProof() bool {
	if all.cfg.Input == nil || all.through.Load() > 1 {
		return false
	}
	through, known := all.cfg.Input.Through()
	return known && through.UnixMilli() > 1
}

// read returns the replicas that read the log.
func (all *Replicas) read() (out []*Replica) {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.reading.Load()%2 == 1 {
			out = append(out, r)
		}
	}
	return out
}

// confirm notes where the streams of replicas end, unless Kafka does not say.
func (all *Replicas) confirm(ctx context.Context, of []*Replica) {
	if len(of) == 0 {
		return
	}
	var tps []kafka.TopicPartition
	for _, r := range of {
		tps = append(tps, both(r.partition)...)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked, through := time.Now(), all.through.Load() // what was in the log then is before the ends
	id, err := all.cfg.Consumer.LogID(ctx)
	var ends map[kafka.TopicPartition]millrace.Offset
	if err == nil {
		// Of all that is there, committed or not: behind a transaction that
		// does not end there may be records that were committed long ago.
		ends, err = all.cfg.Consumer.HighWatermarks(ctx, tps...)
	}
	if err != nil {
		all.told.kafkaAway(err)
		return
	}
	all.told.kafkaAway(nil)
	for _, r := range of {
		if o := r.origin(); o.Cluster != id.Cluster || o.Topics != id.Topics {
			all.detach(r) // to be judged against the other log
			continue
		}
		for s := range r.marks {
			r.marks[s].confirm(mark{ends[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: r.partition}], asked, through})
		}
	}
}

// lookBack notes where the log begins, now and then. What is before is in the
// replicas alone.
func (all *Replicas) lookBack(ctx context.Context) {
	read := all.read()
	if len(read) == 0 || time.Since(all.begun) < all.cfg.Limit {
		return
	}
	var tps []kafka.TopicPartition
	for _, r := range read {
		tps = append(tps, both(r.partition)...)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begins, err := all.cfg.Consumer.StartOffsets(ctx, tps...)
	if err != nil {
		return // confirm tells
	}
	all.begun = time.Now()
	for _, r := range read {
		for s := range r.begins {
			r.begins[s].Store(int64(begins[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: r.partition}]))
		}
	}
}

// judgeOne moves one replica by what is known of its freshness.
func (all *Replicas) judgeOne(r *Replica, now time.Time) {
	own, age := r.age(now), all.Age(r.partition, now)
	switch r.State() {
	case CatchingUp:
		reading := r.reading.Load()
		if reading%2 == 0 || own > all.cfg.Limit || !all.rememberWhole(r, reading) || !all.warm(r) {
			return
		}
		r.mu.Lock() // which who rewinds it holds until it is not read any more
		if r.reading.Load() == reading {
			all.step(r, CaughtUp, Why{})
		}
		r.mu.Unlock()
	case Stale:
		if !all.warm(r) {
			return
		}
		if age == 0 && own <= all.cfg.Limit/2 {
			all.step(r, Confirmed, Why{})
		} else if r.reading.Load()%2 == 1 {
			r.explain(all.whyOld(r, own, now))
		}
	case Ready:
		if age > 0 {
			all.step(r, Aged, all.whyOld(r, own, now))
		}
	}
}

// warm reports whether a replica may be announced, as far as the caches go.
func (all *Replicas) warm(r *Replica) bool {
	if !r.cold.Load() {
		return true
	}
	if w := all.cfg.Warmer; w != nil {
		if warm, progress := w.Warm(r.partition); !warm {
			r.explain(Why{Warming, progress})
			return false
		}
	}
	r.cold.Store(false)
	poke(all.moved)
	return true
}

// whyOld says why a replica's answers are old.
func (all *Replicas) whyOld(r *Replica, own time.Duration, now time.Time) Why {
	if err := all.told.away(); err != nil {
		return Why{KafkaAway, err.Error()}
	}
	if own > all.cfg.Limit {
		return Why{Behind, "records of the log wait to be applied"}
	}
	since := all.whole(r).age(now)
	if since == UnknownAge {
		return Why{InputStalled, "it is not known yet whether partitioners have brought what came in to the log"}
	}
	return Why{InputStalled, fmt.Sprintf("what came in since %s ago is not known to be all in the log: see whether Kafka answers, and then to the partitioners", since.Round(time.Second))}
}

// rememberWhole keeps that a replica has reached the end of its log, so that
// it answers after a restart even without Kafka; not if reading has ended since
// that was found, as where the store has lost some of it.
func (all *Replicas) rememberWhole(r *Replica, reading uint64) bool {
	if r.origin().Whole {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading.Load() != reading {
		return false
	}
	o := r.origin()
	o.Whole = true
	var b store.Batch
	b.SetOrigin(r.partition, o.encode())
	if _, err := all.cfg.Store.Apply(&b, nil); err != nil {
		if errors.Is(err, store.ErrRewound) { // memory has more than the store
			all.rewind(r, whyFailing(err))
			all.cfg.Host.Forget()
		}
		r.explain(whyFailing(err))
		return false
	}
	r.setOrigin(o)
	return true
}

// Answering returns the partitions that answer, are assigned here and are warm,
// and those of them whose answers are old, with how old the oldest is.
func (all *Replicas) Answering(now time.Time) (answering, old topology.Set, oldest time.Duration) {
	for p := range all.replicas {
		r := &all.replicas[p]
		if s := r.State(); s != Ready && (s != Stale || r.cold.Load()) {
			continue
		}
		answering.Add(r.partition)
		if age := all.Age(r.partition, now); age > 0 || r.State() == Stale {
			old.Add(r.partition)
			if age < UnknownAge {
				oldest = max(oldest, age)
			}
		}
	}
	return answering, old, oldest
}
