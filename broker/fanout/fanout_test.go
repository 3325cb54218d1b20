package fanout

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
)

// frozen is a node that answers nothing.
type frozen struct{}

func (frozen) Query(ctx context.Context, _ *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (frozen) GetSchema(ctx context.Context, _ *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (frozen) Ping(context.Context) error { return nil }

type oneMap struct{ m *topology.Map }

func (o oneMap) Current() *topology.Map { return o.m }

// A hedge that nobody could be sent to takes nothing of the budget, and every
// partition is missing for want of time.
func TestNobodyElseCostsNoBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{
			Maps: oneMap{zoned(t, 1, "n0", "n1")}, Memory: memory.New(1<<30, "answers"), Log: slog.New(slog.DiscardHandler),
			Dial: func(topology.Node) (Node, error) { return frozen{}, nil },
		})
		defer f.Close()
		q := &questions.Question{Query: &nodev1.QueryRequest{Limit: 1}}
		q.Whole()
		q.Groups[0].Query, q.Groups[0].Types = q.Query, 1
		if err := q.TakeEntities([]string{"member:1", "member:2", "member:3"}); err != nil {
			t.Fatal(err)
		}
		o, _, err := f.Ask(t.Context(), q, time.Now().Add(time.Second))
		if err != nil || len(o.Parts) > 0 || len(o.Missing) != 3 {
			t.Fatalf("%+v, %v", o, err)
		}
		for p, why := range o.Missing {
			if why != MissTimeout {
				t.Errorf("partition %d is missing by %s", p, why)
			}
		}
		if have := f.budget.mu.have; have < hedgeBurst {
			t.Errorf("%v is left of the budget of %d", have, hedgeBurst)
		}
	})
}

// door is a way to a node that tells whether it was closed.
type door struct {
	Node
	closed bool
	err    error // of closing it
}

func (d *door) Close() error { d.closed = true; return d.err }

// All ways are closed in the end, those of nodes that are leaving at once and not again, and
// what goes wrong is told.
func TestAllWaysAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told strings.Builder
		doors, faulty := map[string]*door{}, errors.New("no such way")
		c := newConns(func(n topology.Node) (Node, error) {
			if n.Addr == "bad" {
				return nil, faulty
			}
			doors[n.Addr] = &door{err: map[string]error{"a:1": errors.New("it is stuck")}[n.Addr]}
			return doors[n.Addr], nil
		}, slog.New(slog.NewTextHandler(&told, nil)))
		if n, err := c.get(topology.Node{ID: "n0", Addr: "bad"}); n != nil || err != faulty || len(c.mu.open) > 0 {
			t.Errorf("%v, %v", n, err)
		}
		for _, addr := range []string{"a:1", "b:1"} {
			if _, err := c.get(topology.Node{ID: "n0", Addr: addr}); err != nil {
				t.Fatal(err)
			}
		}
		c.keep(oneMap{topology.NewMap(topology.Assignment{}, []topology.Node{{ID: "n0", Addr: "b:1"}}, nil)})
		soon := c.mu.leaving[place{"n0", "a:1"}]
		c.close()
		if !doors["a:1"].closed || !doors["b:1"].closed || len(c.mu.open) > 0 || len(c.mu.leaving) > 0 || soon.Stop() || strings.Count(told.String(), "it is stuck") != 1 {
			t.Errorf("%v are open, %v leave; %s", c.mu.open, c.mu.leaving, told.String())
		}
		c.leave(place{"n0", "a:1"}) // a timer that was under way
	})
}

// A node that has another address is another node. Questions of before may still ask
// it where it was, which ends nothing that others ask it where it is.
func TestANodeThatMovesKeepsItsCalls(t *testing.T) {
	synctest.Test(t, testANodeThatMovesKeepsItsCalls)
}

func testANodeThatMovesKeepsItsCalls(t *testing.T) {
	c := newConns(func(topology.Node) (Node, error) { return &door{}, nil }, slog.New(slog.DiscardHandler))
	get := func(addr string) *door {
		t.Helper()
		n, err := c.get(topology.Node{ID: "n1", Addr: addr})
		if err != nil {
			t.Fatal(err)
		}
		return n.(*door)
	}
	was, is := get("a:1"), get("b:1")
	if again := get("a:1"); again != was || get("b:1") != is || was.closed || is.closed {
		t.Error("asking it where it was closes the way to where it is")
	}
	at := func(addr string) oneMap {
		return oneMap{topology.NewMap(topology.Assignment{}, []topology.Node{{ID: "n1", Addr: addr}}, nil)}
	}
	look := func(when string, wasClosed bool) {
		t.Helper()
		synctest.Wait()
		if was.closed != wasClosed || is.closed {
			t.Errorf("%s, the way to where it was is closed: %t, and to where it is: %t", when, was.closed, is.closed)
		}
	}
	defer c.close()
	c.keep(at("b:1"))
	time.Sleep(lingers - time.Second)
	look("while calls may be under way", false)
	c.keep(at("a:1"))
	time.Sleep(time.Second)
	look("when it is back", false)
	c.keep(at("b:1"))
	time.Sleep(lingers)
	look("when it has left", true)
	if get("a:1") == was {
		t.Error("a way that is closed is used")
	}
}

// heldUp gives an older map to the first that asks, after something else was done.
type heldUp struct {
	oneMap
	old    *topology.Map
	before func()
}

func (h *heldUp) Current() *topology.Map {
	if do := h.before; do != nil {
		h.before = nil
		do()
		return h.old
	}
	return h.oneMap.Current()
}

// A question of an older map closes no way that others have opened by the newer one.
func TestAnOlderMapClosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		maps, opened := &heldUp{oneMap: oneMap{zoned(t, 1, "n0", "n1")}, old: zoned(t, 1, "n0")}, map[millrace.NodeID]*door{}
		f := New(Config{Maps: maps, Memory: memory.New(1<<30, "answers"), Log: slog.New(slog.DiscardHandler), Dial: func(n topology.Node) (Node, error) {
			opened[n.ID] = &door{Node: frozen{}}
			return opened[n.ID], nil
		}})
		defer f.Close()
		ask := func() {
			q := &questions.Question{Query: &nodev1.QueryRequest{Limit: 1}}
			q.Whole()
			q.Groups[0].Query, q.Groups[0].Types = q.Query, 1
			if err := q.TakeEntities([]string{"member:1", "member:2", "member:3"}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := f.Ask(t.Context(), q, time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		maps.before = func() {
			if ask(); opened["n1"] == nil {
				t.Fatal("nobody asked the new node")
			}
		}
		ask()
		time.Sleep(2 * lingers)
		synctest.Wait()
		if opened["n1"].closed {
			t.Error("the way to the new node is closed")
		}
		maps.m = zoned(t, 1, "n0")
		ask()
		time.Sleep(lingers)
		if synctest.Wait(); !opened["n1"].closed || opened["n0"].closed {
			t.Error("the way to a node that has left is not closed")
		}
	})
}

// withholding is a node whose answer takes more than there is.
type withholding struct{ frozen }

func (withholding) Query(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	return &nodev1.QueryResponse{WithheldBytes: 10 << 20}, nil
}

// That a broker has no room for answers is not held against the nodes that have them.
func TestTheBrokersOwnFaultIsNoNodes(t *testing.T) {
	m := zoned(t, 1, "n0", "n1")
	f := New(Config{
		Maps: oneMap{m}, Memory: memory.New(8<<20, "answers"), Log: slog.New(slog.DiscardHandler),
		Dial: func(topology.Node) (Node, error) { return withholding{}, nil },
	})
	defer f.Close()
	for range 10 {
		q := &questions.Question{Query: &nodev1.QueryRequest{Limit: 1}, Loan: f.memory.Borrow()}
		q.Whole()
		q.Groups[0].Query, q.Groups[0].Types = q.Query, 1
		if err := q.TakeEntities([]string{"member:1", "member:2", "member:3"}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Ask(t.Context(), q, time.Now().Add(time.Second)); err == nil {
			t.Fatal("there is room")
		}
		q.Loan.Return()
	}
	if got := f.health.doubtful(m); len(got.poor) > 0 {
		t.Errorf("out of use are %v", got.poor)
	}
}
