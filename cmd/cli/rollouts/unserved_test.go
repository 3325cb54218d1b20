package rollouts

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// A push tells what became of its version when others changed it at the same time.
func TestAPushTellsWhatBecameOfItsVersion(t *testing.T) {
	v, other := artefacts.Version{Name: "rate", Version: "5"}, artefacts.Version{Name: "rate", Version: "4"}
	for want, got := range map[string]error{
		"rate 5 serves: somebody else":           unserved(v, v, true, artefacts.ErrMoved),
		"somebody dropped it":                    unserved(v, other, false, artefacts.ErrNoVersion),
		"rate 5 is published and does not serve": unserved(v, other, true, artefacts.ErrMoved),
	} {
		if !strings.Contains(got.Error(), want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}
