// Package members keeps in etcd what nodes say of themselves: that they live, and at
// which address; which partitions they are ready for; what they hold; and which models
// they admit. A lease makes a node's id belong to one process at a time.
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

// leftSeconds is how long etcd remembers that a node left on purpose, see
// [Membership.Leave].
const leftSeconds = 60

// errNameLost says that another process has taken the registration, or somebody removed it.
var errNameLost = errors.New("cluster: the registration was removed; registering again")

// Membership is a node's registration. It works in the background: whatever happens to
// etcd, it registers the node as soon as it can, and again when the registration is lost.
// Except Leave, its methods wait for nothing.
//
// One goroutine, run, does all the talking to etcd, so that what the node says arrives in
// order. The node sets the values that its keys should have; run writes those that differ
// from what etcd has.
type Membership struct {
	c         *cluster.Client
	node      topology.Node
	stop      context.CancelFunc
	done      chan struct{}          // closed when run has returned
	unwatched func()                 // ends the alarm that Join set
	state     *keyspace.Latest[bool] // whether the node is registered; the fault is why it is not
	news      chan struct{}          // holds one token when mu.said has changed

	// Only run uses the following, and Leave once run has ended.
	lease   clientv3.LeaseID          // the lease of the present registration, or else of the last one
	own     map[clientv3.LeaseID]bool // every lease that this process was granted
	told    map[string]told           // by kind, what etcd has; no entry: not known
	seen    time.Time                 // when run last wrote that the node lives
	once    bool                      // whether the node has been registered
	noted   bool                      // whether the data directory says that this process registers
	unnoted error                     // why it does not
	other   pulse                     // what was seen of the lease of a process with this node's id and instance, in another place

	mu struct {
		sync.Mutex
		said map[string]string // by kind, what the node says of itself; "": nothing
	}
}

// told is a value as etcd has it.
type told struct {
	value    string
	revision int64 // of etcd, at which it was written; 0: there is no value
}

// stateKinds are the kinds of what a node says of itself, each under a key of its own:
// SetAnswering sets ready and lag, SetReports state, SetModels models, and SetStats stats.
var stateKinds = []string{"ready", "lag", "state", "models", statsKind}

// Join registers a node under a lease of a few seconds and keeps it registered, until ctx
// or the client ends or the node leaves. It returns at once. An error means that the node
// can never be registered.
//
// A node's id belongs to one process. While another process is registered by it, this one
// waits, and [Membership.Fault] names the other's address. There are two exceptions. The
// instance is a random word in the data directory, which a copy of the directory has,
// too; the place is where the directory is. A process with the same
// [topology.Node.Instance] and [topology.Node.Place] ran before this one, and is replaced
// at once. A process with the same instance in another place ran in the data directory
// before that was moved, or still runs in one that this one was copied from. It is
// replaced once it has been silent for longer than a living one is.
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

// Fault returns why the node is not registered now: etcd is away, or another process
// holds its id. It is nil while the node is registered.
func (m *Membership) Fault() error { _, err := m.state.Get(); return err }

// Changed returns a channel that is closed when [Membership.Fault] changes.
// Take it before looking.
func (m *Membership) Changed() <-chan struct{} { return m.state.Changed() }

// SetAnswering notes which partitions the node is caught up on, and how far it is behind
// the log. Both are written to etcd in one transaction, as soon as it answers, so that
// nobody takes a partition for ready that is behind. If it is called again before that,
// only the last values are written.
func (m *Membership) SetAnswering(ready topology.Set, lag topology.Lag) {
	m.sayAll(map[string]string{"ready": string(ready.Encode()), "lag": encodeLag(lag)})
}

func encodeLag(lag topology.Lag) string {
	if lag == (topology.Lag{}) {
		return ""
	}
	return string(lag.Encode())
}

// SetReports notes why partitions of the node are not ready. They are told as the values of
// [Membership.SetAnswering] are. What is too long is shortened.
func (m *Membership) SetReports(reports []topology.Report) {
	m.say("state", string(topology.EncodeReports(reports)))
}

func (m *Membership) say(kind, value string) { m.sayAll(map[string]string{kind: value}) }

// sayAll notes values by kind, which run writes in one transaction.
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

// key returns the key of a kind in etcd. All but stats are below the prefix of the
// cluster map, which brokers watch: they need not hear of stats.
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

// hold registers the node and keeps what etcd has of it up to date. It returns why the node
// could not be registered, or why the registration was lost.
func (m *Membership) hold(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx) // ends KeepAlive, or the lease would outlive the registration
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
		case _, ok := <-alive: // every few seconds etcd answers that the lease is renewed
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

// note writes into the data directory that this process registers, before etcd knows. A
// directory with a lower count of starts than etcd has is refused as an outdated copy
// once it is in another place, as after a reboot. If the disk takes nothing, the node
// still registers, and note tries again as long as the node is registered.
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

// mayReplace returns why this process must not replace a registration; nil: it may. It
// may replace its own registration from before an outage. It may replace that of the
// process which ran before it in the same data directory: that one has ended, since the
// store lets in one at a time. And it may replace that of a process of the same instance
// in another place, once that gives no sign of life. The last two hold only until this
// process has been registered: if it loses the id to the same instance later, the
// directory was copied.
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

// pulse is what was seen of a lease. A lease ends unless its holder renews it.
type pulse struct {
	lease clientv3.LeaseID
	since time.Time // when the lease was first looked at, or last seen to be renewed
	end   time.Time // when the lease would end if it is not renewed, by what etcd said at since
}

const (
	// silentFor is how long a holder is watched before it counts as silent: a living one
	// renews its lease every third of the lease's time.
	silentFor = cluster.LeaseSeconds * time.Second / 2
	// leaseGrain is how far the time that etcd says a lease has left may be off: etcd tells
	// it in whole seconds.
	leaseGrain = 1500 * time.Millisecond
)

// silent reports whether the holder of a lease has given no sign of life for silentFor,
// over this call and those before it.
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

// outdated returns why this process must not register from its data directory; nil: it
// may. It must not if a later process has registered from a copy of the directory, or
// from the one that this is a copy of.
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

// write returns the operation that gives a kind's key a value, or deletes the key for "".
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

// update writes the values that etcd lacks or has otherwise. It fails with errNameLost if
// the registration is no longer this process's.
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
		case err != nil: // etcd may have written it, or may still do so
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

// mine is the condition that the registration is still this process's.
func (m *Membership) mine() clientv3.Cmp {
	return clientv3.Compare(clientv3.LeaseValue(m.key("nodes")), "=", int64(m.lease))
}

// Leave ends the membership, and says in etcd that the node left on purpose, so that
// nobody tries it as a last resort. If another process has the id by now, it touches
// nothing of that.
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
