package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// The history of a cluster is what people had done to it: a key of each act, by
// its time. What is in a transaction of etcd is written down in the same one, so
// that both are there or neither; documents have histories of their own
// ([artefacts.Kind.History]).
const historyPrefix = "history/"

// maxHistory is how many acts are kept.
var maxHistory = 1000

// Noted returns what writes acts down; nothing where nobody acts ([Config.Who]).
func (c *Client) Noted(all ...audit.Entry) (ops []clientv3.Op, err error) {
	for i, e := range all {
		if e.Who = audit.Shortened(cmp.Or(e.Who, c.who)); e.Who == "" {
			continue
		}
		e.Time = time.Now().UTC()
		body, err := json.Marshal(e)
		if err != nil || len(body) > keyspace.MaxDocumentBytes {
			return nil, fmt.Errorf("cluster: an act of %d bytes cannot be written down: %v", len(body), err)
		}
		key := fmt.Sprintf("%s%s%020d-%d-%s", c.prefix, historyPrefix, e.Time.UnixNano(), i, keyspace.New(1).ID)
		ops = append(ops, clientv3.OpPut(key, string(body)))
	}
	return ops, nil
}

// Note writes down what is about to be done beside etcd: what cannot be written
// down must not be done.
func (c *Client) Note(ctx context.Context, e audit.Entry) error {
	ops, err := c.Noted(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if _, err := c.etcd.Txn(ctx).Then(ops...).Commit(); err != nil {
		return fmt.Errorf("cluster: history: %w", Away(err))
	}
	c.TrimHistory(ctx)
	return nil
}

// History returns the last acts, the oldest first.
func (c *Client) History(ctx context.Context) ([]audit.Entry, error) {
	s, err := c.List(ctx, historyPrefix)
	if err != nil {
		return nil, err
	}
	keys := slices.Sorted(maps.Keys(s.Values))
	all := []audit.Entry{}
	for _, key := range keys[max(0, len(keys)-maxHistory):] {
		var e audit.Entry
		if err := json.Unmarshal(s.Values[key].Data, &e); err != nil {
			return nil, fmt.Errorf("cluster: history: %q is no act: %w", historyPrefix+key, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// RestoredAct is what the history calls a restoration.
const RestoredAct = "restore"

// LastRestored returns when a person last restored what etcd had lost, as far as the
// history tells; zero: it does not.
func (c *Client) LastRestored(ctx context.Context) (when time.Time, err error) {
	all, err := c.History(ctx)
	for _, e := range all {
		if e.Act == RestoredAct && e.Time.After(when) {
			when = e.Time
		}
	}
	return when, err
}

// TrimHistory removes the acts before those that are kept. What it cannot remove
// the next act does.
func (c *Client) TrimHistory(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	prefix := c.prefix + historyPrefix
	got, err := c.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil || len(got.Kvs) <= maxHistory {
		return
	}
	_, _ = c.etcd.Delete(ctx, prefix, clientv3.WithRange(string(got.Kvs[len(got.Kvs)-maxHistory].Key)))
}
