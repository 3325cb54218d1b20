package cli

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// What nodes refuse a pack for is told once, with its lines, beside all who say it.
func TestPushTellsARefusalOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1", "n2", "n3")
	refuse := func(why string) func(artefacts.Version) string { return func(artefacts.Version) string { return why } }
	const why = "spec.yaml:3:11: no schema pod.Episode\n    3 | schemas: [pod.Episode]"
	s.Answer("n1", refuse(why))
	s.Answer("n2", refuse("other"))
	s.Answer("n3", refuse(why))
	out, err := s.run("model", "push", s.RatePack("1", "likes"), "--timeout", "2s")
	if err == nil || strings.Contains(out, "u000a") || strings.Count(out, "no schema pod.Episode") != 1 ||
		!strings.Contains(out, "\nn1, n3  refused: spec.yaml:3:11: no schema pod.Episode\n            3 | schemas: [pod.Episode]\nn2      refused: other\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(err.Error(), "of 3 index nodes 3 refused it") {
		t.Error(err)
	}
}
