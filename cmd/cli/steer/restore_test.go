package steer

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
)

// What is not restored is told in words, and nothing of what only roles know.
func TestWhatIsNotRestoredIsTold(t *testing.T) {
	var out strings.Builder
	tellRestored(&out, &cluster.Restored{
		Stays:  []string{"condemned rate", "decisions 0-restored", "experiments ranker"},
		Unsure: []string{"decisions ranker"},
		Again:  []string{"feeds old", "decisions 0-restored"},
	})
	const want = `what is condemned of model rate stays as etcd has it, which somebody has written since: what was kept of it is not restored; look at it, and nodes condemn again what they meet
experiments ranker stays as etcd has it, which somebody has written since: what was kept of it is not restored; look at it, and push or define again what it lacks
what was decided about experiment ranker, and who holds it, stays as etcd has it, and it cannot be told which is newer: what was kept of it is not restored; look at it, and let its ramp go on with millrace experiment resume if nobody is against it
feeds old is in etcd again, and was removed after the backup: remove it again if it is not needed
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}
