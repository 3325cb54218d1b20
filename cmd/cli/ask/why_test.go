package ask

import (
	"bytes"
	"testing"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// Each finding names the variants of its entity, and the viewer has theirs.
func TestWhyPrintsVariants(t *testing.T) {
	var out bytes.Buffer
	printWhy(&out, "r", &feedv1.WhyResponse{
		Findings: []*feedv1.Finding{
			{Entity: "member:1", Type: "post", Stage: "capped", Detail: "so it is", Variants: map[string]string{"reach": "short", "kinds": "likes"}},
			{Entity: "member:2", Type: "post", Stage: "shown", Detail: "as it is"},
		},
		Receipt: &feedv1.Receipt{Variants: map[string]string{"page": "even", "look": "old"}},
	})
	if got, want := out.String(), "r in member:1/post: capped: so it is; kinds: likes; reach: short\nr in member:2/post: shown: as it is\nThe viewer has look: old; page: even\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Names are callers' and producers': none makes a line of its own.
func TestWhyHoldsWhatOthersWrote(t *testing.T) {
	var out bytes.Buffer
	if err := printWhy(&out, "r\x1b[2J", &feedv1.WhyResponse{Findings: []*feedv1.Finding{{Entity: "member:1\nr in member:9", Type: "post", Stage: "shown", Detail: "so"}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), `r\u001b[2J in member:1\u000ar in member:9/post: shown: so`+"\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
