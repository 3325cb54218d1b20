package main

import (
	"context"
	"testing"
	"time"
)

// TestRolloutsPage does what docs/rollouts.md says.
func TestRolloutsPage(t *testing.T) {
	startsProcesses(t)
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	p := newPage(ctx, t, "docs/rollouts.md")
	p.carryOut(p.blocks())
}
