package cli

import (
	"testing"
)

// TestResizingPage does what docs/resizing.md says.
func TestResizingPage(t *testing.T) {
	startsProcesses(t)
	t.Parallel()
	ctx := bounded(t)
	p := newPage(ctx, t, "docs/resizing.md")
	p.carryOut(p.blocks())
}
