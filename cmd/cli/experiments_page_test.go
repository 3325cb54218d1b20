package cli

import (
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestExperimentsPage does what docs/experiments.md says.
func TestExperimentsPage(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "docs/experiments.md")
	p.carryOut(p.blocks())
}
