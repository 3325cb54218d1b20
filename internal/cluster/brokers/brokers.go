// Package brokers registers brokers in etcd, with the state by which each answers. So after a
// change, such as a new model, it can be seen which brokers have taken it over. The package
// also has the viewers whose requests brokers trace.
package brokers

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/line"
	"github.com/millrace/millrace/internal/wait"
)

// Broker is what a broker writes about itself in etcd.
type Broker struct {
	Name    string `json:"name"`            // as in the exposures (records of what answers showed) that the broker writes
	Addr    string `json:"addr"`            // host:port of its gRPC
	Admin   string `json:"admin,omitempty"` // host:port of its admin port; empty: it has none
	Version string `json:"version"`         // of Millrace
	// GoesBy is which state the broker has taken over, by kind: a kind of documents
	// ([artefacts.Kind], [artefacts.Condemned]), [cluster.SecretsKind] or
	// [cluster.TraceKind].
	GoesBy map[string]cluster.Applied `json:"goes_by"`
	Told   time.Time                  `json:"told"` // when it wrote this, by its own clock
}

// Applying watches one kind of state in etcd, and tells what this process has taken over of
// it. [artefacts.Kind], [artefacts.Condemned], [secrets.Generations] and [Traced] implement
// it.
type Applying interface {
	GoesBy() (kind string, by cluster.Applied)
}

const (
	brokersPrefix = "brokers/"
	// brokerSeconds is how long a silent broker stays registered. It may be cut off from
	// etcd, and still answer by an old state.
	brokerSeconds = 600
	// brokerLooks is how often a broker looks whether the state it has taken over has
	// changed since it wrote it.
	brokerLooks = 250 * time.Millisecond
	// brokerBeat is how often it writes at least.
	brokerBeat = 5 * time.Second
	// brokerSilent is how long after its last write a broker counts as silent.
	brokerSilent = 3 * brokerBeat
	// maxBrokerBytes bounds a broker's registration before it is parsed.
	maxBrokerBytes = 64 << 10
)

// Silent returns how long a broker has written nothing; 0 if it wrote within brokerSilent.
func (b *Broker) Silent(now time.Time) time.Duration {
	if since := now.Sub(b.Told); since > brokerSilent {
		return since
	}
	return 0
}

// announcement keeps a broker's registration in etcd.
type announcement struct {
	c     *cluster.Client
	key   string
	who   Broker           // as it was written last
	by    []Applying       // tell what the broker has taken over
	lease clientv3.LeaseID // 0: none yet
	done  chan struct{}    // closed when run has ended
}

// Announce registers a broker in etcd, and keeps its state there up to date, until leave is
// called or the client is closed. It does not wait for etcd. leave removes the registration.
// Two processes share a key only if they have the same instance and name; instance is a word
// kept in the data directory, or "" for one that only this process has.
func Announce(c *cluster.Client, who Broker, instance string, by ...Applying) (leave func(context.Context) error) {
	if instance == "" {
		instance = keyspace.New(1).ID
	}
	word := sha256.Sum256([]byte(instance + "\x00" + who.Name))
	a := &announcement{c: c, key: fmt.Sprintf("%s%s%x", c.Prefix(), brokersPrefix, word[:8]), who: who, by: by, done: make(chan struct{})}
	ctx, stop := context.WithCancel(c.Context())
	c.Run(func() { a.run(ctx) })
	return func(ctx context.Context) error {
		stop()
		<-a.done
		if a.lease == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
		defer cancel()
		if _, err := c.Etcd().Revoke(ctx, a.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("cluster: leave %s: %w", who.Name, cluster.Away(err))
		}
		return nil
	}
}

func (a *announcement) run(ctx context.Context) {
	defer close(a.done)
	look := time.NewTicker(brokerLooks)
	defer look.Stop()
	var fault error
	for ctx.Err() == nil {
		now := a.goesBy()
		if time.Since(a.who.Told) >= brokerBeat || fault != nil || !reflect.DeepEqual(now, a.who.GoesBy) {
			err := a.tell(ctx, now)
			if ctx.Err() == nil && err != nil && fault == nil {
				a.c.Log().Warn("etcd does not have what this broker goes by; trying again", "err", err)
			}
			fault = err
		}
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
}

func (a *announcement) goesBy() map[string]cluster.Applied {
	all := make(map[string]cluster.Applied, len(a.by))
	for _, x := range a.by {
		kind, by := x.GoesBy()
		all[kind] = by
	}
	return all
}

// tell writes the registration with the state by, under a lease that is kept alive until ctx
// ends.
func (a *announcement) tell(ctx context.Context, by map[string]cluster.Applied) error {
	call, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	if a.lease == 0 {
		lease, err := a.c.Etcd().Grant(call, brokerSeconds)
		if err != nil {
			return cluster.Away(err)
		}
		alive, err := a.c.Etcd().KeepAlive(ctx, lease.ID)
		if err != nil {
			return cluster.Away(err)
		}
		a.lease = lease.ID
		a.c.Run(func() {
			for range alive { // until the lease or ctx ends
			}
		})
	}
	who := a.who
	who.GoesBy, who.Told = by, time.Now().UTC().Truncate(time.Millisecond)
	body, err := json.Marshal(who)
	if err != nil {
		return err
	}
	_, err = a.c.Etcd().Put(call, a.key, string(body), clientv3.WithLease(a.lease))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		a.lease = 0
	}
	if err != nil {
		return cluster.Away(err)
	}
	a.who = who
	return nil
}

// Hearer is a broker, and which of some changes it has not taken over.
type Hearer struct {
	Broker
	Behind []Behind // none: it has taken over all
}

// Behind is a change that a broker has not taken over.
type Behind struct {
	cluster.Written
	Heard bool // the broker knows of the change, and could not take it over, or has not yet
	// Ahead says that etcd has lost state, and the broker answers by what was lost.
	Ahead bool
}

const (
	hearWithin = 3 * time.Second        // how long to wait for brokers to take changes over
	hearAgain  = 100 * time.Millisecond // between two looks
)

// Heard returns the registered brokers, sorted by name, as soon as all of them have taken
// over the changes, or after 3 s. A broker of an old version that does not register is not
// among them.
func Heard(ctx context.Context, c *cluster.Client, of []cluster.Written) ([]Hearer, error) {
	return hear(ctx, c, of, func([]Hearer) time.Duration { return hearWithin })
}

// hear is Heard, with the time to wait as a function of what is known so far.
func hear(ctx context.Context, c *cluster.Client, of []cluster.Written, within func([]Hearer) time.Duration) ([]Hearer, error) {
	for began := time.Now(); ; {
		now, err := read(ctx, c, nil)
		if err != nil {
			return nil, err
		}
		all, behind := hearers(now.all, of, now.lost)
		if !behind || time.Since(began) > within(all) {
			return all, nil
		}
		if err := wait.For(ctx, hearAgain); err != nil {
			return nil, err
		}
	}
}

// All is [Heard] for the newest change of every kind that brokers take over. As long as a
// broker that is not silent has not heard of a change, it waits up to [cluster.LookTime],
// within which every process reads etcd anew.
func All(ctx context.Context, c *cluster.Client) ([]Hearer, error) {
	now, err := read(ctx, c, nil)
	if err != nil {
		return nil, err
	}
	if now, err = read(ctx, c, kindsOf(now.all)); err != nil {
		return nil, err
	}
	return hear(ctx, c, now.newest, func(all []Hearer) time.Duration {
		if slices.ContainsFunc(all, func(h Hearer) bool { return h.mayHear() }) {
			return cluster.LookTime
		}
		return hearWithin
	})
}

// mayHear reports whether a broker is not silent and has not heard of some change yet.
func (h *Hearer) mayHear() bool {
	return h.Silent(time.Now()) == 0 && slices.ContainsFunc(h.Behind, func(x Behind) bool { return !x.Heard && !x.Ahead })
}

// hearers returns each broker with the changes that it has not taken over, and whether any
// broker is behind. Changes of a kind that no broker mentions do not count. lost says that
// etcd has lost state; then a broker without any revision of a kind is ahead of etcd.
func hearers(brokers []Broker, of []cluster.Written, lost bool) (all []Hearer, behind bool) {
	kinds := kindsOf(brokers)
	for _, b := range brokers {
		h := Hearer{Broker: b}
		for _, w := range of {
			by := b.GoesBy[w.Kind]
			not := slices.Contains(by.Not, w.Name) || slices.Contains(by.Not, cluster.AnyName) || w.Name == "" && len(by.Not) > 0
			if heard := by.Revision >= w.Revision; slices.Contains(kinds, w.Kind) && (!heard || not) {
				h.Behind = append(h.Behind, Behind{w, heard, lost && !heard && by.Revision == 0})
			}
		}
		behind = behind || len(h.Behind) > 0
		all = append(all, h)
	}
	return all, behind
}

// kindsOf returns the kinds that brokers mention, sorted.
func kindsOf(brokers []Broker) []string {
	kinds := map[string]bool{}
	for _, b := range brokers {
		for kind := range b.GoesBy {
			kinds[kind] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

// spoken is what etcd has about brokers at one moment.
type spoken struct {
	all    []Broker
	newest []cluster.Written // the newest change of each kind that was asked for
	lost   bool              // etcd has lost state, which some process still has
}

// read reads the registered brokers, sorted by name, and the newest change of each of kinds,
// in one transaction. A registration that cannot be parsed is left out.
func read(ctx context.Context, c *cluster.Client, kinds []string) (now spoken, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	ops := []clientv3.Op{clientv3.OpGet(c.Prefix()+brokersPrefix, clientv3.WithPrefix()), clientv3.OpGet(c.SetbackKey(), clientv3.WithCountOnly()), clientv3.OpGet(c.RememberedKey(), clientv3.WithCountOnly())}
	for _, kind := range kinds {
		ops = append(ops, clientv3.OpGet(c.Prefix()+prefixOf(kind), append(clientv3.WithLastRev(), clientv3.WithKeysOnly())...))
	}
	got, err := c.Etcd().Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return now, c.Unanswered(err)
	}
	for _, kv := range got.Responses[0].GetResponseRange().Kvs {
		var b Broker
		if len(kv.Value) > maxBrokerBytes || json.Unmarshal(kv.Value, &b) != nil || b.Name == "" {
			c.Log().Warn("what a broker says of itself is left out", "key", string(kv.Key))
			continue
		}
		b.Name, b.Addr, b.Admin, b.Version = line.Of(b.Name), line.Of(b.Addr), line.Of(b.Admin), line.Of(b.Version)
		now.all = append(now.all, b)
	}
	now.lost = got.Responses[1].GetResponseRange().Count+got.Responses[2].GetResponseRange().Count > 0
	slices.SortStableFunc(now.all, func(a, b Broker) int { return strings.Compare(a.Name, b.Name) })
	for i, kind := range kinds {
		for _, kv := range got.Responses[3+i].GetResponseRange().Kvs {
			now.newest = append(now.newest, cluster.Written{Kind: kind, Revision: kv.ModRevision})
		}
	}
	return now, nil
}

// prefixOf returns the prefix of the keys of a kind.
func prefixOf(kind string) string {
	switch kind {
	case cluster.SecretsKind:
		return cluster.SecretsPrefix
	case cluster.TraceKind:
		return tracePrefix
	}
	return cluster.DocsPrefix + kind + "/"
}
