package rollouts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// TestReviewOfASchema: a schema that takes a field from a feed or a model that
// serves is refused by name, unless it is meant; any other is told.
func TestReviewOfASchema(t *testing.T) {
	t.Parallel()
	s := newRolling(t, "n1")
	s.Answer("n1", clitest.Admits)
	if _, err := s.pushed("1", "1", push{}); err != nil {
		t.Fatal(err)
	}
	for name, definition := range map[string]string{
		"jobs":   "name: jobs\nmodel: recency\nfilter: record.language == \"en\" && record.likes % 2 == 0",
		"german": "name: german\nmodel: recency\nfilter: record.language == \"de\"",
	} {
		v, _, err := s.Serving.Feeds.Versions.Publish(t.Context(), name, "", []byte(definition), "test")
		if err == nil {
			err = s.Serving.Feeds.Versions.Serve(t.Context(), v, nil, "test")
		}
		if err != nil {
			t.Fatalf("%s of %s: %v", name, feeds.Kind, err)
		}
	}
	const document = `layers: [{name: l, salt: s, unit: viewer}]
experiments: [{name: clicked, layer: l, feeds: [jobs], state: running, slots: [0-99], share: 100, outcomes: {topic: clicks, actions: [click], answer_field: language}, variants: [{name: control, weight: 5000}, {name: few, weight: 5000, set: {limit: 5}}]}]
`
	file := filepath.Join(t.TempDir(), "clicked.yaml")
	s.Check(os.WriteFile(file, []byte(document), 0o644))
	if _, err := s.run("experiment", "define", file); err != nil {
		t.Fatal(err)
	}
	registry, err := registry.New(nil, nil)
	if err == nil {
		_, err = registry.Admit(schemas.Activity())
	}
	if err != nil {
		t.Fatal(err)
	}
	like := `{"name": "likes", "type": "long", "default": 0}`
	if !strings.Contains(schemas.Activity().JSON(), like) {
		t.Fatalf("the schema no longer has %s", like)
	}
	cm := &clusters.Flags{Etcd: s.Etcd, Cluster: "test"}
	for name, c := range map[string]struct {
		instead string // of likes
		refused bool
		told    string
	}{
		"drops":   {`{"name": "dislikes", "type": "long", "default": 0}`, true, "drops record.likes: its records read the default\n  read by built-in model home, feed jobs, model likes\n"},
		"renames": {`{"name": "hearts", "type": "long", "default": 0, "aliases": ["likes"]}`, false, "renames record.likes: to hearts\n  read by built-in model home, feed jobs, model likes\n"},
		"widens":  {`{"name": "likes", "type": "double", "default": 0}`, false, "widens record.likes"},
		"adds":    {like + `, {"name": "hearts", "type": "long", "default": 0}`, false, "adds record.hearts\n"},
		"nothing": {like, false, ""},
	} {
		next, err := schemas.Parse([]byte(strings.Replace(schemas.Activity().JSON(), like, c.instead, 1)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, force := range []bool{false, true} {
			var out bytes.Buffer
			err := (&review{cm: cm, out: &out, force: force, accept: "--accept-loss"}).schema(t.Context(), registry.Snapshot(), next)
			if refused := c.refused && !force; (err != nil) != refused {
				t.Errorf("%s, forced %v: %v", name, force, err)
			} else if refused && (!strings.Contains(err.Error(), "likes (built-in model home, feed jobs, model likes)") || !strings.Contains(fmt.Sprint(err), "--accept-loss")) {
				t.Errorf("%s: %v", name, err)
			}
			if !strings.Contains(out.String(), c.told) || strings.Contains(out.String(), "german") || c.told == "" && out.Len() > 0 {
				t.Errorf("%s tells %s", name, out.String())
			}
		}
	}
	// Outcomes would lose what answer they are of.
	const language = `"name": "language"`
	lost, err := schemas.Parse([]byte(strings.Replace(schemas.Activity().JSON(), language, `"name": "tongue"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	err = (&review{cm: cm, out: new(bytes.Buffer)}).schema(t.Context(), registry.Snapshot(), lost)
	if err == nil || !strings.Contains(err.Error(), "language (built-in model home, feed german, feed jobs, outcomes of experiment clicked)") {
		t.Errorf("%v", err)
	}
	// One that is retired is not loaded by mistake.
	if _, err = registry.Admit(schemas.Note()); err != nil {
		t.Fatal(err)
	}
	longer, err := schemas.Parse([]byte(strings.Replace(schemas.Note().JSON(), `"fields": [`, `"fields": [{"name": "more", "type": "long", "default": 0},`, 1)))
	if err == nil {
		_, err = registry.Admit(longer)
	}
	if err == nil {
		err = registry.Retire(longer.Fingerprint())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, force := range []bool{false, true} {
		if err := (&review{cm: cm, out: new(bytes.Buffer), force: force}).schema(t.Context(), registry.Snapshot(), longer); (err == nil) != force {
			t.Errorf("a retired schema, forced %v: %v", force, err)
		}
	}
	// Where nobody can be asked, a loss is refused too.
	gone, err := schemas.Parse([]byte(strings.Replace(schemas.Activity().JSON(), like+",", "", 1)))
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err = (&review{cm: &clusters.Flags{Etcd: []string{"127.0.0.1:1"}, Cluster: "test"}, out: new(bytes.Buffer)}).schema(ended, registry.Snapshot(), gone)
	if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Reason != millrace.ReasonUnavailable || e.Field != "etcd" {
		t.Errorf("without a cluster: %v", err)
	}
}
