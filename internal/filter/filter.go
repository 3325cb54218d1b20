// Package filter turns a CEL filter into kernels over columns.
//
// A filter is parsed and checked once ([Compile]). For each query and layout it
// is bound to the viewer's values, which become constants ([Filter.Bind]), and
// then run over slabs ([Bound.Select]). docs/filters.md describes its language.
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
// over the column without branches (a tester); any other is a tree of kernels.
// Each kernel computes a vector for the rows that are left.
//
// codegen writes Go code for the filter of a feed's definition. That code runs
// for the filter's terms wherever they stand together, in their order, in
// another filter, for example after the terms of a request. Interpreted and
// generated code share package compute.
//
// # Null, error and NaN
//
// Every value has a state: it is present, it is null, or it is an error. The
// rules are those of cel-go's evaluator for a record given as a map: null
// equals only null; any other operation on a null is an error, and so are int
// overflow and division by zero; && and || take the value that decides them
// over an error. Comparisons with NaN are false, except for !=. A row for which
// the filter is not true is dropped, and counted once: see [Counts].
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
	terms    []*expr.Node              // of the outermost &&
	patterns map[string]*regexp.Regexp // of matches, by their text
	matched  sync.Map                  // which generated code fits: *column.Layout to []match, by term
	slow     bool                      // never uses generated code
}

// Kernels returns the filter in a form that never uses generated code: the
// reference that generated code is compared with.
func (f *Filter) Kernels() *Filter {
	return &Filter{terms: f.terms, patterns: f.patterns, slow: true}
}

// EnvOf returns what filters may refer to if these schemas are known: the
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

// Compile parses and checks a filter, whatever env.Mode is. The error is an
// *expr.Error with every fault at once.
func Compile(src string, env expr.Env) (*Filter, error) {
	env.Mode = expr.Filter
	root, err := expr.Parse(src, env)
	if err != nil {
		return nil, err
	}
	f := &Filter{terms: root.Conjuncts(), patterns: map[string]*regexp.Regexp{}}
	f.compilePatterns(root)
	return f, nil
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

// compilePatterns compiles the patterns of all calls of matches below n, which expr.Parse has
// checked.
func (f *Filter) compilePatterns(n *expr.Node) {
	for _, a := range n.Args {
		f.compilePatterns(a)
	}
	if n.Op == expr.Call && n.Name == "matches" {
		p := n.Args[1].Value.(string)
		f.patterns[p] = regexp.MustCompile(p)
	}
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

// Counts is how many rows were dropped, by reason. Each row counts once.
type Counts struct {
	// False counts the rows for which the filter is false.
	False int64
	// Null counts those for which it is null, or an error because an operand
	// was null, or was a viewer value of a type that the operation does not take.
	Null int64
	// Error counts those for which it is any other error: an int overflow, a
	// division by zero.
	Error int64
	// NaN counts rows that False does not: those whose first false term of the
	// outermost && is a comparison (== < <= > >=) with an operand that is NaN.
	NaN int64
}

// AddAll adds other counts to c.
func (c *Counts) AddAll(of Counts) {
	c.False, c.Null, c.Error, c.NaN = c.False+of.False, c.Null+of.Null, c.Error+of.Error, c.NaN+of.NaN
}
