// Package brokers is what brokers say of themselves in etcd, so that who changes
// something can tell which of them have heard of it, and the viewers whom they trace.
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

// Broker is what a broker says of itself in etcd.
type Broker struct {
	Name    string `json:"name"`            // as in exposures
	Addr    string `json:"addr"`            // host:port of its gRPC
	Admin   string `json:"admin,omitempty"` // host:port of its admin port; empty: it has none
	Version string `json:"version"`
	// GoesBy is what it answers by, by kind: of [artefacts.Kind] and [artefacts.Condemned] theirs,
	// else one of the kinds below.
	GoesBy map[string]cluster.Applied `json:"goes_by"`
	Told   time.Time                  `json:"told"` // when it wrote this, by its own clock
}

// Applying tells what its process goes by: [artefacts.Kind], [artefacts.Condemned],
// [secrets.Generations] and [Traced] do.
type Applying interface {
	GoesBy() (kind string, by cluster.Applied)
}

const (
	brokersPrefix = "brokers/"
	// brokerSeconds is how long a broker that is silent is still named: it may be cut
	// off from etcd, and answer by what was before.
	brokerSeconds = 600
	// brokerLooks is how often a broker looks whether what it goes by is another than
	// it has told, and brokerBeat how often it tells it all the same.
	brokerLooks = 250 * time.Millisecond
	brokerBeat  = 5 * time.Second
	// brokerSilent is how long after its last word a broker counts as silent.
	brokerSilent = 3 * brokerBeat
	// maxBrokerBytes bounds what a broker says before it is parsed.
	maxBrokerBytes = 64 << 10
)

// Silent returns for how long a broker has told nothing; 0 while it does.
func (b *Broker) Silent(now time.Time) time.Duration {
	if since := now.Sub(b.Told); since > brokerSilent {
		return since
	}
	return 0
}

// announcement keeps in etcd what a broker says of itself.
type announcement struct {
	c     *cluster.Client
	key   string
	who   Broker // as it was told last
	by    []Applying
	lease clientv3.LeaseID // 0: it is to be had
	done  chan struct{}
}

// Announce has a broker say in etcd which it is, and what it goes by, until leave is
// called, which takes it back, or the client ends. It waits for nothing. Two processes
// do not say it in the same place unless they have the same instance, a word of their
// data directory, and the same name; empty: this process alone.
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

// tell writes what the broker goes by, under a lease that is kept alive as long as
// etcd is heard.
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

// Hearer is a broker, and what of some changes it does not go by.
type Hearer struct {
	Broker
	Behind []Behind // none: it goes by all of it
}

// Behind is a change that a broker does not go by.
type Behind struct {
	cluster.Written
	Heard bool // it knows of it, and could not take it over, or has not yet
	// Ahead is of a broker that goes by what etcd has lost.
	Ahead bool
}

const (
	hearWithin = 3 * time.Second
	hearAgain  = 100 * time.Millisecond
)

// Heard returns the brokers that are registered, by name, once all of them go by
// changes, or after 3 s. A broker of a version that registers nowhere is none of them.
func Heard(ctx context.Context, c *cluster.Client, of []cluster.Written) ([]Hearer, error) {
	return hear(ctx, c, of, func([]Hearer) time.Duration { return hearWithin })
}

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

// All is [Heard] of all that etcd has of what brokers go by. One that speaks
// and has not heard has [cluster.LookTime], in which all read etcd anew, as after a restoration:
// who is behind then has been so for that long.
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

// mayHear reports whether a broker speaks and has not heard of all.
func (h *Hearer) mayHear() bool {
	return h.Silent(time.Now()) == 0 && slices.ContainsFunc(h.Behind, func(x Behind) bool { return !x.Heard && !x.Ahead })
}

// hearers says of each broker which changes it does not go by, and whether there is
// such a broker. What no broker says anything of is nothing that brokers go by. In an
// etcd that has lost state, who goes by nothing of it is ahead.
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

// kindsOf are the kinds that brokers say something of.
func kindsOf(brokers []Broker) []string {
	kinds := map[string]bool{}
	for _, b := range brokers {
		for kind := range b.GoesBy {
			kinds[kind] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

// spoken is what etcd has of brokers at a moment.
type spoken struct {
	all    []Broker
	newest []cluster.Written // the newest change of each kind that was asked for
	lost   bool              // some process keeps what etcd has lost
}

// read reads what brokers say of themselves, and the newest change of each of some
// kinds.
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

// prefixOf is where what is of a kind stands.
func prefixOf(kind string) string {
	switch kind {
	case cluster.SecretsKind:
		return cluster.SecretsPrefix
	case cluster.TraceKind:
		return tracePrefix
	}
	return cluster.DocsPrefix + kind + "/"
}
