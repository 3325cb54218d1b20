package keyspace

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/millrace/millrace/internal/partition"
)

// ErrPartitions says that the cluster has another number of partitions than this process.
// It is fatal: cluster and process disagree on which partition an entity belongs to.
var ErrPartitions = errors.New("cluster: another partition count")

// ErrNothing says that etcd holds nothing of the cluster, and this process remembers
// nothing of it: the cluster is new, or all of it is lost.
var ErrNothing = errors.New("cluster: etcd holds nothing of this cluster")

// The ways in which etcd may have lost the state that this process remembers.
var (
	ErrGone    = errors.New("cluster: etcd holds nothing of this cluster; keeping the last good state")
	ErrForeign = errors.New("cluster: this is another etcd cluster than before; keeping the last good state")
	ErrBack    = errors.New("cluster: etcd went back to an older revision; keeping the last good state")
	ErrAnew    = errors.New("cluster: etcd has lost the state of this cluster and holds the beginning of another; keeping the last good state")
)

// PastLost reports whether an error is ErrGone, ErrForeign, ErrBack or ErrAnew.
func PastLost(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, ErrForeign) || errors.Is(err, ErrBack) || errors.Is(err, ErrAnew)
}

// Origin says which etcd a process heard last, and at which revision, so that it notices
// another etcd or an older state. It is kept on disk: otherwise a restart would accept
// any state.
type Origin struct {
	Cluster  uint64 `json:"cluster"`  // the id that etcd's cluster gave itself
	Revision int64  `json:"revision"` // etcd's, of the newest snapshot taken over
	Keyspace Name   `json:"keyspace"` // that of the same snapshot
	// Back is the revision at which etcd was first seen to have gone back; 0: it has
	// not. Only a restoration resets it.
	Back int64 `json:"back,omitempty"`
}

// WentBack notes in o that etcd has gone back to an older state, as snapshot s shows, and
// returns ErrBack.
func (o *Origin) WentBack(s *Snapshot) error {
	if o.Back == 0 {
		o.Back = s.Revision
	}
	return ErrBack
}

// Judge returns what is wrong with a snapshot as a whole; nil: the caller can take it over.
// In that case Judge sets o to the snapshot's origin. After [ErrGone], [ErrBack] and
// [ErrAnew] the caller keeps its state, but may use what nodes have written about
// themselves.
func (o *Origin) Judge(s *Snapshot) error {
	restored := s.Keyspace.Generation > o.Keyspace.Generation
	switch {
	case o.Cluster != 0 && s.Cluster != o.Cluster && !restored:
		return ErrForeign
	case s.Count == "" && *o == Origin{}:
		return ErrNothing
	case s.Count == "":
		return ErrGone
	}
	if err := CheckCount(s.Count); err != nil {
		return err
	}
	switch {
	case restored || o.Keyspace == Name{}:
	case s.Keyspace.Before(o.Keyspace):
		return o.WentBack(s)
	case s.Keyspace != o.Keyspace:
		return ErrAnew
	case s.Revision < o.Revision || o.Back > 0:
		return o.WentBack(s)
	case s.Setback != nil:
		return ErrBack // another process has found that etcd went back
	}
	*o = Origin{Cluster: s.Cluster, Revision: s.Revision, Keyspace: s.Keyspace}
	if s.Setback != nil { // etcd went back, but this process remembers nothing newer
		s.Fault = errors.Join(s.Fault, ErrBack)
		o.Revision = 0 // so that this counts as older than what any other process has kept
	}
	return nil
}

// Moved reports whether o must be written to disk in place of p, the origin there. A new
// revision alone is not worth a write.
func (o Origin) Moved(p Origin) bool { return o.Keyspace != p.Keyspace || o.Back != p.Back }

// Compare returns -1 if o is older than p, 1 if it is newer, and else 0. A higher
// generation of the keyspace is newer; at equal generations a higher revision is.
func (o Origin) Compare(p Origin) int {
	return cmp.Or(cmp.Compare(o.Keyspace.Generation, p.Keyspace.Generation), cmp.Compare(o.Revision, p.Revision))
}

// CheckCount returns an ErrPartitions unless got is this program's number of partitions.
func CheckCount(got string) error {
	if got != strconv.Itoa(partition.Count) {
		return fmt.Errorf("%w: this program has %d, the cluster %.20q", ErrPartitions, partition.Count, got)
	}
	return nil
}
