package secrets

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Generation is one of the secrets that a cluster has had under a name.
type Generation struct {
	Secret []byte
	From   time.Time // when it takes the place of those before; zero: the first
	// Alone says that all that were made before are good for nothing from then on.
	Alone bool
}

// Until returns when the i-th of generations, the newest first, is good for nothing any
// more: overlap after the next one took its place, or at once if that is alone; zero if
// there is no next one.
func Until(all []Generation, i int, overlap time.Duration) (end time.Time) {
	for _, newer := range all[:i] {
		at := newer.From
		if !newer.Alone {
			at = at.Add(overlap)
		}
		if end.IsZero() || at.Before(end) {
			end = at
		}
	}
	return end
}

// Generations is a watched secret that is replaced from time to time.
type Generations struct {
	state    *keyspace.Latest[[]Generation]
	revision atomic.Int64 // of etcd, that it has taken over
}

// Watch watches the generations of a secret until ctx or the client ends.
// As with [Get] the first is made by whoever asks first, and while
// etcd is away those count that are on disk.
func Watch(ctx context.Context, c *cluster.Client, name string) (*Generations, error) {
	first, err := Get(ctx, c, name)
	if err != nil {
		return nil, err
	}
	known := map[string][]byte{name: first}
	if c.Dir() != "" {
		files, _ := filepath.Glob(filepath.Join(c.Dir(), "secret-"+name+".*"))
		for _, file := range files {
			if body, err := datadir.Read(file, Size); err == nil && len(body) == Size {
				known[strings.TrimPrefix(filepath.Base(file), "secret-")] = body
			}
		}
	}
	refused := map[string]bool{} // names that were logged
	learn := func(s *keyspace.Snapshot, err error) (news bool) {
		if err != nil {
			return false
		}
		for of, v := range s.Values {
			from, generation := strings.CutPrefix(of, name+".")
			if !generation && of != name || len(v.Data) != Size || bytes.Equal(known[of], v.Data) {
				continue
			}
			if !generation && c.Lost() != nil {
				continue // the first of another etcd, or of a former one
			}
			if !generation { // all go by what etcd has, or they part for good
				c.Log().Warn("the first of a secret is another in etcd: somebody deleted it, and the next who started made one; what was signed by the former is not known any more", "secret", name)
			} else if err := keyspace.ValidID(from); err != nil { // the name becomes one of a file: it must not lead out of the directory
				if !refused[of] {
					refused[of] = true
					c.Log().Warn("a generation of a secret in etcd has a name that is none, and is left out", "secret", name, "err", err)
				}
				continue
			}
			known[of], news = v.Data, true
			if c.Dir() == "" {
				continue
			}
			file := filepath.Join(c.Dir(), "secret-"+of)
			c.WriteFile(file, func() error { return datadir.Replace(file, v.Data, 0o600) })
		}
		return news
	}
	call, cancel := context.WithTimeout(ctx, c.FirstCall())
	learn(c.List(call, cluster.SecretsPrefix))
	cancel()
	g := &Generations{state: keyspace.NewLatest(generationsOf(name, known))}
	c.Run(func() {
		c.Follow(ctx, cluster.SecretsPrefix, func(s *keyspace.Snapshot, err error) {
			if learn(s, err) {
				g.state.Set(generationsOf(name, known), nil)
			}
			if err == nil {
				g.revision.Store(s.Revision)
			}
		})
	})
	return g, nil
}

// GoesBy tells of the secrets that it has taken over.
func (g *Generations) GoesBy() (string, cluster.Applied) {
	return cluster.SecretsKind, cluster.Applied{Revision: g.revision.Load()}
}

// Changed is as [cluster.Watcher.Changed].
func (g *Generations) Changed() <-chan struct{} { return g.state.Changed() }

// Current returns the generations, the newest first.
func (g *Generations) Current() []Generation {
	all, _ := g.state.Get()
	return all
}

// generationsOf returns what secrets say by their names: NAME, NAME.FROM and
// NAME.FROM.alone, FROM in milliseconds of Unix time.
func generationsOf(name string, secrets map[string][]byte) (all []Generation) {
	for _, of := range slices.Sorted(maps.Keys(secrets)) {
		g := Generation{Secret: secrets[of]}
		if text, later := strings.CutPrefix(of, name+"."); later {
			text, g.Alone = strings.CutSuffix(text, alone)
			ms, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				continue // not a key that Rotate has written
			}
			g.From = time.UnixMilli(ms)
		}
		all = append(all, g)
	}
	slices.SortStableFunc(all, func(a, b Generation) int { return cmp.Or(b.From.Compare(a.From), bytes.Compare(a.Secret, b.Secret)) })
	return withoutRevoked(all)
}

// Ahead is how long before it takes its place a generation is made, at most.
const Ahead = time.Minute

// withoutRevoked leaves out generations that were yet to take their place when one
// came that is alone: they were made before it, and are as good for nothing as those
// that had their place. One that is made after it takes its place later than Ahead.
func withoutRevoked(all []Generation) []Generation {
	return slices.DeleteFunc(all, func(g Generation) bool {
		return slices.ContainsFunc(all, func(by Generation) bool { return by.drops(g) })
	})
}

// drops reports whether a generation leaves one out that was yet to take its place.
func (g Generation) drops(other Generation) bool {
	return g.Alone && !other.Alone && other.From.After(g.From) && other.From.Before(g.From.Add(Ahead))
}

const alone = ".alone"

// All reads the generations of a secret once, the newest first; none
// before there is a first.
func All(ctx context.Context, c *cluster.Client, name string) ([]Generation, error) {
	s, err := c.List(ctx, cluster.SecretsPrefix)
	if err != nil {
		return nil, err
	}
	secrets := make(map[string][]byte, len(s.Values))
	for of, v := range s.Values {
		if of == name || strings.HasPrefix(of, name+".") {
			secrets[of] = v.Data
		}
	}
	return generationsOf(name, secrets), nil
}

// Rotate adds a generation of a secret. Generations that were replaced before keep are
// deleted, but for the first, which any process that starts would make again. While one
// is yet to take its place another is refused, unless that is alone. One that is alone
// ends all that there are, whatever the clocks of the machines that made them say.
func Rotate(ctx context.Context, c *cluster.Client, name string, g Generation, keep time.Time) error {
	fail := func(err error) error { return fmt.Errorf("cluster: rotate %s: %w", name, err) }
	all, err := All(ctx, c, name)
	if err != nil {
		return fail(err)
	}
	if len(all) == 0 {
		return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: name, Detail: "there is none yet", WayOut: "start a broker, which makes the first"}
	}
	if all[0].From.After(time.Now()) && !g.Alone {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: name, Detail: fmt.Sprintf("the newest is to take its place at %s", all[0].From.Format(time.RFC3339)), WayOut: "wait until then"}
	}
	var ops []clientv3.Op
	for i, old := range all {
		if i > 0 && !old.From.IsZero() && all[i-1].From.Before(keep) {
			ops = append(ops, clientv3.OpDelete(c.Prefix()+cluster.SecretsPrefix+old.name(name)))
		}
	}
	g.Secret = make([]byte, Size)
	_, _ = rand.Read(g.Secret) // never fails
	added := []Generation{g}
	if newest := all[0]; g.Alone && !g.From.After(newest.From) && !g.drops(newest) {
		// Some clock is wrong, here or where the newest was made. The same secret
		// behind that ends what g, by its time, does not.
		added = append(added, Generation{Secret: g.Secret, From: newest.From.Add(time.Millisecond), Alone: true})
	}
	var absent []clientv3.Cmp
	for _, a := range added {
		key := c.Prefix() + cluster.SecretsPrefix + a.name(name)
		absent = append(absent, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		ops = append(ops, clientv3.OpPut(key, string(a.Secret)))
	}
	act := audit.Entry{Act: "rotate", On: "secret " + name, Before: signsFrom(all[0]), After: signsFrom(g)}
	if g.Alone {
		act.Act = "revoke"
	}
	noted, err := c.Noted(act)
	if err != nil {
		return fail(err)
	}
	resp, err := c.Etcd().Txn(ctx).If(absent...).Then(append(ops, noted...)...).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("another was added at the same instant")
	}
	if err != nil {
		return fail(c.PerhapsDone(err))
	}
	c.NoteWritten(cluster.SecretsKind, name, resp.Header.Revision)
	c.TrimHistory(ctx)
	return nil
}

// signsFrom is a generation as the history says it, never the secret.
func signsFrom(g Generation) string {
	if g.From.IsZero() {
		return "the first"
	}
	return "from " + g.From.UTC().Format(time.RFC3339)
}

// name is what a generation is called.
func (g Generation) name(of string) string {
	if g.From.IsZero() {
		return of
	}
	of += "." + strconv.FormatInt(g.From.UnixMilli(), 10)
	if g.Alone {
		of += alone
	}
	return of
}
