package cli

import (
	"testing"
)

// TestExperimentsPage does what docs/experiments.md says.
func TestExperimentsPage(t *testing.T) {
	startsProcesses(t)
	t.Parallel()
	ctx := bounded(t)
	p := newPage(ctx, t, "docs/experiments.md")
	p.carryOut(p.blocks())
}
