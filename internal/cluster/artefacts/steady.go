package artefacts

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
)

// steadily is what must not change while [Steady] calls do, except for the artefact that do
// changes.
type steadily struct {
	kinds    []string
	revision int64 // of etcd when do began
}

// steadilyKey is the key in do's context of its *steadily.
type steadilyKey struct{}

// errUnsteady says that another artefact has changed meanwhile.
var errUnsteady = errors.New("cluster: what was looked at has changed meanwhile")

// Unsteady reports whether [Steady] calls do again after this error.
func Unsteady(err error) bool { return errors.Is(err, errUnsteady) }

// Steady calls do, which looks at artefacts of some kinds and changes one of them. By the
// context that do gets, the change is made only if no other artefact of these kinds has
// changed since do began; else Steady calls do again. So two changes that are each good
// alone, but not together, cannot both be made. The error is [ErrMoved] if others change
// artefacts all the time.
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

// unchangedBut returns the conditions that no artefact of the kinds has changed, except for
// one. [Kind.commit] has a condition of its own for that one.
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
