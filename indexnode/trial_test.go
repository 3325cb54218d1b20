package indexnode

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

func modelOf(t *testing.T, n *Node, id relevance.ID) *relevance.Model {
	t.Helper()
	m, err := n.models.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Among records of many entities in many partitions a version is tried, and those
// of no more than some.
func TestVersionsAreTriedOnRecordsOfTheNode(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	good, bad := admitBroken(t, n, "1", "2.0"), admitBroken(t, n, "2", none)
	if has, tried := n.condemned.try(t.Context(), good, modelOf(t, n, good)); has || tried {
		t.Errorf("of no records: %t, %t", has, tried)
	}
	for i := range 300 {
		e := millrace.Entity(fmt.Sprint("member:", i))
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":%q,"verb":"post","created_at":1700000000000,"object":"o1","likes":3}`, i, e))
		if err == nil {
			err = bring(t.Context(), h, []event{{stream: kafka.Timeline, entity: e, schema: schemas.Activity(), body: body}}, millrace.Offset(i+1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &resolution{node: n}
	if err := r.decode(n.someEntities(t.Context())); err != nil {
		t.Fatal(err)
	}
	if len(r.entities) < trialEntities || len(r.entities) >= trialEntities+trialEach {
		t.Errorf("tried on %d entities", len(r.entities))
	}
	if has, tried := n.condemned.try(t.Context(), good, modelOf(t, n, good)); !has || !tried {
		t.Errorf("a version with numbers: %t, %t", has, tried)
	}
	if has, tried := n.condemned.try(t.Context(), bad, modelOf(t, n, bad)); has || !tried {
		t.Errorf("one without: %t, %t", has, tried)
	}
}
