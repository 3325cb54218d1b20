package findings

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
)

// A value in a sentence is cut where it would drown the sentence, and between
// characters.
func TestValueText(t *testing.T) {
	fits, long := strings.Repeat("ß", maxValueText-2), strings.Repeat("ß", maxValueText) // in quotes
	for text, want := range map[string]string{fits: `"` + fits + `"`, long: `"` + long[:2*(maxValueText-1)] + "…"} {
		if got := valueText(structpb.NewStringValue(text)); got != want {
			t.Errorf("%d characters became %q, want %q", len(text)/2, got, want)
		}
	}
}
