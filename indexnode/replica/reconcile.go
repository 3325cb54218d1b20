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
	// drainFor is how long a partition that is assigned elsewhere still answers.
	// Brokers hear of a new assignment within a second.
	drainFor = 5 * time.Second
	// callTimeout bounds one question to Kafka.
	callTimeout = 5 * time.Second
	// shorterFor is how long a log may end before the offset up to which it was read
	// until it counts as shorter. It does so for moments while its leader in Kafka
	// starts.
	shorterFor = 10 * time.Second
)

// reconcile is the reconciler: until ctx ends, it begins and ends replicas as Want says,
// has their logs read, has them renewed, and changes their states by what is known of their
// age. It looks at all replicas every fifth of Config.Limit, and at once when something has
// changed.
func (all *Replicas) reconcile(ctx context.Context) error {
	defer all.renewals.Wait() // renewals write to the store, which is closed when Run has returned
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
		} else if len(attached) > 0 { // Kafka is asked for the other replicas at their usual time
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

// settle is how long the reconciler waits after a change, so that it looks once for
// several.
const settle = 10 * time.Millisecond

// host begins and ends replicas so that exactly the wanted ones are there.
func (all *Replicas) host(now time.Time) {
	wanted, _ := all.orders()
	for p := range all.replicas {
		r := &all.replicas[p]
		switch state := r.State(); {
		case wanted.Has(r.partition) && (state == Absent || state == Draining):
			if r.renewal == nil { // else it begins when the renewal has ended, which may write to it
				all.begin(r)
			}
		case !wanted.Has(r.partition) && state != Absent && state != Draining:
			if all.step(r, Released, Why{Moved, "the partition is assigned to other nodes"}); r.State() == Draining {
				r.drained = now.Add(all.drainFor)
				continue
			}
			all.stopReading(r)
			if r.renewal.stop(); r.renewal == nil { // else finish removes what the renewal leaves
				all.forgetParts(r)
			}
		case state == Draining && !now.Before(r.drained):
			all.step(r, Left, Why{})
			all.stopReading(r)
		}
	}
}

// begin makes a wanted replica from what the store has of the partition. It does not need
// Kafka: if the store has all of the log up to some time, the replica answers at once, in
// the state Stale.
func (all *Replicas) begin(r *Replica) {
	if r.State() == Draining {
		all.step(r, Resumed, Why{Behind, "assigned again"})
		return
	}
	if all.isRewound(r) { // the store lost something while the replica was absent, and the caches may still have it
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
		all.warm(r) // at once, and not after the first look at Kafka, which may be away for long
	} else {
		all.step(r, Assigned, Why{Behind, "the log is not read yet"})
	}
}

// loadOrigin sets the replica's origin to what the store has. That may be less than
// before, if the store lost what was not flushed. An error is the store's, or says that
// the origin is malformed.
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

// recallOrigin sets the origin of a quarantined replica to the last one that the store
// knew. The renewal needs it: if the old content had records from before the log
// (Origin.Past), the new content must have them too.
func (all *Replicas) recallOrigin(r *Replica) {
	origin, known, err := decodeOrigin(all.cfg.Store.LastOrigin(r.partition))
	if err != nil {
		origin, known = Origin{}, false
	}
	r.life.Lock()
	defer r.life.Unlock()
	r.life.from, r.life.known = origin, known
}

// unread returns the replicas whose log should be read and is not, and the quarantined
// ones whose renewal may begin now.
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

// logNow is what Kafka says of the log at one moment: its identity, and where each stream
// begins and ends.
type logNow struct {
	id         kafka.LogID
	begin, end map[kafka.TopicPartition]millrace.Offset
}

// attach begins to read the log for the replicas of unread, if it is the log that their
// content comes from and has the records that come next. It begins to renew others. It
// returns the replicas whose log is read now.
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

// look asks Kafka for the log's identity, and where it begins and ends for some replicas.
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

// attachOne compares a replica with the log. If the replica can go on, attachOne adds the
// positions from which its two streams are to be read to at, and marks it as reading.
// Otherwise attachOne condemns the replica, has it renewed, or notes what it waits for.
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
	// The log is not read, so no commit finds out whether the store lost something. If
	// it did, a replica that was draining becomes Absent.
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
	r.reading.Add(1) // last: from here on the ingest compares what it fetches with these offsets
	// Somebody may have condemned it meanwhile, and found no reading to end.
	if s := r.State(); s == Absent || s == Quarantined {
		all.stopReading(r)
		for _, tp := range both(r.partition) {
			delete(at, tp)
		}
		return
	}
	r.explain(Why{Behind, "the end of the log is not reached"})
}

// logKeeps returns why no new replica should be made from the log; nil: one may be. It
// remembers a success for good, and a failure for callTimeout.
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

// whyLost returns why a log cannot be read on although it has the records that come next.
// It takes that from the error by which reading ended, which it forgets. It returns the zero
// Why if reading may be tried again.
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

// whyFailing returns the reason of an error of the store: the disk is full, or the store
// fails.
func whyFailing(err error) Why {
	if errors.Is(err, store.ErrDiskFull) || errors.Is(err, syscall.ENOSPC) {
		return Why{DiskFull, err.Error()}
	}
	return Why{StoreFailing, err.Error()}
}

// mayGrow reports whether a log that ends before the offset up to which it was read has
// done so for less than shorterFor: its leader may be starting.
func (all *Replicas) mayGrow(r *Replica) bool {
	if r.shorter.IsZero() {
		r.shorter = time.Now()
	}
	return time.Since(r.shorter) < shorterFor
}

// writeOrigin writes to the store which log a partition is read from, and the next offsets.
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

// condemnDamaged condemns the replicas whose partitions the store has quarantined by
// itself, for example because a compaction found a damaged file. Otherwise that might not
// be noticed: no record may come, and requests may be answered from the caches.
func (all *Replicas) condemnDamaged() {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State().Answers() || r.reading.Load()%2 == 1 {
			all.CondemnDamaged(r.partition)
		}
	}
}

// takeOutRewound rewinds every replica of which the store has less than memory: a flush, a
// sweep of expired records or a checkpoint failed, and what was unflushed may be lost. A
// commit would find that out, but perhaps no record comes.
func (all *Replicas) takeOutRewound() {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State().Answers() || r.reading.Load()%2 == 1 {
			all.checkRewound(r)
		}
	}
}

// checkRewound rewinds a replica if the store has less of it than memory, and then empties
// the caches.
func (all *Replicas) checkRewound(r *Replica) {
	if !all.isRewound(r) {
		return
	}
	r.mu.Lock()
	found := all.isRewound(r) // a commit may have found it, and rewound the replica, meanwhile
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

// isRewound reports whether the store's offsets of a replica are lower than those in
// memory. It reads memory first, and a commit moves the store first. So a commit under way
// is not taken for a loss.
func (all *Replicas) isRewound(r *Replica) bool {
	has := r.Applied()
	at := all.cfg.Store.Applied(r.partition)
	return max(0, at.Content) < has[kafka.Timeline] || max(0, at.Features) < has[kafka.Features]
}

// rewind takes a replica out of service, since the store has less of it than memory. Its
// log is read again from the store's offsets. The caller holds r.mu, and empties the
// caches afterwards.
func (all *Replicas) rewind(r *Replica, why Why) {
	all.stopReading(r) // before the state changes, so that no older confirmation makes the replica ready
	all.step(r, Rewound, why)
	at := all.cfg.Store.Applied(r.partition)
	r.applied[kafka.Timeline].Store(max(0, int64(at.Content)))
	r.applied[kafka.Features].Store(max(0, int64(at.Features)))
}

// judge updates the age of all replicas, and changes their states by it.
func (all *Replicas) judge(now time.Time) {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State() != Absent {
			r.judgeFresh()
			all.judgeOne(r, now)
		}
	}
}

// judgeFresh sets fresh and through to the newest marks that both streams have reached.
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

// judgeInput takes over what partitioners have reported; see Replicas.through.
func (all *Replicas) judgeInput() {
	if all.cfg.Input == nil {
		return
	}
	if through, known := all.cfg.Input.Through(); known {
		all.through.Store(max(1, through.UnixMilli())) // at least 1: there are partitioners, even if they have proven nothing yet
	} else {
		all.through.Store(0)
	}
}

// awaitProof returns a channel that is closed at the next report of a partitioner, as long
// as partitioners have proven nothing; else nil. A proof is a report that everything that
// came in up to some time is in the log. With the channel the reconciler takes over the
// first proof at once.
func (all *Replicas) awaitProof() <-chan struct{} {
	if all.cfg.Input == nil || all.through.Load() > 1 {
		return nil
	}
	return all.cfg.Input.Moved()
}

// firstProof reports whether partitioners have proven something for the first time, which
// judgeInput has not taken over yet.
func (all *Replicas) firstProof() bool {
	if all.cfg.Input == nil || all.through.Load() > 1 {
		return false
	}
	through, known := all.cfg.Input.Through()
	return known && through.UnixMilli() > 1
}

// read returns the replicas whose log is read.
func (all *Replicas) read() (out []*Replica) {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.reading.Load()%2 == 1 {
			out = append(out, r)
		}
	}
	return out
}

// confirm asks Kafka where the streams of some replicas end, and notes that as marks. If
// the log is another one by now, it ends reading it (detach). If Kafka does not answer,
// nothing is noted.
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
	asked, through := time.Now(), all.through.Load() // taken before Kafka is asked for the ends: everything that was in the log at that time is before them
	id, err := all.cfg.Consumer.LogID(ctx)
	var ends map[kafka.TopicPartition]millrace.Offset
	if err == nil {
		// The ends of everything, committed or not: after the beginning of a
		// transaction that stays open there may be records that were committed
		// long ago.
		ends, err = all.cfg.Consumer.HighWatermarks(ctx, tps...)
	}
	if err != nil {
		all.told.kafkaAway(err)
		return
	}
	all.told.kafkaAway(nil)
	for _, r := range of {
		if o := r.origin(); o.Cluster != id.Cluster || o.Topics != id.Topics {
			all.detach(r) // attach compares it with the other log
			continue
		}
		for s := range r.marks {
			r.marks[s].confirm(mark{ends[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: r.partition}], asked, through})
		}
	}
}

// lookBack asks Kafka where the log begins, once every Config.Limit. Records from before
// the log's beginning are only in the replicas.
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
		return // confirm reports that Kafka does not answer
	}
	all.begun = time.Now()
	for _, r := range read {
		for s := range r.begins {
			r.begins[s].Store(int64(begins[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: r.partition}]))
		}
	}
}

// judgeOne changes the state of one replica by its age.
func (all *Replicas) judgeOne(r *Replica, now time.Time) {
	own, age := r.age(now), all.Age(r.partition, now)
	switch r.State() {
	case CatchingUp:
		reading := r.reading.Load()
		if reading%2 == 0 || own > all.cfg.Limit || !all.rememberWhole(r, reading) || !all.warm(r) {
			return
		}
		r.mu.Lock() // rewind also runs under this lock, so reading does not end between the check and the step
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

// warm reports whether the caches are filled for a replica, so that it may be announced to
// brokers. If they are not, it notes how far the filling is.
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

// whyOld returns why a replica's answers are old. own is its age by the log alone.
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

// rememberWhole writes to the store that a replica has reached the end of its log, so
// that it answers after a restart even without Kafka. reading is Replica.reading when
// that was found. It returns false if reading has ended since, for example because the
// store lost something, or if the store fails.
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

// Answering returns the partitions to announce as answering: those in the state Ready,
// and those in the state Stale whose caches are filled. old has those of them whose answers
// are older than Config.Limit or that are Stale. oldest is the greatest known age of these;
// 0 if none is known.
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
