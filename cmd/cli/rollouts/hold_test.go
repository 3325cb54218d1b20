package rollouts

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// Versions that are one number say not which of them is newer.
func TestVersionsOfOneNumberAreHeld(t *testing.T) {
	r := &rollout{}
	for _, c := range []struct{ serving, next, says string }{
		{"1", "1.0", "its version says no more than 1, which serves"}, {"1.0.0", "1", "no more than 1.0.0,"},
		{"2", "1.0", "older than 2"}, {"1.0", "01.0", "no more than 1.0,"},
	} {
		held := r.hold(artefacts.Version{Name: "m", Version: c.serving, Sum: "a"}, artefacts.Version{Name: "m", Version: c.next, Sum: "b"})
		if !strings.Contains(held, c.says) {
			t.Errorf("%s after %s: %q", c.next, c.serving, held)
		}
	}
	for _, c := range [][2]string{{"1", "1.1"}, {"1.0", "1.1"}, {"1.1", "1.10"}, {"1", "10"}} {
		if sameNumber(c[0], c[1]) {
			t.Errorf("%s and %s are one", c[0], c[1])
		}
	}
}
