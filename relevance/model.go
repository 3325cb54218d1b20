package relevance

import (
	"errors"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Model is a checked model spec with its parameters. It is immutable and safe
// for concurrent use; each goroutine scores through a [Scorer] of its own.
type Model struct {
	name, version string
}

// Name returns the model's name, as requests and feed definitions say it.
func (m *Model) Name() string { return m.name }

// Version returns the version of the model's spec.
func (m *Model) Version() string { return m.version }

// Bind prepares a scorer for records of one layout and the question of one
// viewer. Entity is the layout of the entity's features, nil when there are
// none. A field that the layout lacks reads as missing. A viewer value of
// another type than the spec declares is refused.
func (m *Model) Bind(rows, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Scorer, error) {
	return nil, errors.New("relevance: scoring is not built yet")
}

// Scorer scores records of one layout for one viewer and instant. It is for
// one goroutine at a time.
type Scorer struct{}

// Score writes the score of row sel[i] of rows to out[i]. Entity is one row of
// the entity's features, or nil. In the steady state it does not allocate.
func (s *Scorer) Score(rows *column.Slab, sel []int32, entity *column.Slab, out []float64) {
	panic("relevance: a Scorer comes from Model.Bind")
}

// Execution tells what scores: "generated" or "interpreted". Both give the
// same bits.
func (s *Scorer) Execution() string { return "" }
