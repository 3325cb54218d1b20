package answers

import (
	"fmt"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

func modelOf(t *testing.T, n *node, id relevance.ID) *relevance.Model {
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
			err = nodetest.Bring(t.Context(), h, []nodetest.Event{{Stream: kafka.Timeline, Entity: e, Schema: schemas.Activity(), Body: body}}, millrace.Offset(i+1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := n.lookup.Resolve()
	defer r.Release()
	if err := r.Decode(n.someEntities(t.Context())); err != nil {
		t.Fatal(err)
	}
	if r.Affordable(trialEntities, trialEntities*trialEntities-1) == nil || r.Affordable(1, trialEntities+trialEach-1) != nil {
		t.Error("tried on fewer entities, or more")
	}
	if has, tried := n.condemned.try(t.Context(), good, modelOf(t, n, good)); !has || !tried {
		t.Errorf("a version with numbers: %t, %t", has, tried)
	}
	if has, tried := n.condemned.try(t.Context(), bad, modelOf(t, n, bad)); has || !tried {
		t.Errorf("one without: %t, %t", has, tried)
	}
}

// TestUncoveredFeatures: of a pushed model, the features that no candidate of
// the newest question has.
func TestUncoveredFeatures(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	likes, err := nodetest.Likes(t).Admit(n.models, "a", relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if missing, candidates, err := n.uncovered(t.Context(), likes); len(missing) > 0 || candidates > 0 || err != nil {
		t.Errorf("before any question: %v of %d, %v", missing, candidates, err)
	}
	w := nodetest.NewWorld(1)
	e := w.Entities[0]
	body, err := schemas.Activity().EncodeJSON([]byte(`{"id":"r1","actor":"` + string(e) + `","verb":"post","created_at":5,"likes":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodetest.Bring(t.Context(), h, []nodetest.Event{{Stream: kafka.Timeline, Entity: e, Schema: schemas.Activity(), Body: body}}, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: nodetest.Pack(string(e)), ToMs: math.MaxInt64, Model: "recency", Limit: 5}); err != nil {
		t.Fatal(err)
	}
	missing, candidates, err := n.uncovered(t.Context(), likes)
	if want := []string{"followers", "taste"}; err != nil || candidates != 1 || !slices.Equal(missing, want) {
		t.Errorf("%v of %d candidates, %v; want %v of 1", missing, candidates, err, want)
	}
}
