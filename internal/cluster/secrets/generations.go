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
	From   time.Time // when it takes the place of the generations before; zero: the first
	// Alone says that all generations that were made before it are not valid from then on.
	// Otherwise they stay valid for some time: see [Until].
	Alone bool
}

// Until returns when generation i of all, which come newest first, stops being valid. That is
// overlap after the next generation takes its place, or, if a newer generation is alone, at
// the moment when that one takes its place. It is zero if there is no newer generation.
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
	revision atomic.Int64 // of etcd, up to which changes are taken over
}

// Watch follows the generations of a secret until ctx or the client ends. As with [Get], the
// process that asks first makes the first generation, and while etcd is away those on disk
// count.
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
				continue // etcd has lost state, so its first is of another etcd or an older one
			}
			if !generation { // all processes use what etcd has, or they would never agree again
				c.Log().Warn("the first generation of a secret in etcd is not the one that was there: it was deleted, and a process that started made a new one; what the former signed is refused from now on", "secret", name)
			} else if err := keyspace.ValidID(from); err != nil { // the name becomes one of a file: it must not lead out of the directory
				if !refused[of] {
					refused[of] = true
					c.Log().Warn("a generation of a secret in etcd has a malformed name, and is left out", "secret", name, "err", err)
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

// GoesBy returns the kind of secrets and the revision of etcd up to which their changes are
// taken over. A process tells others these about itself.
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

// generationsOf returns the generations of a secret, the newest first, by the secrets'
// names: NAME is the first, NAME.FROM and NAME.FROM.alone are later ones, with FROM in
// milliseconds of Unix time.
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

// Ahead is how long before its From a generation may be made, at most.
const Ahead = time.Minute

// withoutRevoked leaves out generations that had not taken their place yet when one came
// that is alone. They were made before it, so they are not valid either. They are those
// with a From less than Ahead after its own: a generation that is made after it has a later
// one.
func withoutRevoked(all []Generation) []Generation {
	return slices.DeleteFunc(all, func(g Generation) bool {
		return slices.ContainsFunc(all, func(by Generation) bool { return by.drops(g) })
	})
}

// drops reports whether g is alone and revokes other, although other has a later From: see
// withoutRevoked.
func (g Generation) drops(other Generation) bool {
	return g.Alone && !other.Alone && other.From.After(g.From) && other.From.Before(g.From.Add(Ahead))
}

// alone ends the name of a generation that is alone; see generationsOf.
const alone = ".alone"

// All reads the generations of a secret once, the newest first. It returns none if there is
// no such secret yet.
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

// Rotate adds generation g of a secret, with random bytes. It deletes generations that were
// replaced before keep, except for the first, which any process that starts would make
// again. While the newest has not taken its place yet, another is refused, unless g is
// alone. A generation that is alone ends all that there are, even if the clock of a machine
// that made one of them was wrong.
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
		// Some clock is wrong, here or where the newest was made. By its time g does not end
		// the newest. So the same secret is added again, with a time just after the newest.
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

// signsFrom returns a generation as the history names it, without the secret.
func signsFrom(g Generation) string {
	if g.From.IsZero() {
		return "the first"
	}
	return "from " + g.From.UTC().Format(time.RFC3339)
}

// name returns the name of a generation in etcd; of is the secret's name. See generationsOf.
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
