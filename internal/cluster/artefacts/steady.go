package artefacts

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
)

// steadily is what must not change while artefacts of some kinds are looked at and
// one of them is changed.
type steadily struct {
	kinds    []string
	revision int64 // when the looking began
}

type steadilyKey struct{}

// errUnsteady says that something else has changed meanwhile.
var errUnsteady = errors.New("cluster: what was looked at has changed meanwhile")

// Unsteady reports whether an error has [Steady] call again.
func Unsteady(err error) bool { return errors.Is(err, errUnsteady) }

// Steady calls do, which looks at artefacts of some kinds and changes one of them,
// with a context by which the change is made only if no other of these kinds has
// changed since do began: else do is called again. So two changes of which each is
// good without the other cannot both be made. It gives [ErrMoved] while others
// change them all the time.
func Steady(ctx context.Context, c *cluster.Client, kinds []string, do func(ctx context.Context) error) error {
	for range cluster.MaxChanges {
		call, cancel := context.WithTimeout(ctx, c.AskTime())
		got, err := c.Etcd().Get(call, c.KeyspaceKey())
		cancel()
		if err != nil {
			return c.Unanswered(err)
		}
		err = do(context.WithValue(ctx, steadilyKey{}, &steadily{kinds, got.Header.Revision}))
		if !Unsteady(err) {
			return err
		}
	}
	return fmt.Errorf("%w, all the time; try again", ErrMoved)
}

// unchangedBut returns what holds while nothing but one artefact has changed; of
// which [Kind.change] sees to it.
func (s *steadily) unchangedBut(a *Kind, name string) (all []clientv3.Cmp) {
	within := func(from, to string) {
		all = append(all, clientv3.Compare(clientv3.ModRevision(from), "<", s.revision+1).WithRange(to))
	}
	for _, kind := range s.kinds {
		prefix := a.c.Prefix() + documents.Prefix(kind)
		if end := clientv3.GetPrefixRangeEnd(prefix); kind != a.kind {
			within(prefix, end)
		} else {
			within(prefix, a.docs.Key(name))
			within(a.docs.Key(name)+"\x00", end)
		}
	}
	return all
}
