package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
)

// typesKnown refuses a request for a content type that no record in the
// cluster has: an empty answer that covers everything would hide the mistake.
// Nodes that answered say which types they do not know. If none of them knows a
// type, which is seldom, all other nodes are asked. If a node cannot say, or there are
// no records at all, nothing is refused. Types that the feed's definition names are
// not checked.
func (b *Broker) typesKnown(ctx context.Context, q *question, f *fanout.Asking, o fanout.Outcome, req *feedv1.GetFeedRequest) error {
	if len(req.GetTypes()) == 0 || len(o.Missing) > 0 {
		return nil
	}
	unseen, heard := fanout.UnseenOf(slices.DeleteFunc(slices.Clone(req.GetTypes()), func(t string) bool { return slices.Contains(q.feed.Types, millrace.ContentType(t)) })), map[millrace.NodeID]bool{}
	for _, pt := range o.Parts {
		heard[pt.Node] = true
		unseen.Hear(pt.Resp)
	}
	assigned := f.Map.Assignment()
	for _, id := range assigned.Nodes() {
		if !unseen.Open() {
			return nil
		}
		if heard[id] {
			continue
		}
		resp, err := b.typesOf(ctx, q, f, id)
		if err != nil {
			return nil // that node may know the type
		}
		unseen.Hear(resp)
	}
	unknown := unseen.Types()
	if len(unknown) == 0 {
		return nil
	}
	wayOut := "records have " + unseen.Known()
	if q.feed.Private { // its callers may not learn which types other records have
		wayOut = "leave types out for all that the feed has"
	}
	return &millrace.Error{
		Reason: millrace.ReasonUnknown, Field: fmt.Sprintf("types[%d]", slices.Index(req.GetTypes(), unknown[0])),
		Detail: fmt.Sprintf("no record has the content type %.100q", unknown[0]), WayOut: wayOut,
	}
}

// typesWithin bounds how long a node is asked about types. It is short, since the answer
// to the request is ready and waits for this.
const typesWithin = time.Second

// typesOf asks a node about types alone, for no entity. It returns an error at once for a
// node that is gone or unresponsive.
func (b *Broker) typesOf(ctx context.Context, q *question, f *fanout.Asking, id millrace.NodeID) (*nodev1.QueryResponse, error) {
	at, ok := f.Map.Node(id)
	if !ok || !f.Map.Alive(id) || b.fanout.Unresponsive(id) {
		return nil, fmt.Errorf("broker: %s is not there", id)
	}
	node, err := b.fanout.Node(at)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(typesWithin)
	if f.Until.Before(until) {
		until = f.Until
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	return node.Query(ctx, &nodev1.QueryRequest{Types: q.Query.GetTypes(), ToMs: q.Query.GetToMs(), AsOfMs: q.Query.GetAsOfMs(), Model: "recency", Limit: 1})
}
