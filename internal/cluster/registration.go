package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
)

// registration is a node as etcd holds it: while it lives under nodes/, and
// for good under known/.
type registration struct {
	Node
	memory
}

// memory is what a process remembers of its cluster when it registers: an etcd
// that lacks it has lost it.
type memory struct {
	Keyspace string `json:"keyspace,omitempty"`
	Epoch    int64  `json:"epoch,omitempty"` // of the assignment
}

// lostBy reports whether an etcd of a keyspace and with an assignment lacks
// what is remembered.
func (m memory) lostBy(now keyspace, epoch int64) bool {
	then := parseKeyspace(m.Keyspace)
	return m.Epoch > epoch || then.Generation > now.Generation || then.Generation == now.Generation && then != now
}

// loss is what nodes remember and etcd lacks.
type loss struct {
	by      []millrace.NodeID // who remembers another keyspace, or a later assignment
	epoch   int64             // the highest of the assignments that they remember
	setback *setback          // nil: etcd did not go back
}

func (l loss) is() bool { return len(l.by) > 0 || l.setback != nil }

func (l *loss) add(r registration) { l.by, l.epoch = append(l.by, r.ID), max(l.epoch, r.Epoch) }

// String says what is lost, of an etcd that has an assignment.
func (l loss) String() string {
	if len(l.by) == 0 {
		return l.setback.String()
	}
	by := fmt.Sprintf("%q", l.by[:min(len(l.by), maxListed)])
	if more := len(l.by) - maxListed; more > 0 {
		by += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s remember assignment %d, and the feeds, models and secrets beside it", by, l.epoch)
}

// maxNodeBytes bounds a registration before it is parsed.
const maxNodeBytes = 4 << 10

func decodeRegistration(id millrace.NodeID, body []byte) (r registration, err error) {
	if len(body) > maxNodeBytes {
		return r, fmt.Errorf("a registration of %d bytes is longer than %d", len(body), maxNodeBytes)
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, err
	}
	if r.ID != id || r.Addr == "" || validID(string(id)) != nil || !validWeight(r.Weight) {
		return r, fmt.Errorf("%.200q is not the registration of this node", body)
	}
	return r, nil
}

// memory returns what the client's watcher remembers now.
func (c *Client) memory() memory {
	if m := c.remembers.Load(); m != nil {
		return *m
	}
	return memory{}
}

func (c *Client) remember(from origin, epoch int64) {
	m := memory{Epoch: epoch}
	if from.Keyspace != (keyspace{}) {
		m.Keyspace = from.Keyspace.String()
	}
	c.remembers.Store(&m)
}

func (c *Client) seenKey(id millrace.NodeID) string { return c.prefix + "seen/" + string(id) }

// Seen returns when each node last said that it lives, by its own clock, to
// within some ten seconds.
func (c *Client) Seen(ctx context.Context) (map[millrace.NodeID]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	prefix := c.seenKey("")
	got, err := c.etcd.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, away(err)
	}
	seen := make(map[millrace.NodeID]time.Time, len(got.Kvs))
	for _, kv := range got.Kvs {
		if at, err := time.Parse(time.RFC3339, fmt.Sprintf("%.40s", kv.Value)); err == nil {
			seen[millrace.NodeID(kv.Key[len(prefix):])] = at
		}
	}
	return seen, nil
}
