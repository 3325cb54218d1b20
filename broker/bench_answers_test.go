package broker

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/findings"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/schemas"
)

// listed is a schema of records with a list of 24 floats.
var listed = func() *schemas.Schema {
	s, err := schemas.Parse([]byte(`{"type":"record","name":"Listed","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"author","type":"string","millrace":"entity"},
		{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},
		{"name":"text","type":"string"},{"name":"likes","type":"int"},{"name":"features","type":{"type":"array","items":"float"}}]}`))
	if err != nil {
		panic(err)
	}
	return s
}()

var listedBody = func() []byte {
	b, err := listed.EncodeJSON([]byte(`{"id":"r","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z","text":"a text of a common length for such things","likes":3,
		"features":[0.1,0.25,3.125,0.017,12.5,0.333,0.9,1.7,0.2,0.11,0.7,0.64,2.2,0.05,0.15,0.35,0.45,0.55,0.65,0.75,0.85,0.95,1.05,1.15]}`))
	if err != nil {
		panic(err)
	}
	return b
}()

// explainingNode is an instantNode whose records have lists, and that accounts
// for what it answers as a model of thirty terms and a filter of five clauses
// have it.
type explainingNode struct{ instantNode }

func newExplainingNode(from int) *explainingNode {
	n := &explainingNode{*newInstantNode(from)}
	for _, it := range n.items {
		it.Schema, it.Body = uint64(listed.Fingerprint()), listedBody
	}
	return n
}

func (n *explainingNode) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	resp, err := n.instantNode.Query(ctx, req)
	switch {
	case err != nil:
		return nil, err
	case req.Examine != "":
		it := n.items[3]
		resp.Findings = []*nodev1.Finding{{Entity: it.Entity, Type: it.Type, TimeMs: it.TimeMs, Object: it.Id, Score: it.Score}}
	case len(req.Above) > 0:
		resp.Above = make([]int64, len(req.Above))
	}
	if req.Explain {
		resp.Items, resp.Clauses, resp.Stages, resp.Times = explainedItems(n.items), explainedClauses, &nodev1.Stages{Candidates: 4000, Scored: 1000}, &feedv1.NodeTimes{ResolveMillis: 1, ScanMillis: 1}
	}
	return resp, nil
}

func (n *explainingNode) GetSchema(context.Context, *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	return &nodev1.GetSchemaResponse{Json: listed.JSON()}, nil
}

var explainedClauses = func() (all []*feedv1.ClauseCounts) {
	for i := range 5 {
		all = append(all, &feedv1.ClauseCounts{Clause: fmt.Sprintf("record.likes > %d", i), False: 100})
	}
	return all
}()

// explained is the account of an item.
var explained = func() *feedv1.ItemExplain {
	x := &feedv1.ItemExplain{Node: "n0", Base: 1, Cache: "fat"}
	for i := range 30 {
		x.Features = append(x.Features, &feedv1.Contribution{Feature: fmt.Sprint("feature_", i), Value: structpb.NewNumberValue(float64(i) / 7), Contribution: float64(i) / 11})
	}
	return x
}()

func explainedItems(items []*nodev1.Item) []*nodev1.Item {
	all := make([]*nodev1.Item, len(items))
	for i, it := range items {
		all[i] = &nodev1.Item{Score: it.Score, TimeMs: it.TimeMs, Id: it.Id, Entity: it.Entity, Type: it.Type, Schema: it.Schema, Body: it.Body, Explain: explained}
	}
	return all
}

// BenchmarkAnswers is the broker's CPU time of a JSON answer for 600 entities,
// in forms that a request may ask for, over the plain one: all by turns, each
// figure the ratio of medians. And it is what each takes in bytes.
func BenchmarkAnswers(b *testing.B) {
	withBallast(b)
	nodes := []fanout.Node{newExplainingNode(0), newExplainingNode(1), newExplainingNode(2)}
	broker := benchBroker(b, func(n topology.Node) (fanout.Node, error) { return nodes[n.ID[1]-'0'], nil }, func(int) string { return "local" })
	feed := func(change func(*feedv1.GetFeedRequest)) func() proto.Message {
		req := recentRequest(600)
		change(req)
		return func() proto.Message {
			resp, err := broker.wireFeed(b.Context(), req)
			if err != nil {
				b.Fatal(err)
			}
			return resp
		}
	}
	forms := []struct {
		name string
		ask  func() proto.Message
	}{
		{"plain", feed(func(*feedv1.GetFeedRequest) {})},
		{"full_receipt", feed(func(r *feedv1.GetFeedRequest) { r.Receipt = limits.ReceiptFull })},
		{"a_field", feed(func(r *feedv1.GetFeedRequest) { r.Fields = []string{"id"} })},
		{"explain", feed(func(r *feedv1.GetFeedRequest) { r.Explain = true })},
		{"why", func() proto.Message {
			resp, err := broker.Why(b.Context(), &feedv1.WhyRequest{Request: recentRequest(600), Record: nodes[0].(*explainingNode).items[3].Id})
			if err != nil || resp.Stage != findings.Shown {
				b.Fatal(resp, err)
			}
			return resp
		}},
	}
	spent, bytes := make([][]float64, len(forms)), make([]int, len(forms))
	for b.Loop() {
		for i, form := range forms {
			const rounds = 20
			start := cpu()
			for range rounds {
				text, err := items.MarshalJSON(form.ask())
				if err != nil {
					b.Fatal(err)
				}
				bytes[i] = len(text)
			}
			spent[i] = append(spent[i], float64((cpu()-start).Nanoseconds())/1000/rounds)
		}
	}
	plain := median(spent[0])
	for i, form := range forms {
		b.ReportMetric(median(spent[i]), form.name+"-µs")
		b.ReportMetric(float64(bytes[i]), form.name+"-B")
		if i > 0 {
			figure.Print("answer_"+form.name+"_vs_plain", median(spent[i])/plain, "x")
		}
	}
}
