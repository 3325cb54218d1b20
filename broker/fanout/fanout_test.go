package fanout

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

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
