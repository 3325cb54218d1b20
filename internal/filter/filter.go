// Package filter turns a CEL filter into kernels over columns.
//
// A filter is parsed and checked once ([Compile]), bound once a query and
// layout to the viewer's values, which become constants ([Filter.Bind]), and
// run over slabs ([Bound.Select]). docs/filters.md is its language.
//
//	record.likes > 5  &&  record.language in ["en", "de"]  &&  record.likes * 2 > 9
//	       │                         │                               │
//	a range of words           a set of words            a tree of kernels: a vector
//	       │                         │                   of words and states a node
//	       ▼                         ▼                               ▼
//	1011011101110111 ────► 1001011001100001 ────────────► 1000001001000001 ──► rows
//
// The terms of the outermost && narrow masks of 64 rows, one after the other.
// A term that is made of comparisons of a column with a constant is a loop
// over the column without branches (a tester); any other is a tree of kernels,
// each of which computes a vector for the rows that are left.
//
// Terms that codegen wrote Go for, from the filter of a feed's definition, run
// by that code wherever they stand one after the other in a filter, so also
// behind those of a request. Package compute is what both ways share.
//
// # Null, error and NaN
//
// Every value has a state: it is there, it is null, or it is an error. The
// rules are those of cel-go's evaluator for a record given as a map: null
// equals only null; any other operation on a null is an error, and so are int
// overflow and division by zero; && and || take the value that decides them
// over an error. Comparisons with NaN are false, but for !=. What the filter
// does not find true it drops and counts once: see [Counts].
package filter

import (
	"maps"
	"regexp"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/schemas/registry"
)

// Filter is a checked filter. It is immutable and safe for concurrent use.
type Filter struct {
	terms    []*expr.Node // of the outermost &&
	patterns map[string]*regexp.Regexp
	matched  sync.Map // of layouts to []match, by term
	slow     bool     // never uses generated code
}

// Kernels returns the filter as it runs without generated code: the reference
// to compare with.
func (f *Filter) Kernels() *Filter {
	return &Filter{terms: f.terms, patterns: f.patterns, slow: true}
}

// EnvOf returns what filters may speak of where these schemas are known: the
// fields of every family, in the order of admission. The first family that has a
// field decides its type.
func EnvOf(known *registry.Snapshot) expr.Env {
	env := expr.Env{Mode: expr.Filter}
	for _, f := range known.Families() {
		if f.Features() {
			env.Entity = append(env.Entity, f.Layout())
		} else {
			env.Record = append(env.Record, f.Layout())
		}
	}
	return env
}

// Compile parses and checks a filter; env.Mode is expr.Filter. The error is an
// *expr.Error with every fault at once.
func Compile(src string, env expr.Env) (*Filter, error) {
	env.Mode = expr.Filter
	root, err := expr.Parse(src, env)
	if err != nil {
		return nil, err
	}
	f := &Filter{terms: root.Conjuncts(), patterns: map[string]*regexp.Regexp{}}
	return f, f.compilePatterns(root)
}

// Join returns a filter that holds where both do. Its clauses are those of a
// and then those of b, as each was parsed by itself. Either may be nil, which
// holds everywhere.
func Join(a, b *Filter) *Filter {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	f := &Filter{terms: slices.Concat(a.terms, b.terms), patterns: maps.Clone(a.patterns)}
	maps.Copy(f.patterns, b.patterns)
	return f
}

func (f *Filter) compilePatterns(n *expr.Node) error {
	for _, a := range n.Args {
		if err := f.compilePatterns(a); err != nil {
			return err
		}
	}
	if n.Op != expr.Call || n.Name != "matches" {
		return nil
	}
	p := n.Args[1].Value.(string)
	re, err := regexp.Compile(p)
	f.patterns[p] = re
	return err
}

// Clauses returns how many clauses the filter has: the terms of the outermost &&.
func (f *Filter) Clauses() int { return len(f.terms) }

// Fields returns the fields that the filter reads, such as record.likes.
func (f *Filter) Fields() (names []string) {
	for _, t := range f.terms {
		names = t.Fields(names)
	}
	return names
}

// Counts is why rows were dropped, each row once.
type Counts struct {
	// False counts the rows of which the filter is false.
	False int64
	// Null counts those of which it is null, or an error because an operand
	// was null, or a viewer value of a type the operation does not take.
	Null int64
	// Error counts those of which it is any other error: an int overflow, a
	// division by zero.
	Error int64
	// NaN counts, apart from False, the rows whose first false term of the
	// outermost && is a comparison (== < <= > >=) of which an operand is NaN.
	NaN int64
}

// AddAll adds what others counted.
func (c *Counts) AddAll(of Counts) {
	c.False, c.Null, c.Error, c.NaN = c.False+of.False, c.Null+of.Null, c.Error+of.Error, c.NaN+of.NaN
}
