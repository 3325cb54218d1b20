package compute

import (
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// FilterArgs are what a generated filter works on.
type FilterArgs struct {
	*State
	Rows    *column.Slab
	Lo, Hi  int     // of Rows: one chunk
	Columns []int   // of Rows, in the order of Filter.Columns
	Ranges  []Range // that the instant of the question decides
}

// Range is the words from Lo to Lo + Span.
type Range struct{ Lo, Span uint64 }

// Column returns the words of column i in the chunk.
func (k *FilterArgs) Column(i int) []uint64 { return k.Rows.Column(k.Columns[i])[k.Lo:k.Hi] }

// Nulls returns the words with the null bits of column i in the chunk, and the
// bit.
func (k *FilterArgs) Nulls(i int) ([]uint64, uint64) {
	words, bit := k.Rows.Nulls(k.Columns[i])
	return words[k.Lo:k.Hi], bit
}

// Blocks is how many blocks the chunk has.
func (k *FilterArgs) Blocks() int { return (k.Hi - k.Lo + 63) / 64 }

// Block returns block i of the words of a chunk.
func Block(words []uint64, i int) []uint64 { return words[64*i : min(64*i+64, len(words))] }

// FilterFunc takes its terms over into FilterArgs.State, block by block.
type FilterFunc func(*FilterArgs)

// Filter is generated code for terms of a filter that stand one after the
// other. It holds for layouts that have its columns.
type Filter struct {
	Feed    string // whose definition it was written from, for people
	Terms   []string
	Columns []FilterColumn
	Keep    FilterFunc
}

// FilterColumn is a field that generated code reads, by what its words mean.
type FilterColumn struct {
	Name     string
	Kind     column.Kind
	Nullable bool
}

var byFirst = map[string][]Filter{} // by the first of Terms, longest first

// RegisterFilter makes generated code known. It is for init functions.
func RegisterFilter(g Filter) {
	same := byFirst[g.Terms[0]]
	same = append(same, g)
	slices.SortStableFunc(same, func(a, b Filter) int { return len(b.Terms) - len(a.Terms) })
	byFirst[g.Terms[0]] = same
}

// FindFilter returns the generated code for the first terms of a list, as many as
// there is code for, over a layout; nil if there is none.
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
