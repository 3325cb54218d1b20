package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
)

// Backup is a backup of a partition, as far as whether it will do depends on
// it.
type Backup struct {
	Name    string // for people, and for Restore
	Taken   time.Time
	Bytes   int64
	Node    millrace.NodeID // whose replica it is of
	Applied [kafka.Streams]millrace.Offset
	Origin  []byte // as the store had it
}

// Backups are the backups of partitions.
type Backups interface {
	// Newest returns the backups of a partition, the newest first. It reads each
	// when it is asked for, and ends with what keeps it from going on.
	Newest(ctx context.Context, p millrace.Partition) iter.Seq2[Backup, error]
	// Restore replaces everything that the store has of a partition by a
	// backup, and tells now and then how far it is. Nobody reads or writes
	// the partition meanwhile.
	Restore(ctx context.Context, p millrace.Partition, b Backup, tell func(progress string)) error
	// Rest is called after a restore for which nobody waits, with how long it
	// took, and lets questions go first.
	Rest(ctx context.Context, took time.Duration)
	// Forget removes what a restore that broke off has left of a partition.
	Forget(millrace.Partition) error
	// Healed records that a partition which was found damaged was replaced, by a
	// backup or, where b is zero, by nothing, to be read from the log's
	// beginning.
	Healed(ctx context.Context, p millrace.Partition, was Why, b Backup, took time.Duration)
}

const (
	// maxRenewing is how many partitions are renewed at a time: small ones
	// share the store's flushes, and some are read while others are flushed;
	// large ones share only the disk and the network.
	maxRenewing = 32
	// maxRereading bounds the replicas of a node without backups that are read
	// from the log: while so many catch up or are renewed, whatever for, no
	// further renewal begins.
	maxRereading = 8
	// seekBackupFor is how long the place of the backups may stay away before
	// a log that has its beginning will do.
	seekBackupFor = time.Minute
)

// renewal is the replacement of what a replica has, while it is under way.
type renewal struct {
	cancel context.CancelFunc
	done   chan struct{}
	was    Why   // what the replica was condemned for
	err    error // once done
}

// stop has a renewal end soon; nil is none.
func (w *renewal) stop() {
	if w != nil {
		w.cancel()
	}
}

// errNothing says that nothing is there from which a replica can go on.
var errNothing = errors.New("there is no backup of it that would do")

// errNoOrigin is what a backup lacks that has no origin at all.
var errNoOrigin = errors.New("it has no origin")

// curable reports whether a quarantined replica can be renewed without a
// person's word: another log, or one that is shorter, is for somebody to judge.
// Where nothing of it is here, a backup of this log may have come since.
func (all *Replicas) curable(r *Replica) bool {
	switch r.condemnedFor().Reason {
	case Corrupt, Differs:
		return true
	case LogBeginsLater:
		return all.cfg.Backups != nil
	case OtherLog, LogShorter:
		return all.cfg.Backups != nil && !all.has(r.partition)
	}
	return false
}

// renew begins to replace what a replica has by the newest backup that the log
// can be read on from or, where there is none, by the log's beginning.
func (all *Replicas) renew(ctx context.Context, r *Replica, log kafka.LogID, e ends) {
	why, since := r.condemnedFor(), r.stateSince()
	if all.cfg.Backups == nil && all.rereading() >= maxRereading {
		return
	}
	running := ctx
	ctx, cancel := context.WithCancel(ctx)
	w := &renewal{cancel: cancel, done: make(chan struct{}), was: why}
	r.renewal = w
	dropped := r.dropped
	all.renewals.Go(func() {
		end := sync.OnceFunc(func() {
			close(w.done)
			poke(all.changed)
		})
		defer end()
		defer cancel()
		lane, waited, err := all.turn(ctx, r)
		if err != nil {
			w.err = err
			return
		}
		defer func() { <-lane }()
		begun := time.Now()
		var by *Backup
		if by, w.err = all.replace(ctx, r, log, e, why, since); w.err == nil {
			all.forgetParts(r) // of a backup that was damaged, where the log brings all of it
			if dropped {
				all.uncache(r)
			}
		}
		if by != nil {
			all.healed(running, r, why, *by, time.Since(begun))
		}
		if end(); !waited && all.cfg.Backups != nil { // the next one waits, and not who is whole
			all.cfg.Backups.Rest(running, time.Since(begun))
		}
	})
}

// forgetParts removes what restores that broke off have left of a replica, for
// which there is no next try.
func (all *Replicas) forgetParts(r *Replica) {
	if all.cfg.Backups == nil {
		return
	}
	if err := all.cfg.Backups.Forget(r.partition); err != nil {
		all.cfg.Log.Error("what was downloaded of a backup could not be removed; a restart tries again", "partition", r.partition, "err", err)
	}
}

// turn waits until a partition may be renewed. As long as others serve it, that
// is one after the other, and else beside many. The caller receives from the
// channel in the end.
func (all *Replicas) turn(ctx context.Context, r *Replica) (lane chan struct{}, waited bool, err error) {
	for {
		lane, waited = all.unhurried, all.cfg.Waited == nil || all.cfg.Waited(r.partition)
		if waited {
			lane = all.renewing
		}
		look := time.NewTimer(time.Second) // others may be gone by then
		select {
		case lane <- struct{}{}:
		case <-ctx.Done():
			err = ctx.Err()
		case <-look.C:
			if why, _ := r.Why(); why.Reason != BackupAway { // which it learnt in an earlier turn
				r.explain(Why{Restores, "others are restored before it"})
			}
			continue
		}
		look.Stop()
		return lane, waited, err
	}
}

// replace replaces what a replica has, and returns the backup that did, which is
// empty where it is the log's beginning; nil where nothing was replaced. It
// returns errNothing, and has changed nothing, when there is neither.
func (all *Replicas) replace(ctx context.Context, r *Replica, log kafka.LogID, e ends, why Why, since time.Time) (by *Backup, err error) {
	begins := e.begin == [kafka.Streams]millrace.Offset{}
	sought := search{log: log, ends: e, past: r.origin().Past}
	err = errNothing
	if all.cfg.Backups != nil && begins && !sought.past && why.Reason == Differs { // no backup is as good as the log itself, if that has all
		var bad error
		if sought.past, bad = all.hasPast(ctx, r, log, all.patience(since)); bad != nil {
			err = bad
		}
	}
	whole := begins && !sought.past
	if all.cfg.Backups != nil && !(whole && why.Reason == Differs) {
		var from Backup
		if whole {
			sought.patience = all.patience(since)
		}
		if from, err = all.restore(ctx, r, sought); err == nil && from.Name != "" {
			return &from, nil
		}
	}
	if err == nil || ctx.Err() != nil {
		return nil, err
	}
	var away *awayError
	silent := all.cfg.Backups == nil || errors.As(err, &away)
	switch {
	case errors.As(err, new(*pastError)), errors.As(err, new(*hereError)):
		return nil, err
	case !whole, silent && all.othersHavePast(r, log):
		return nil, fmt.Errorf("%w, and %s", err, e.beginning(r.partition))
	case away != nil && time.Since(since) < all.seekFor:
		return nil, err
	case all.cfg.Store.Applied(r.partition).Content < 0 && all.cfg.Store.Quarantined(r.partition) == nil:
		return nil, nil // nothing is there that would have to go
	}
	if !all.step(r, Replaced, why) && r.State() != Restoring {
		return nil, nil // released meanwhile, or quarantined by an operator
	}
	all.cfg.Log.Warn("a partition is read anew from the log's beginning", "partition", r.partition, "was", why.Detail, "backup", err)
	r.Barrier()
	if err := all.cfg.Store.DropPartition(r.partition); err != nil {
		return nil, err
	}
	return new(Backup), nil
}

// patience is how long a replica that needs a backup since some time searches for
// one, if the log will do. It is short once the backups have not answered anybody
// for long: hundreds of partitions may wait for their turn to ask.
func (all *Replicas) patience(since time.Time) time.Duration {
	if last := all.answered.Load(); last != nil && last.After(since) {
		since = *last
	}
	return max(all.seekFor/12, all.seekFor-time.Since(since))
}

// healed has it recorded that a replica was replaced, if it was damaged. The
// replica does not wait for that: the bucket may not answer.
func (all *Replicas) healed(ctx context.Context, r *Replica, was Why, by Backup, took time.Duration) {
	if all.cfg.Backups != nil && was.Reason == Corrupt {
		all.renewals.Go(func() { all.cfg.Backups.Healed(ctx, r.partition, was, by, took) })
	}
}

// Whole reports whether what is here of a partition is all that the log held
// up to some offsets, so that a backup of it is one.
func (all *Replicas) Whole(p millrace.Partition) bool {
	r := &all.replicas[p]
	s := r.State()
	return (s == Ready || s == Stale) && r.origin().Whole
}

// beginning says where a log that was cut begins.
func (e *ends) beginning(p millrace.Partition) string {
	for s, at := range e.begin {
		if at > 0 {
			return fmt.Sprintf("%s/%d begins at %d", kafka.Stream(s), p, at)
		}
	}
	return "what was before the log, it will not bring"
}

// pastError says that a backup has what the log will not bring: a replica that is
// read from the log's beginning would lack it.
type pastError struct{ why Why }

func (e *pastError) Error() string { return e.why.Detail }

// pastOf returns a *pastError if a backup has what the log will not bring: why is
// the reason for which the log cannot be read on from there, if any.
func pastOf(b *Backup, o *Origin, why Why) error {
	const out = "; restore this node by millrace backup restore with --log new or, to give up what the backups have, begin anew with another place for backups"
	name := fmt.Sprintf("backup %s of %s", b.Name, b.Taken.UTC().Format(time.DateTime))
	switch {
	case why.Reason == OtherLog:
		return &pastError{Why{OtherLog, name + " is of another log than the one that is there" + out}}
	case why.Reason == LogShorter:
		return &pastError{Why{LogShorter, fmt.Sprintf("%s says that it has more of the log than is there: %s; if the log is whole, the backup's manifest is not true: millrace backup verify --depth restore", name, why.Detail)}}
	case o.Past:
		return &pastError{Why{LogBeginsLater, name + " has what was before the log, and cannot be restored"}}
	}
	return nil
}

// errSilent is why a search for a backup was given up.
var errSilent = errors.New("the place of the backups does not answer in time")

// awayError is a failure to ask for backups.
type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

// hasPast reports whether a backup of the log has what was before it: a replica
// that was made anew since may not know. The search is given up after patience.
func (all *Replicas) hasPast(ctx context.Context, r *Replica, log kafka.LogID, patience time.Duration) (bool, error) {
	searching, giveUp := context.WithTimeoutCause(ctx, patience, errSilent)
	defer giveUp()
	for b, away := range all.cfg.Backups.Newest(searching, r.partition) {
		if away != nil {
			return false, &awayError{cmp.Or(context.Cause(searching), away)}
		}
		all.backupsAnswered()
		if LogOf(b.Origin) == log.String() && HasPast(b.Origin) {
			return true, nil
		}
	}
	all.backupsAnswered()
	return false, nil
}

// othersHavePast reports whether another replica of this node has what was before
// the log, so that this one is likely to lack it.
func (all *Replicas) othersHavePast(r *Replica, log kafka.LogID) bool {
	for p := range all.replicas {
		o := all.replicas[p].origin()
		if p != int(r.partition) && o.Past && o.Cluster == log.Cluster && o.Topics == log.Topics {
			return true
		}
	}
	return false
}

// backupsAnswered notes that the backups answer.
func (all *Replicas) backupsAnswered() {
	now := time.Now()
	all.answered.Store(&now)
}

// hereError is a failure of this node to restore a backup, which may be good.
type hereError struct{ err error }

func (e *hereError) Error() string { return e.err.Error() }
func (e *hereError) Unwrap() error { return e.err }

// failedHere reports whether a restore failed for this node's own disk, as the store
// says or who downloads: an older backup would fail as well, and the same one may not,
// later. What else the store fails for may lie in the backup.
func failedHere(err error) bool {
	var system syscall.Errno
	switch {
	case errors.Is(err, store.ErrRefused):
		return false
	case errors.Is(err, store.ErrDiskFull):
		return true
	case !errors.As(err, &system):
		return false
	}
	return errors.Is(err, store.ErrFailed) && system != syscall.ENOENT ||
		slices.Contains([]syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS}, system)
}

// search is what a replica needs of a backup.
type search struct {
	log      kafka.LogID   // that goes on from it
	ends     ends          // of that log
	past     bool          // it has what was before that log
	patience time.Duration // after which the search, but not the restore, is given up; 0 is no bound
}

// restore brings back the newest backup that will do; one that is damaged gives
// way to the next. It returns which it was; none if the replica was released
// meanwhile, or quarantined by an operator.
func (all *Replicas) restore(ctx context.Context, r *Replica, sought search) (from Backup, err error) {
	searching, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var timer *time.Timer
	if sought.patience > 0 {
		timer = time.AfterFunc(sought.patience, func() { giveUp(errSilent) })
		defer timer.Stop()
	}
	err = errNothing
	var past error
	for b, away := range all.cfg.Backups.Newest(searching, r.partition) {
		if away != nil {
			return from, &awayError{cmp.Or(context.Cause(searching), away)}
		}
		all.backupsAnswered()
		origin, known, bad := decodeOrigin(b.Origin)
		if bad != nil || !known {
			err = fmt.Errorf("backup %s does not say which log it is of: %w", b.Name, cmp.Or(bad, errNoOrigin))
			continue
		}
		_, why := judge(b.Applied, &origin, sought.log, sought.ends)
		if sought.ends.begin == [kafka.Streams]millrace.Offset{} { // or the log itself says what it lacks
			past = cmp.Or(past, pastOf(&b, &origin, why))
		}
		if why.Reason != "" {
			err = fmt.Errorf("backup %s cannot be gone on from: %s", b.Name, why.Detail)
			continue
		}
		if sought.past && !origin.Past {
			err = fmt.Errorf("backup %s lacks what was before the log", b.Name)
			continue
		}
		if r.condemnedFor().Reason == Differs && !r.trusts(&b, all.cfg.Node) {
			err = fmt.Errorf("backup %s is of the replica that differs", b.Name)
			continue
		}
		begun := time.Now()
		tell := func(progress string) {
			r.explain(Why{Restores, fmt.Sprintf("backup %s of %s: %s", b.Name, b.Taken.UTC().Format(time.DateTime), progress)})
		}
		if !all.step(r, Replaced, Why{Restores, "backup " + b.Name}) && r.State() != Restoring {
			return from, nil
		}
		r.Barrier() // whoever read what was there is out
		if timer != nil {
			timer.Stop()
		}
		if err = all.cfg.Backups.Restore(ctx, r.partition, b, tell); err == nil {
			all.cfg.Log.Info("a partition is restored from a backup", "partition", r.partition, "backup", b.Name, "bytes", b.Bytes, "took", time.Since(begun).Round(time.Millisecond))
			return b, nil
		}
		if ctx.Err() != nil {
			return from, err
		}
		if failedHere(err) {
			return from, &hereError{fmt.Errorf("backup %s: %w", b.Name, err)}
		}
		all.cfg.Log.Error("a backup could not be restored; trying an older one", "partition", r.partition, "backup", b.Name, "err", err)
		err = fmt.Errorf("backup %s: %w", b.Name, err)
		if timer != nil {
			timer.Reset(sought.patience)
		}
	}
	all.backupsAnswered()
	return from, cmp.Or(past, err)
}

// finish takes over what renewals have done.
func (all *Replicas) finish() {
	for p := range all.replicas {
		r := &all.replicas[p]
		w := r.renewal
		if w == nil {
			continue
		}
		select {
		case <-w.done:
		default:
			continue
		}
		r.renewal = nil
		if r == all.dropping {
			all.finishDrop(r, w)
			continue
		}
		if w.was.Reason != "" { // something of it was here, and may be cached
			all.cfg.Host.Forget()
		}
		if r.State() == Absent {
			all.forgetParts(r)
			continue
		}
		all.finishOne(r, w)
	}
}

func (all *Replicas) finishOne(r *Replica, w *renewal) {
	if r.byOperator() { // meanwhile
		return
	}
	all.load(r)
	err := w.err
	if err == nil {
		err = all.loadOrigin(r)
	}
	r.sought = err == nil
	if err == nil {
		r.dropped = false
		if r.State() == Quarantined { // nothing was here that had to give way
			all.step(r, Replaced, w.was)
		}
		r.setCause(Why{})
		all.step(r, Restored, Why{Behind, "the end of the log is not reached"})
		return
	}
	r.again.Store(time.Now().Add(20 * all.cfg.Limit).UnixMilli())
	why := Why{cmp.Or(w.was.Reason, LogBeginsLater), fmt.Sprintf("%s; it is not renewed: %v", w.was.Detail, err)}
	if w.was.Reason == "" {
		why.Detail = fmt.Sprintf("nothing of it is here; %v", err)
	}
	if past := (*pastError)(nil); errors.As(err, &past) && (w.was.Reason == "" || w.was.Reason == past.why.Reason) {
		why = Why{past.why.Reason, "nothing of it is here, and " + past.why.Detail}
	}
	cause := why // that it is known by, and mended for
	if here := (*hereError)(nil); errors.As(err, &here) {
		why.Reason = whyFailing(err).Reason
	}
	if away := (*awayError)(nil); errors.As(err, &away) {
		why.Reason = BackupAway
		if r.State() == CatchingUp {
			r.explain(why)
			return // the next round asks again
		}
	}
	if !all.step(r, Failed, why) && !all.step(r, Condemned, why) {
		r.explain(why)
	} else if w.was.Reason == "" {
		r.setCause(cause)
	}
}

// rereading counts the replicas that catch up or are renewed, whatever for: those
// that are new or have just started too.
func (all *Replicas) rereading() (n int) {
	for p := range all.replicas {
		r := &all.replicas[p]
		if s := r.State(); s == CatchingUp || s == Restoring || r.renewal != nil {
			n++
		}
	}
	return n
}
