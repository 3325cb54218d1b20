// Package members is what nodes say of themselves in etcd: that they live and at
// which address, what they are ready for, what they hold, and what they made of the
// models. A name belongs to one process, by a lease.
package members

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/wait"
)

// leftSeconds is how long a node that left is remembered as such.
const leftSeconds = 60

// errNameLost ends a registration that another process has taken, or that
// somebody removed.
var errNameLost = errors.New("cluster: the registration was removed; registering again")

// Membership is a node's registration. It works in the background: whatever
// happens to etcd, it registers the node as soon as it can, and again when the
// registration is lost. Its methods wait for nothing, but Leave.
//
// One goroutine, run, does all the talking to etcd, so that tellings stay in
// order. What the node says of itself is kept as the values that its keys
// should have; run writes what differs from what etcd has.
type Membership struct {
	c         *cluster.Client
	node      topology.Node
	stop      context.CancelFunc
	done      chan struct{}             // closed when run has returned
	unwatched func()                    // takes its alarm back
	state     *keyspace.Latest[bool]    // whether the node is registered; the fault is why it is not
	news      chan struct{}             // holds one token when mu.said changed
	lease     clientv3.LeaseID          // of the present registration, or the last one. Of run, and of Leave after it
	own       map[clientv3.LeaseID]bool // every lease that was granted. Of run alone
	told      map[string]told           // by kind, what etcd has. Of run alone
	seen      time.Time                 // when run last said that the node lives. Of run alone
	once      bool                      // whether the node has been registered. Of run alone
	noted     bool                      // whether the data directory says that this process registers. Of run alone
	unnoted   error                     // why it does not. Of run alone
	other     pulse                     // of a registration from the same directory, elsewhere. Of run alone

	mu struct {
		sync.Mutex
		said map[string]string // by kind, what the node says of itself; "": nothing
	}
}

// told is a value as etcd has it.
type told struct {
	value    string
	revision int64 // that wrote it; 0 where there is none
}

// stateKinds are the keys that a node says something of itself with.
var stateKinds = []string{"ready", "lag", "state", "models", statsKind}

// Join registers a node under a lease of a few seconds and keeps it
// registered, until ctx or the client ends or the node leaves. It returns at
// once; an error is a node that cannot be registered at all.
//
// A name belongs to one process. While another one is registered by it, this
// one waits, and [Membership.Fault] names the other's address; but a process
// with the same [topology.Node.Instance] and [topology.Node.Place] is the one that ran before this
// one, and is replaced at once. With the same instance elsewhere it ran in the
// directory before that was moved, or runs in one that this one is a copy of: it
// is replaced when it has been silent for longer than a living one is.
func Join(ctx context.Context, c *cluster.Client, n topology.Node) (*Membership, error) {
	if err := topology.CheckID(n.ID); err != nil {
		return nil, err
	}
	if n.Addr == "" {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "addr", Detail: fmt.Sprintf("node %s has no address", n.ID), WayOut: "say under which host:port brokers reach it"}
	}
	if !topology.ValidWeight(n.Weight) {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "weight", Detail: fmt.Sprintf("%v is no weight", n.Weight), WayOut: fmt.Sprintf("give %v to %v, or leave it out for 1", topology.MinWeight, topology.MaxWeight)}
	}
	if n.Dir.Word != "" {
		n.Instance, n.Place, n.Start = n.Dir.Word, n.Dir.Place, n.Dir.Start+1
	}
	if n.Instance == "" {
		n.Instance = rand.Text()
	}
	run, stop := context.WithCancel(c.Context())
	context.AfterFunc(ctx, stop)
	m := &Membership{
		c: c, node: n, stop: stop, done: make(chan struct{}), state: keyspace.NewLatest(false), news: make(chan struct{}, 1),
		own: map[clientv3.LeaseID]bool{}, told: map[string]told{},
	}
	var none topology.Set
	m.mu.said = map[string]string{"ready": string(none.Encode())}
	m.state.Set(false, fmt.Errorf("cluster: node %s is being registered", n.ID))
	m.unwatched = c.Alarm(run, "node "+string(n.ID), m.state.FaultSince)
	c.Run(func() { m.run(run) })
	return m, nil
}

// Fault says why the node is not registered now: etcd is away, or another
// process holds its name. nil while it is registered.
func (m *Membership) Fault() error { _, err := m.state.Get(); return err }

// Changed returns a channel that is closed when [Membership.Fault] changes.
// Take it before looking.
func (m *Membership) Changed() <-chan struct{} { return m.state.Changed() }

// SetAnswering notes which partitions the node is caught up on, and how far it is
// behind the log, to be told as soon as etcd listens. Of several that were not told
// yet the last one counts. The two are told together: nobody hears of a partition as
// ready that is behind.
func (m *Membership) SetAnswering(ready topology.Set, lag topology.Lag) {
	m.sayAll(map[string]string{"ready": string(ready.Encode()), "lag": encodeLag(lag)})
}

func encodeLag(lag topology.Lag) string {
	if lag == (topology.Lag{}) {
		return ""
	}
	return string(lag.Encode())
}

// SetReports notes why partitions of the node are not ready, otherwise as
// SetAnswering. What is too long to be told is shortened.
func (m *Membership) SetReports(reports []topology.Report) {
	m.say("state", string(topology.EncodeReports(reports)))
}

func (m *Membership) say(kind, value string) { m.sayAll(map[string]string{kind: value}) }

// sayAll notes values by kind, which are told together.
func (m *Membership) sayAll(values map[string]string) {
	m.mu.Lock()
	maps.Copy(m.mu.said, values)
	m.mu.Unlock()
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// said returns what the node says of itself now.
func (m *Membership) said() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.mu.said)
}

// key is where a kind is in etcd: below what makes a map but for stats, which
// no broker is to hear of.
func (m *Membership) key(kind string) string {
	if kind == statsKind {
		return m.c.Prefix() + kind + "/" + string(m.node.ID)
	}
	return m.c.Prefix() + cluster.MapPrefix + kind + "/" + string(m.node.ID)
}

// run holds the registration until ctx ends.
func (m *Membership) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		err := m.hold(ctx)
		if ctx.Err() != nil {
			return
		}
		if !keyspace.SameFault(err, m.Fault()) {
			m.c.Log().Warn("the node is not registered; trying again", "node", m.node.ID, "err", err)
			m.state.Set(false, err)
		}
		_ = wait.For(ctx, cluster.RetryAfter)
	}
}

// hold registers the node and keeps what etcd has of it up to date. It returns
// why the registration could not be had, or was lost.
func (m *Membership) hold(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx) // or the lease would outlive the registration
	defer cancel()
	if err := m.register(ctx); err != nil {
		return err
	}
	alive, err := m.c.Etcd().KeepAlive(ctx, m.lease)
	if err != nil {
		return err
	}
	m.once = true
	m.state.Set(true, nil)
	m.c.Log().Info("node registered", "node", m.node.ID, "addr", m.node.Addr)
	for {
		var again <-chan time.Time
		m.note()
		if err := m.update(ctx); errors.Is(err, errNameLost) {
			return err
		} else if err != nil {
			again = time.After(cluster.RetryAfter)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-alive: // a sign of life every few seconds
			if !ok {
				return errors.New("cluster: etcd has not been heard for as long as the registration lasts; registering again")
			}
		case <-m.news:
		case <-again:
		}
	}
}

// register takes a new lease and writes the node's keys under it, unless
// another process has the name.
func (m *Membership) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	var revision int64
	got, err := m.c.Etcd().Get(ctx, m.key("nodes"))
	if err != nil {
		return cluster.Away(err)
	}
	if len(got.Kvs) > 0 {
		if err := m.mayReplace(ctx, got.Kvs[0]); err != nil {
			return err
		}
		revision = got.Kvs[0].ModRevision
	}
	if err := m.outdated(ctx); err != nil {
		return err
	}
	lease, err := m.c.Etcd().Grant(ctx, cluster.LeaseSeconds)
	if err != nil {
		return cluster.Away(err)
	}
	m.own[lease.ID] = true
	body, err := json.Marshal(topology.Registration{Node: m.node, Memory: m.c.Memory()})
	if err != nil {
		return err
	}
	m.note()
	said, now := m.said(), time.Now()
	ops := []clientv3.Op{
		clientv3.OpPut(m.key("nodes"), string(body), clientv3.WithLease(lease.ID)),
		clientv3.OpPut(m.key("known"), string(body)),
		clientv3.OpPut(seenKey(m.c, m.node.ID), now.UTC().Format(time.RFC3339)),
		clientv3.OpDelete(m.key("left")),
	}
	for _, kind := range stateKinds {
		ops = append(ops, m.write(kind, said[kind], lease.ID))
	}
	put, err := m.c.Etcd().Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(m.key("nodes")), "=", revision)).Then(ops...).Commit()
	switch {
	case err != nil:
		return cluster.Away(err)
	case !put.Succeeded:
		return fmt.Errorf("cluster: another process registers as %s at the same time", m.node.ID)
	}
	m.lease, m.seen = lease.ID, now
	for _, kind := range stateKinds {
		m.told[kind] = toldAt(said[kind], put.Header.Revision)
	}
	return nil
}

// note keeps in the data directory that this process registers, before etcd knows:
// one that says less than etcd is refused as an outdated copy as soon as it is
// elsewhere, as after a reboot. A disk that takes nothing keeps no node away: it is
// tried again as long as the node is registered.
func (m *Membership) note() {
	if m.noted {
		return
	}
	err := m.node.Dir.Registered(m.node.Start)
	if err != nil && !keyspace.SameFault(err, m.unnoted) {
		m.c.Log().Warn("the registration is not noted in the data directory, which would be taken for an outdated copy after a reboot; trying again", "node", m.node.ID, "err", err)
	}
	m.noted, m.unnoted = err == nil, err
}

// mayReplace reports why a registration is not to be replaced by this
// process's. It may be when it is this process's own, from before an outage;
// or of the process that ran before this one in the same data directory, which
// has ended, since the store lets in one at a time; or of one that ran in it at
// another place, once it gives no sign of life. The latter two hold once: to
// lose the name to the same instance later means that the directory was copied.
func (m *Membership) mayReplace(ctx context.Context, kv *mvccpb.KeyValue) error {
	if m.own[clientv3.LeaseID(kv.Lease)] || kv.Lease == 0 { // without a lease it would never end
		return nil
	}
	other, err := topology.DecodeRegistration(m.node.ID, kv.Value)
	same := err == nil && other.Instance == m.node.Instance && !m.once
	switch {
	case err != nil || same && other.Place == m.node.Place:
		return nil // what is no registration is nobody's
	case same:
		if silent, err := m.silent(ctx, clientv3.LeaseID(kv.Lease)); err != nil || silent {
			return err
		}
	}
	wayOut := "stop one of the two, or give one of them an id of its own; this process registers when the other is gone"
	if other.Instance == m.node.Instance {
		wayOut = "its data directory is a copy of this one's: " + wayOut
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "id", Detail: fmt.Sprintf("another process is registered as %s, at %s", m.node.ID, other.Addr), WayOut: wayOut}
}

// pulse is what has been seen of a lease, which ends unless its holder lives.
type pulse struct {
	lease clientv3.LeaseID
	since time.Time // of the first look, or the last sign of life
	end   time.Time // of the lease, as the last look had it
}

const (
	// silentFor is how long a holder is looked at: a living one renews its
	// lease every third of it.
	silentFor = cluster.LeaseSeconds * time.Second / 2
	// leaseGrain is how exact the time is that a lease is said to have left.
	leaseGrain = 1500 * time.Millisecond
)

// silent reports whether the holder of a lease has given no sign of life for
// longer than a living one.
func (m *Membership) silent(ctx context.Context, lease clientv3.LeaseID) (bool, error) {
	left, err := m.c.Etcd().TimeToLive(ctx, lease)
	if err != nil {
		return false, cluster.Away(err)
	}
	now := time.Now()
	end := now.Add(time.Duration(left.TTL) * time.Second)
	if m.other.lease != lease || end.After(m.other.end.Add(leaseGrain)) {
		m.other = pulse{lease, now, end}
	}
	return now.Sub(m.other.since) >= silentFor, nil
}

// outdated reports why a process must not register from this directory: a
// later one has, from the directory that this is a copy of, or that is a copy
// of this.
func (m *Membership) outdated(ctx context.Context) error {
	got, err := m.c.Etcd().Get(ctx, m.key("known"))
	if err != nil {
		return cluster.Away(err)
	}
	if len(got.Kvs) == 0 {
		return nil
	}
	last, err := topology.DecodeRegistration(m.node.ID, got.Kvs[0].Value)
	if err != nil || last.Instance != m.node.Instance || last.Place == m.node.Place || last.Start < m.node.Start {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "data",
		Detail: fmt.Sprintf("%s has registered since from a copy of this data directory, or from this one while it could not be written, at %s", m.node.ID, last.Addr),
		WayOut: "use that one; if it is gone for good, or there is none, remove " + datadir.IdentityFile + " from this one"}
}

// write is the operation that makes etcd say a value.
func (m *Membership) write(kind, value string, lease clientv3.LeaseID) clientv3.Op {
	if value == "" {
		return clientv3.OpDelete(m.key(kind))
	}
	return clientv3.OpPut(m.key(kind), value, clientv3.WithLease(lease))
}

func toldAt(value string, revision int64) told {
	if value == "" {
		return told{}
	}
	return told{value, revision}
}

// update writes what etcd does not have yet, or has no more, and finds out
// whether the registration still stands.
func (m *Membership) update(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	for {
		said, now := m.said(), time.Now()
		var ops []clientv3.Op
		for _, kind := range stateKinds {
			if t, ok := m.told[kind]; ok && t.value == said[kind] {
				ops = append(ops, clientv3.OpGet(m.key(kind), clientv3.WithKeysOnly()))
			} else {
				ops = append(ops, m.write(kind, said[kind], m.lease))
			}
		}
		if now.Sub(m.seen) >= cluster.LeaseSeconds*time.Second {
			ops = append(ops, clientv3.OpPut(seenKey(m.c, m.node.ID), now.UTC().Format(time.RFC3339)))
		}
		put, err := m.c.Etcd().Txn(ctx).If(m.mine()).Then(ops...).Commit()
		switch {
		case err != nil: // it may have been written, or may be yet
			clear(m.told)
			return cluster.Away(err)
		case !put.Succeeded:
			return errNameLost
		}
		if len(ops) > len(stateKinds) {
			m.seen = now
		}
		again := false
		for i, kind := range stateKinds {
			got := put.Responses[i].GetResponseRange()
			switch {
			case got == nil:
				m.told[kind] = toldAt(said[kind], put.Header.Revision)
			case revisionOf(got.Kvs) != m.told[kind].revision: // somebody else wrote it
				delete(m.told, kind)
				again = true
			}
		}
		if !again {
			return nil
		}
	}
}

func revisionOf(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) == 0 {
		return 0
	}
	return kvs[0].ModRevision
}

// mine holds while the registration is this process's.
func (m *Membership) mine() clientv3.Cmp {
	return clientv3.Compare(clientv3.LeaseValue(m.key("nodes")), "=", int64(m.lease))
}

// Leave says that the node is going on purpose, so that nobody tries it as a
// last resort, and ends the membership. Of another process that has the name
// by now it touches nothing.
func (m *Membership) Leave(ctx context.Context) error {
	m.stop()
	<-m.done
	m.unwatched()
	if m.lease == 0 { // never registered
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	memory, err := m.c.Etcd().Grant(ctx, leftSeconds)
	if err == nil {
		_, err = m.c.Etcd().Txn(ctx).If(m.mine()).Then(
			clientv3.OpPut(m.key("left"), "", clientv3.WithLease(memory.ID)),
			clientv3.OpDelete(m.key("nodes")),
			clientv3.OpDelete(m.key("ready")),
			clientv3.OpDelete(m.key("lag")),
			clientv3.OpDelete(m.key("state")),
			clientv3.OpDelete(m.key("models")),
			clientv3.OpDelete(m.key(statsKind)),
		).Commit()
	}
	if err != nil {
		return fmt.Errorf("cluster: leave %s: %w", m.node.ID, err)
	}
	_, _ = m.c.Etcd().Revoke(ctx, m.lease) // it holds no key any more
	return nil
}
