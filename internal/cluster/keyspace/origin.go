package keyspace

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/millrace/millrace/internal/partition"
)

// ErrPartitions is fatal: the process and the cluster disagree on where entities live.
var ErrPartitions = errors.New("cluster: another partition count")

// ErrNothing is the fault of who looks at an etcd that holds nothing of a
// cluster, and remembers nothing of it: it is new, or all of it is lost.
var ErrNothing = errors.New("cluster: etcd holds nothing of this cluster")

// What may be wrong with the state that etcd holds.
var (
	ErrGone    = errors.New("cluster: etcd holds nothing of this cluster; keeping the last good state")
	ErrForeign = errors.New("cluster: this is another etcd cluster than before; keeping the last good state")
	ErrBack    = errors.New("cluster: etcd went back to an older revision; keeping the last good state")
	ErrAnew    = errors.New("cluster: etcd has lost the state of this cluster and holds the beginning of another; keeping the last good state")
)

// PastLost reports whether an error is that etcd has lost state, is older than it
// was, or another one.
func PastLost(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, ErrForeign) || errors.Is(err, ErrBack) || errors.Is(err, ErrAnew)
}

// Origin is which etcd was heard last, to notice another one. It is kept on
// disk, or a restart would be enough to take another's state for this one's.
type Origin struct {
	Cluster  uint64 `json:"cluster"`
	Revision int64  `json:"revision"`
	Keyspace Name   `json:"keyspace"`
	// Back is where etcd was when it was first seen to have gone back. 0 while it
	// has not gone back; only a restoration ends it.
	Back int64 `json:"back,omitempty"`
}

// WentBack notes that etcd has gone back, and reports so.
func (o *Origin) WentBack(s *Snapshot) error {
	if o.Back == 0 {
		o.Back = s.Revision
	}
	return ErrBack
}

// Judge says what is wrong with a snapshot as a whole. What nodes say of
// themselves can be used with [ErrGone], [ErrBack] and [ErrAnew], too.
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
		return ErrBack // as another process has found
	}
	*o = Origin{Cluster: s.Cluster, Revision: s.Revision, Keyspace: s.Keyspace}
	if s.Setback != nil { // there is nothing better than what it has
		s.Fault = errors.Join(s.Fault, ErrBack)
		o.Revision = 0 // older than what anybody else keeps, who may know better
	}
	return nil
}

// Moved reports whether o is to be kept on disk instead of p: revisions alone
// are not worth it.
func (o Origin) Moved(p Origin) bool { return o.Keyspace != p.Keyspace || o.Back != p.Back }

// Compare orders what was heard of a cluster by age, oldest first.
func (o Origin) Compare(p Origin) int {
	return cmp.Or(cmp.Compare(o.Keyspace.Generation, p.Keyspace.Generation), cmp.Compare(o.Revision, p.Revision))
}

// CheckCount refuses what is not this program's partition count.
func CheckCount(got string) error {
	if got != strconv.Itoa(partition.Count) {
		return fmt.Errorf("%w: this program has %d, the cluster %.20q", ErrPartitions, partition.Count, got)
	}
	return nil
}
