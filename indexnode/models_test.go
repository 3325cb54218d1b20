package indexnode

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/relevance"
)

// TestUncoveredFeatures: of a pushed model, the features that no candidate of
// the newest question has.
func TestUncoveredFeatures(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	likes, err := n.models.Admit(likesPack(t), "a", relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if missing, candidates, err := n.uncovered(t.Context(), likes); len(missing) > 0 || candidates > 0 || err != nil {
		t.Errorf("before any question: %v of %d, %v", missing, candidates, err)
	}
	w := newWorld(1)
	e := w.entities[0]
	body, err := n.schemas.Snapshot().Latest("millrace.Activity").EncodeJSON([]byte(`{"id":"r1","actor":"` + string(e) + `","verb":"post","created_at":5,"likes":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := bring(t.Context(), h, []event{{stream: kafka.Timeline, entity: e, schema: n.schemas.Snapshot().Latest("millrace.Activity"), body: body}}, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: pack(string(e)), ToMs: math.MaxInt64, Model: "recency", Limit: 5}); err != nil {
		t.Fatal(err)
	}
	missing, candidates, err := n.uncovered(t.Context(), likes)
	if want := []string{"followers", "taste"}; err != nil || candidates != 1 || !slices.Equal(missing, want) {
		t.Errorf("%v of %d candidates, %v; want %v of 1", missing, candidates, err, want)
	}
}

func likesPack(t *testing.T) *relevance.Pack {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		relevance.SpecFile: `name: likes
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
viewer: {taste: double}
features: {likes: record.likes, followers: entity.followers, taste: viewer.taste, verb: record.verb}
scorer: linear
parameters: {weights: {likes: 1, followers: 1, taste: 1, verb: {post: 1}}}
`,
		relevance.GoldenFile: `{"features":{"likes":1,"followers":1,"taste":1,"verb":"post"},"score":4}` + "\n",
		relevance.CardFile:   "Likes.\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := relevance.Seal(dir, relevance.ShippedSchemas(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
