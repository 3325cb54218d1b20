//go:build synctests

package simulation

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// etcd is the part of etcd that the cluster's client uses, behind etcd's own
// protocol: keys with revisions, transactions, leases that run out in virtual
// time, watches from a revision on. It keeps every event.
type etcd struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedLeaseServer
	etcdserverpb.UnimplementedWatchServer

	mu       sync.Mutex
	revision int64
	keys     map[string]*mvccpb.KeyValue
	leases   map[int64]*lease
	granted  int64
	events   []*mvccpb.Event
	rung     chan struct{} // closed when events grow
}

type lease struct {
	ttl  int64
	end  time.Time
	ends *time.Timer
}

// startEtcd serves an empty etcd until stop is called.
func startEtcd(l net.Listener) (e *etcd, stop func()) {
	e = &etcd{revision: 1, keys: map[string]*mvccpb.KeyValue{}, leases: map[int64]*lease{}, rung: make(chan struct{})}
	s := grpc.NewServer()
	etcdserverpb.RegisterKVServer(s, e)
	etcdserverpb.RegisterLeaseServer(s, e)
	etcdserverpb.RegisterWatchServer(s, e)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	return e, func() {
		s.Stop()
		<-ended
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, l := range e.leases {
			l.ends.Stop()
		}
	}
}

func (e *etcd) header() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{ClusterId: 1, MemberId: 1, RaftTerm: 1, Revision: e.revision}
}

// write makes the changes of do one revision, if there are any.
func (e *etcd) write(do func(at int64)) {
	before := len(e.events)
	do(e.revision + 1)
	if len(e.events) > before {
		e.revision++
		close(e.rung)
		e.rung = make(chan struct{})
	}
}

func within(key string, from, end []byte) bool {
	k := []byte(key)
	switch {
	case len(end) == 0:
		return bytes.Equal(k, from)
	case len(end) == 1 && end[0] == 0:
		return bytes.Compare(k, from) >= 0
	}
	return bytes.Compare(k, from) >= 0 && bytes.Compare(k, end) < 0
}

func (e *etcd) find(from, end []byte) (found []*mvccpb.KeyValue) {
	for key, kv := range e.keys {
		if within(key, from, end) {
			found = append(found, kv)
		}
	}
	slices.SortFunc(found, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return found
}

func (e *etcd) get(r *etcdserverpb.RangeRequest) *etcdserverpb.RangeResponse {
	found := e.find(r.Key, r.RangeEnd)
	slices.SortStableFunc(found, func(a, b *mvccpb.KeyValue) int {
		order := 0
		switch r.SortTarget {
		case etcdserverpb.RangeRequest_MOD:
			order = cmp.Compare(a.ModRevision, b.ModRevision)
		case etcdserverpb.RangeRequest_CREATE:
			order = cmp.Compare(a.CreateRevision, b.CreateRevision)
		}
		if r.SortOrder == etcdserverpb.RangeRequest_DESCEND {
			order = -order
		}
		return order
	})
	resp := &etcdserverpb.RangeResponse{Header: e.header(), Count: int64(len(found))}
	if r.Limit > 0 && int64(len(found)) > r.Limit {
		found, resp.More = found[:r.Limit], true
	}
	if r.CountOnly {
		return resp
	}
	for _, kv := range found {
		c := &mvccpb.KeyValue{Key: kv.Key, Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
		if r.KeysOnly {
			c.Value = nil
		}
		resp.Kvs = append(resp.Kvs, c)
	}
	return resp
}

func (e *etcd) put(r *etcdserverpb.PutRequest, at int64) *etcdserverpb.PutResponse {
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, CreateRevision: at, ModRevision: at, Version: 1, Lease: r.Lease}
	if old := e.keys[string(r.Key)]; old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
	}
	e.keys[string(r.Key)] = kv
	e.events = append(e.events, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: kv})
	return &etcdserverpb.PutResponse{Header: e.header()}
}

func (e *etcd) delete(from, end []byte, at int64) *etcdserverpb.DeleteRangeResponse {
	found := e.find(from, end)
	for _, kv := range found {
		delete(e.keys, string(kv.Key))
		e.events = append(e.events, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key, ModRevision: at}})
	}
	return &etcdserverpb.DeleteRangeResponse{Header: e.header(), Deleted: int64(len(found))}
}

func (e *etcd) Range(_ context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Revision > 0 { // it keeps no past
		return nil, rpctypes.ErrGRPCCompacted
	}
	return e.get(r), nil
}

func (e *etcd) Put(_ context.Context, r *etcdserverpb.PutRequest) (resp *etcdserverpb.PutResponse, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Lease != 0 && e.leases[r.Lease] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	e.write(func(at int64) { resp = e.put(r, at) })
	resp.Header = e.header()
	return resp, nil
}

func (e *etcd) DeleteRange(_ context.Context, r *etcdserverpb.DeleteRangeRequest) (resp *etcdserverpb.DeleteRangeResponse, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.write(func(at int64) { resp = e.delete(r.Key, r.RangeEnd, at) })
	resp.Header = e.header()
	return resp, nil
}

func (e *etcd) holds(c *etcdserverpb.Compare) bool {
	found := e.find(c.Key, c.RangeEnd)
	if len(found) == 0 {
		if c.Target == etcdserverpb.Compare_VALUE {
			return false
		}
		found = []*mvccpb.KeyValue{{}}
		if len(c.RangeEnd) > 0 {
			return true
		}
	}
	for _, kv := range found {
		order := 0
		switch c.Target {
		case etcdserverpb.Compare_VERSION:
			order = cmp.Compare(kv.Version, c.GetVersion())
		case etcdserverpb.Compare_CREATE:
			order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
		case etcdserverpb.Compare_MOD:
			order = cmp.Compare(kv.ModRevision, c.GetModRevision())
		case etcdserverpb.Compare_VALUE:
			order = bytes.Compare(kv.Value, c.GetValue())
		case etcdserverpb.Compare_LEASE:
			order = cmp.Compare(kv.Lease, c.GetLease())
		}
		ok := false
		switch c.Result {
		case etcdserverpb.Compare_EQUAL:
			ok = order == 0
		case etcdserverpb.Compare_NOT_EQUAL:
			ok = order != 0
		case etcdserverpb.Compare_GREATER:
			ok = order > 0
		case etcdserverpb.Compare_LESS:
			ok = order < 0
		}
		if !ok {
			return false
		}
	}
	return true
}

func (e *etcd) Txn(_ context.Context, r *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	resp := &etcdserverpb.TxnResponse{Succeeded: !slices.ContainsFunc(r.Compare, func(c *etcdserverpb.Compare) bool { return !e.holds(c) })}
	ops := r.Success
	if !resp.Succeeded {
		ops = r.Failure
	}
	for _, op := range ops {
		if id := op.GetRequestPut().GetLease(); id != 0 && e.leases[id] == nil {
			return nil, rpctypes.ErrGRPCLeaseNotFound
		}
	}
	e.write(func(at int64) {
		for _, op := range ops {
			did := &etcdserverpb.ResponseOp{}
			switch op := op.Request.(type) {
			case *etcdserverpb.RequestOp_RequestRange:
				did.Response = &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: e.get(op.RequestRange)}
			case *etcdserverpb.RequestOp_RequestPut:
				did.Response = &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: e.put(op.RequestPut, at)}
			case *etcdserverpb.RequestOp_RequestDeleteRange:
				did.Response = &etcdserverpb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: e.delete(op.RequestDeleteRange.Key, op.RequestDeleteRange.RangeEnd, at)}
			default:
				panic("a transaction in a transaction, which nobody here uses")
			}
			resp.Responses = append(resp.Responses, did)
		}
	})
	resp.Header = e.header()
	return resp, nil
}

func (e *etcd) LeaseGrant(_ context.Context, r *etcdserverpb.LeaseGrantRequest) (*etcdserverpb.LeaseGrantResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.granted++
	id := cmp.Or(r.ID, e.granted)
	ttl := time.Duration(r.TTL) * time.Second
	e.leases[id] = &lease{ttl: r.TTL, end: time.Now().Add(ttl), ends: time.AfterFunc(ttl, func() { e.expire(id) })}
	return &etcdserverpb.LeaseGrantResponse{Header: e.header(), ID: id, TTL: r.TTL}, nil
}

func (e *etcd) expire(id int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.leases[id]; l != nil && !time.Now().Before(l.end) {
		e.revoke(id)
	}
}

func (e *etcd) revoke(id int64) {
	e.leases[id].ends.Stop()
	delete(e.leases, id)
	e.write(func(at int64) {
		for _, kv := range e.find(nil, []byte{0}) {
			if kv.Lease == id {
				e.delete(kv.Key, nil, at)
			}
		}
	})
}

func (e *etcd) LeaseRevoke(_ context.Context, r *etcdserverpb.LeaseRevokeRequest) (*etcdserverpb.LeaseRevokeResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leases[r.ID] == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	e.revoke(r.ID)
	return &etcdserverpb.LeaseRevokeResponse{Header: e.header()}, nil
}

func (e *etcd) LeaseTimeToLive(_ context.Context, r *etcdserverpb.LeaseTimeToLiveRequest) (*etcdserverpb.LeaseTimeToLiveResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	resp := &etcdserverpb.LeaseTimeToLiveResponse{Header: e.header(), ID: r.ID, TTL: -1}
	if l := e.leases[r.ID]; l != nil {
		resp.GrantedTTL, resp.TTL = l.ttl, int64(time.Until(l.end)/time.Second)
	}
	return resp, nil
}

func (e *etcd) LeaseKeepAlive(s etcdserverpb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		e.mu.Lock()
		resp := &etcdserverpb.LeaseKeepAliveResponse{Header: e.header(), ID: r.ID}
		if l := e.leases[r.ID]; l != nil {
			ttl := time.Duration(l.ttl) * time.Second
			l.end, resp.TTL = time.Now().Add(ttl), l.ttl
			l.ends.Reset(ttl)
		}
		e.mu.Unlock()
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

func (e *etcd) Watch(s etcdserverpb.Watch_WatchServer) error {
	var sending sync.Mutex
	send := func(resp *etcdserverpb.WatchResponse) error {
		sending.Lock()
		defer sending.Unlock()
		return s.Send(resp)
	}
	cancels := map[int64]context.CancelFunc{}
	var all sync.WaitGroup
	defer all.Wait()
	defer func() {
		for _, cancel := range cancels {
			cancel()
		}
	}()
	for made := int64(0); ; {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		switch r := r.RequestUnion.(type) {
		case *etcdserverpb.WatchRequest_CreateRequest:
			made++
			id := made
			ctx, cancel := context.WithCancel(s.Context())
			cancels[id] = cancel
			e.mu.Lock()
			from := cmp.Or(r.CreateRequest.StartRevision, e.revision+1)
			header := e.header()
			e.mu.Unlock()
			if err := send(&etcdserverpb.WatchResponse{Header: header, WatchId: id, Created: true}); err != nil {
				return err
			}
			all.Go(func() { e.tell(ctx, id, r.CreateRequest, from, send) })
		case *etcdserverpb.WatchRequest_CancelRequest:
			if cancel := cancels[r.CancelRequest.WatchId]; cancel != nil {
				cancel()
			}
			e.mu.Lock()
			header := e.header()
			e.mu.Unlock()
			if err := send(&etcdserverpb.WatchResponse{Header: header, WatchId: r.CancelRequest.WatchId, Canceled: true}); err != nil {
				return err
			}
		}
	}
}

// tell sends the events of a watch until ctx ends.
func (e *etcd) tell(ctx context.Context, id int64, r *etcdserverpb.WatchCreateRequest, from int64, send func(*etcdserverpb.WatchResponse) error) {
	for at := 0; ; {
		e.mu.Lock()
		var events []*mvccpb.Event
		for ; at < len(e.events); at++ {
			if ev := e.events[at]; ev.Kv.ModRevision >= from && within(string(ev.Kv.Key), r.Key, r.RangeEnd) {
				events = append(events, ev)
			}
		}
		header, rung := e.header(), e.rung
		e.mu.Unlock()
		if len(events) > 0 && send(&etcdserverpb.WatchResponse{Header: header, WatchId: id, Events: events}) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-rung:
		}
	}
}
