package answers

import (
	"strings"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/relevance"
)

// A pushed model that panics on live candidates is not the end of the node.
func TestAPanicOfATriedModelIsAnError(t *testing.T) {
	n := hostileNode(t)
	if _, err := n.Query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"post"} })); err != nil {
		t.Fatal(err)
	}
	n.cache.Purge()
	known := n.schemas
	n.schemas = nil
	if _, _, err := n.uncovered(t.Context(), relevance.ID{Name: "recency"}); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("%v", err)
	}
	n.schemas = known
}
