// Package filter turns a CEL filter into kernels over columns.
//
// A filter is parsed and checked once ([Compile]), bound once a query and
// layout to the viewer's values, which become constants ([Filter.Bind]), and
// run over slabs ([Bound.Select]). docs/filters.md is its language.
package filter

import (
	"errors"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// Filter is a checked filter. It is immutable and safe for concurrent use.
type Filter struct {
	root *expr.Node
}

// Compile parses and checks a filter; env.Mode is expr.Filter. The error is an
// *expr.Error with every fault at once.
func Compile(src string, env expr.Env) (*Filter, error) {
	root, err := expr.Parse(src, env)
	if err != nil {
		return nil, err
	}
	return &Filter{root: root}, nil
}

// Bind prepares the filter for the rows of one layout and one question. A
// field that layout does not have reads as null, and so does a viewer value
// that viewer does not have; entity and viewer may be nil.
func (f *Filter) Bind(layout, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Bound, error) {
	return nil, errors.New("filter: kernels are not built yet")
}

// Counts is why rows were dropped.
type Counts struct {
	False int64 // the filter is false
	Null  int64 // it is null, or an operand was null or of a type the operation does not take
	Error int64 // int overflow, division by zero
	NaN   int64 // it is false since a NaN was compared; see DESIGN.md
}

// Bound is a filter ready to run. It is used by one goroutine at a time; its
// buffers stay, so that Select does not allocate once it has seen the largest
// range.
type Bound struct {
	counts Counts
}

// Select appends to sel the rows of [lo, hi) that the filter keeps, ascending.
// rows must have the layout that was bound; entity is the row of the entity's
// features, or nil.
func (b *Bound) Select(rows *column.Slab, lo, hi int, entity *column.Slab, sel []int32) []int32 {
	return sel
}

// Counts returns how many rows were dropped since Bind.
func (b *Bound) Counts() Counts { return b.counts }
