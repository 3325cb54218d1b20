package rollouts

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
)

// A push tells what became of its version when others changed it at the same time.
func TestAPushTellsWhatBecameOfItsVersion(t *testing.T) {
	v, other := cluster.Version{Name: "rate", Version: "5"}, cluster.Version{Name: "rate", Version: "4"}
	for want, got := range map[string]error{
		"rate 5 serves: somebody else":           unserved(v, v, true, cluster.ErrMoved),
		"somebody dropped it":                    unserved(v, other, false, cluster.ErrNoVersion),
		"rate 5 is published and does not serve": unserved(v, other, true, cluster.ErrMoved),
	} {
		if !strings.Contains(got.Error(), want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}
