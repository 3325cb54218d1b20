package cli

import (
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestRolloutsPage does what docs/rollouts.md says.
func TestRolloutsPage(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "docs/rollouts.md")
	p.carryOut(p.blocks())
}
