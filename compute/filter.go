package compute

import (
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// FilterArgs are what a generated filter works on: one chunk of rows.
type FilterArgs struct {
	*State
	Rows    *column.Slab
	Lo, Hi  int     // the chunk is the rows from Lo, before Hi
	Columns []int   // indexes of columns of Rows, in the order of Filter.Columns
	Ranges  []Range // the ranges to compare with that depend on the instant of the question (as_of), in the order of the code
}

// Range is the words from Lo to Lo+Span, both included.
type Range struct{ Lo, Span uint64 }

// Column returns the words of column i in the chunk.
func (k *FilterArgs) Column(i int) []uint64 { return k.Rows.Column(k.Columns[i])[k.Lo:k.Hi] }

// Nulls returns the words of the chunk that hold the null bits of column i, one word a
// row, and the bit of that column.
func (k *FilterArgs) Nulls(i int) ([]uint64, uint64) {
	words, bit := k.Rows.Nulls(k.Columns[i])
	return words[k.Lo:k.Hi], bit
}

// Blocks returns how many blocks of 64 rows the chunk has; the last may be shorter.
func (k *FilterArgs) Blocks() int { return (k.Hi - k.Lo + 63) / 64 }

// Block returns block i of the words of a chunk.
func Block(words []uint64, i int) []uint64 { return words[64*i : min(64*i+64, len(words))] }

// FilterFunc evaluates its terms for a chunk, and keeps in FilterArgs.State, block by
// block, the rows that they do not drop.
type FilterFunc func(*FilterArgs)

// Filter is generated code for some terms of a filter that follow one another; terms are
// the operands of the outermost &&. It works on every layout that has its columns.
type Filter struct {
	Feed    string         // the feed whose definition it was generated from, for people
	Terms   []string       // the source of each term, at least one
	Columns []FilterColumn // the fields that it reads
	Keep    FilterFunc
}

// FilterColumn is a field that generated code reads, and what the words of its column mean.
type FilterColumn struct {
	Name     string
	Kind     column.Kind
	Nullable bool
}

var byFirst = map[string][]Filter{} // the registered filters, by the first of their Terms; those with the most terms first

// RegisterFilter makes generated code known. Only init functions may call it.
func RegisterFilter(g Filter) {
	same := byFirst[g.Terms[0]]
	same = append(same, g)
	slices.SortStableFunc(same, func(a, b Filter) int { return len(b.Terms) - len(a.Terms) })
	byFirst[g.Terms[0]] = same
}

// FindFilter returns the generated code for the first terms of a list on a layout: the
// one that covers the most terms; nil if there is none.
func FindFilter(terms []string, l *column.Layout) *Filter {
	if len(terms) == 0 {
		return nil
	}
	for _, g := range byFirst[terms[0]] {
		if len(g.Terms) <= len(terms) && slices.Equal(g.Terms, terms[:len(g.Terms)]) && g.fits(l) {
			return &g
		}
	}
	return nil
}

// fits reports whether a layout has all columns of g, with their kinds.
func (g *Filter) fits(l *column.Layout) bool {
	for _, c := range g.Columns {
		i := l.Index(c.Name)
		if i < 0 {
			return false
		}
		if f := l.Fields()[i]; f.Kind != c.Kind || f.Nullable != c.Nullable {
			return false
		}
	}
	return true
}
