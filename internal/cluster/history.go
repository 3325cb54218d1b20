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

// historyPrefix is the prefix of the cluster's history, of what people did to it: one key of
// etcd for each act, ordered by time. An act that is a transaction of etcd is recorded in
// that transaction, so that both are there or neither. Changes of documents are not here:
// each document has a history of its own ([artefacts.Kind.History]).
const historyPrefix = "history/"

// maxHistory is how many acts are kept.
var maxHistory = 1000

// Noted returns the operations of etcd that record acts. An act that names no person is
// recorded as one of [Config.Who]; if that is empty too, it is not recorded.
func (c *Client) Noted(all ...audit.Entry) (ops []clientv3.Op, err error) {
	for i, e := range all {
		if e.Who = audit.Shortened(cmp.Or(e.Who, c.who)); e.Who == "" {
			continue
		}
		e.Time = time.Now().UTC()
		body, err := json.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("cluster: history: %w", err)
		}
		if len(body) > keyspace.MaxDocumentBytes {
			return nil, fmt.Errorf("cluster: history: an act takes %d bytes, more than %d", len(body), keyspace.MaxDocumentBytes)
		}
		key := fmt.Sprintf("%s%s%020d-%d-%s", c.prefix, historyPrefix, e.Time.UnixNano(), i, keyspace.New(1).ID)
		ops = append(ops, clientv3.OpPut(key, string(body)))
	}
	return ops, nil
}

// Note records an act that is about to be done outside of etcd. If Note fails, the act must
// not be done.
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
		if err := json.Unmarshal(s.Values[key].Data, &e); err != nil { // one that cannot be read must not hide the others
			e = audit.Entry{Who: "unknown", Act: "unreadable", On: historyPrefix + key, Fault: err.Error()}
		}
		all = append(all, e)
	}
	return all, nil
}

// RestoredAct is the Act of a restoration in the history.
const RestoredAct = "restore"

// LastRestored returns when a person last restored what etcd had lost; zero if the
// history has no restoration.
func (c *Client) LastRestored(ctx context.Context) (when time.Time, err error) {
	all, err := c.History(ctx)
	for _, e := range all {
		if e.Act == RestoredAct && e.Time.After(when) {
			when = e.Time
		}
	}
	return when, err
}

// TrimHistory removes all but the newest maxHistory acts. If that fails, the call after the
// next act removes them.
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
