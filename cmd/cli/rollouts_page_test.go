package cli

import (
	"testing"
)

// TestRolloutsPage does what docs/rollouts.md says.
func TestRolloutsPage(t *testing.T) {
	startsProcesses(t)
	t.Parallel()
	ctx := bounded(t)
	p := newPage(ctx, t, "docs/rollouts.md")
	p.carryOut(p.blocks())
}
