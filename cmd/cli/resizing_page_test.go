package cli

import (
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestResizingPage does what docs/resizing.md says.
func TestResizingPage(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "docs/resizing.md")
	p.carryOut(p.blocks())
}
