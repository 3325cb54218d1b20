package main

import (
	"context"
	"testing"
	"time"
)

// TestExperimentsPage does what docs/experiments.md says.
func TestExperimentsPage(t *testing.T) {
	startsProcesses(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	p := newPage(ctx, t, "docs/experiments.md")
	p.carryOut(p.blocks())
}
