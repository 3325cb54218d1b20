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

// Backup describes a backup of a partition: as much as is needed to choose one.
type Backup struct {
	Name    string // names the backup in logs, and for Restore
	Taken   time.Time
	Bytes   int64                          // its size
	Node    millrace.NodeID                // the node whose replica it is of; empty: not known
	Applied [kafka.Streams]millrace.Offset // the offsets up to which it has the log; -1: nothing
	Origin  []byte                         // the log that its content comes from, as the store kept it; see OriginOf
}

// Backups are the backups of partitions.
type Backups interface {
	// Newest returns the backups of a partition, the newest first. The iteration reads
	// each of them when it comes to it. If it cannot go on, it ends with an error.
	Newest(ctx context.Context, p millrace.Partition) iter.Seq2[Backup, error]
	// Restore replaces everything that the store has of a partition by a backup. It
	// calls tell now and then with how far it is. Nobody reads or writes the partition
	// meanwhile.
	Restore(ctx context.Context, p millrace.Partition, b Backup, tell func(progress string)) error
	// Rest is called after a renewal that is not urgent, with how long that took. It
	// waits a while, so that requests go first.
	Rest(ctx context.Context, took time.Duration)
	// Forget removes what an interrupted restore has left of a partition.
	Forget(millrace.Partition) error
	// Healed records that a damaged partition was replaced: by the backup b, or, if b
	// is zero, by nothing, so that it is read from the log's beginning. was says what
	// the damage was.
	Healed(ctx context.Context, p millrace.Partition, was Why, b Backup, took time.Duration)
}

const (
	// maxRenewing is how many partitions are renewed at a time if that is urgent. With
	// small partitions many at a time are faster: they share the store's flushes, and
	// some are read while others are flushed. Large ones gain little, since they share
	// only the disk and the network.
	maxRenewing = 32
	// maxRereading is for a node without backups, which renews replicas from the log:
	// while so many replicas catch up or are renewed, for any cause, no further
	// renewal begins.
	maxRereading = 8
	// seekBackupFor is how long the place of the backups may fail to answer before a
	// replica is read from the log instead, if the log has its beginning.
	seekBackupFor = time.Minute
)

// renewal is a replacement, or a deletion, of a replica's content under way.
type renewal struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	was    Why           // what the replica was condemned for; zero: this node had nothing of the partition
	err    error         // set before done is closed
}

// stop has a renewal end soon. w may be nil: there is none.
func (w *renewal) stop() {
	if w != nil {
		w.cancel()
	}
}

// errNothing says that there is no backup from which a replica can go on.
var errNothing = errors.New("there is no backup of it that would do")

// errNoOrigin says that a backup does not say which log it comes from.
var errNoOrigin = errors.New("it has no origin")

// curable reports whether a quarantined replica may be renewed without an operator.
// Another log, or one that is shorter, is for an operator to judge, unless the node has
// nothing of the partition: then a backup of this log may have come since.
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

// renew begins to replace a replica's content by the newest backup from which the log can
// be read on. If there is none, the replica is read from the log's beginning. finish
// takes over the result.
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
			all.forgetParts(r) // a damaged backup may have left some, and the log has taken its place
			if dropped {
				all.uncache(r)
			}
		}
		if by != nil {
			all.healed(running, r, why, *by, time.Since(begun))
		}
		if end(); !waited && all.cfg.Backups != nil { // end comes first: only the next renewal waits for Rest, and not this replica
			all.cfg.Backups.Rest(running, time.Since(begun))
		}
	})
}

// forgetParts removes what interrupted restores have left of a replica. It is called when
// they will not be tried again.
func (all *Replicas) forgetParts(r *Replica) {
	if all.cfg.Backups == nil {
		return
	}
	if err := all.cfg.Backups.Forget(r.partition); err != nil {
		all.cfg.Log.Error("what was downloaded of a backup could not be removed; a restart tries again", "partition", r.partition, "err", err)
	}
}

// turn waits until a partition may be renewed. waited says whether that is urgent
// (Config.Waited). Urgent renewals run up to maxRenewing at a time, others one after the
// other. The caller must receive from lane when the renewal has ended.
func (all *Replicas) turn(ctx context.Context, r *Replica) (lane chan struct{}, waited bool, err error) {
	for {
		lane, waited = all.unhurried, all.cfg.Waited == nil || all.cfg.Waited(r.partition)
		if waited {
			lane = all.renewing
		}
		look := time.NewTimer(time.Second) // then it looks again whether the renewal is urgent
		select {
		case lane <- struct{}{}:
		case <-ctx.Done():
			err = ctx.Err()
		case <-look.C:
			if why, _ := r.Why(); why.Reason != BackupAway { // keep that reason, of an earlier try
				r.explain(Why{Restores, "others are restored before it"})
			}
			continue
		}
		look.Stop()
		return lane, waited, err
	}
}

// replace replaces a replica's content, and returns the backup that it used. The backup is
// the zero Backup if the content was deleted and the log is to be read from its beginning.
// It is nil if there was no content to replace, or if the partition was assigned elsewhere
// or an operator quarantined the replica meanwhile. If there is neither a backup nor the
// log's beginning, the error wraps errNothing or says what is wrong with each backup, and
// the content stays.
//
// why and since are what the replica was condemned for, and when.
func (all *Replicas) replace(ctx context.Context, r *Replica, log kafka.LogID, e ends, why Why, since time.Time) (by *Backup, err error) {
	begins := e.begin == [kafka.Streams]millrace.Offset{}
	sought := search{log: log, ends: e, past: r.origin().Past}
	err = errNothing
	if all.cfg.Backups != nil && begins && !sought.past && why.Reason == Differs { // the log itself is better than any backup, if it has everything
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
		return nil, nil // there is no content to delete
	}
	if !all.step(r, Replaced, why) && r.State() != Restoring {
		return nil, nil // assigned elsewhere meanwhile, or quarantined by an operator
	}
	all.cfg.Log.Warn("a partition is read anew from the log's beginning", "partition", r.partition, "was", why.Detail, "backup", err)
	r.Barrier()
	if err := all.cfg.Store.DropPartition(r.partition); err != nil {
		return nil, err
	}
	return new(Backup), nil
}

// patience returns how long to search for a backup if the log would do, too. since is
// when the replica began to need one. The time is short if the place of the backups has not
// answered any replica for long: hundreds of partitions may wait for their turn to ask.
func (all *Replicas) patience(since time.Time) time.Duration {
	if last := all.answered.Load(); last != nil && last.After(since) {
		since = *last
	}
	return max(all.seekFor/12, all.seekFor-time.Since(since))
}

// healed has Backups record, in the background, that a replica was replaced, if it was
// damaged. The replica does not wait for that: the place of the backups may not answer.
func (all *Replicas) healed(ctx context.Context, r *Replica, was Why, by Backup, took time.Duration) {
	if all.cfg.Backups != nil && was.Reason == Corrupt {
		all.renewals.Go(func() { all.cfg.Backups.Healed(ctx, r.partition, was, by, took) })
	}
}

// Whole reports whether this node has all that the log held of a partition up to some
// offsets, so that a backup may be made of it.
func (all *Replicas) Whole(p millrace.Partition) bool {
	r := &all.replicas[p]
	s := r.State()
	return (s == Ready || s == Stale) && r.origin().Whole
}

// beginning says where the log begins. If it has its beginning, beginning says instead that
// the log will not bring back what was before it.
func (e *ends) beginning(p millrace.Partition) string {
	for s, at := range e.begin {
		if at > 0 {
			return fmt.Sprintf("%s/%d begins at %d", kafka.Stream(s), p, at)
		}
	}
	return "what was before the log, it will not bring"
}

// pastError says that a backup has records that the log does not have. A replica that is
// read from the log's beginning would lack them.
type pastError struct{ why Why }

func (e *pastError) Error() string { return e.why.Detail }

// pastOf returns a *pastError if a backup has records that the log does not have, and
// else nil. o is the backup's origin, and why the reason for which the log cannot be read
// on from the backup; zero: it can.
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

// errSilent is why a search for a backup was given up: it took longer than its patience.
var errSilent = errors.New("the place of the backups does not answer in time")

// awayError is a failure to ask for backups.
type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

// hasPast reports whether any backup of this log also has records from before the log. The
// replica's own origin may not say so, if the replica was made anew from the log since. The
// search is given up after patience; the error is then an *awayError.
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

// othersHavePast reports whether another replica of this node has records from before the
// log. Then this one, read from the log's beginning, would probably lack some.
func (all *Replicas) othersHavePast(r *Replica, log kafka.LogID) bool {
	for p := range all.replicas {
		o := all.replicas[p].origin()
		if p != int(r.partition) && o.Past && o.Cluster == log.Cluster && o.Topics == log.Topics {
			return true
		}
	}
	return false
}

// backupsAnswered notes that the place of the backups answers now.
func (all *Replicas) backupsAnswered() {
	now := time.Now()
	all.answered.Store(&now)
}

// hereError is a failure of this node to restore a backup, which may be good.
type hereError struct{ err error }

func (e *hereError) Error() string { return e.err.Error() }
func (e *hereError) Unwrap() error { return e.err }

// failedHere reports whether a restore failed because of this node's own disk. An older
// backup would fail as well then, and the same one may succeed later. Any other failure
// may lie in the backup.
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
	log      kafka.LogID   // the log that is to be read on from the backup
	ends     ends          // where that log begins and ends
	past     bool          // the backup must have what was before that log
	patience time.Duration // how long the search, without the restore, may take; 0: no bound
}

// restore restores the newest backup that fits what is sought. If a backup is damaged, it
// tries the next older one. It returns the backup, which is zero if the partition was
// assigned elsewhere or an operator quarantined the replica meanwhile. The error may be an
// *awayError, a *hereError or a *pastError, and errNothing if there is no backup.
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
		if sought.ends.begin == [kafka.Streams]millrace.Offset{} { // else the log has lost its beginning, and replace does not read it in place of a backup anyway
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
		r.Barrier() // readers of the old content have ended
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

// finish takes over the results of the renewals and the deletion that have ended.
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
		if w.was.Reason != "" { // this node had something of the partition, which may be cached
			all.cfg.Host.Forget()
		}
		if r.State() == Absent {
			all.forgetParts(r)
			continue
		}
		all.finishOne(r, w)
	}
}

// finishOne takes over the result of a renewal: the replica catches up, or is quarantined
// again with the reason why it could not be renewed. A renewal that failed is tried again
// after 20 times Config.Limit. A replica without content that could not ask for backups is
// renewed again at the reconciler's next look at the log.
func (all *Replicas) finishOne(r *Replica, w *renewal) {
	if r.byOperator() { // an operator quarantined the replica meanwhile
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
		if r.State() == Quarantined { // there was no content to replace
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
	cause := why // it decides how the replica is renewed; the reason that is shown may be another
	if here := (*hereError)(nil); errors.As(err, &here) {
		why.Reason = whyFailing(err).Reason
	}
	if away := (*awayError)(nil); errors.As(err, &away) {
		why.Reason = BackupAway
		if r.State() == CatchingUp {
			r.explain(why)
			return // attach renews it again
		}
	}
	if !all.step(r, Failed, why) && !all.step(r, Condemned, why) {
		r.explain(why)
	} else if w.was.Reason == "" {
		r.setCause(cause)
	}
}

// rereading returns how many replicas catch up or are renewed, for any cause: also those
// that are new, or catch up after a start.
func (all *Replicas) rereading() (n int) {
	for p := range all.replicas {
		r := &all.replicas[p]
		if s := r.State(); s == CatchingUp || s == Restoring || r.renewal != nil {
			n++
		}
	}
	return n
}
