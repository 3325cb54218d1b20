package main

import (
	"context"
	"testing"
	"time"
)

// TestResizingPage does what docs/resizing.md says.
func TestResizingPage(t *testing.T) {
	startsProcesses(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	p := newPage(ctx, t, "docs/resizing.md")
	p.carryOut(p.blocks())
}
