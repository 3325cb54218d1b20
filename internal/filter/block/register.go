package block

import (
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// Args are what a generated filter works on.
type Args struct {
	*State
	Rows    *column.Slab
	Lo, Hi  int     // of Rows: one chunk
	Columns []int   // of Rows, in the order of Generated.Columns
	Ranges  []Range // that the instant of the question decides
}

// Range is the words from Lo to Lo + Span.
type Range struct{ Lo, Span uint64 }

// Column returns the words of column i in the chunk.
func (k *Args) Column(i int) []uint64 { return k.Rows.Column(k.Columns[i])[k.Lo:k.Hi] }

// Nulls returns the words with the null bits of column i in the chunk, and the
// bit.
func (k *Args) Nulls(i int) ([]uint64, uint64) {
	words, bit := k.Rows.Nulls(k.Columns[i])
	return words[k.Lo:k.Hi], bit
}

// Blocks is how many blocks the chunk has.
func (k *Args) Blocks() int { return (k.Hi - k.Lo + 63) / 64 }

// Block returns block i of the words of a chunk.
func Block(words []uint64, i int) []uint64 { return words[64*i : min(64*i+64, len(words))] }

// Func takes its terms over into Args.State, block by block.
type Func func(*Args)

// Generated is generated code for terms of a filter that stand one after the
// other. It holds for layouts that have its columns.
type Generated struct {
	Feed    string // whose definition it was written from, for people
	Terms   []string
	Columns []Column
	Keep    Func
}

// Column is a field that generated code reads, by what its words mean.
type Column struct {
	Name     string
	Kind     column.Kind
	Nullable bool
}

var byFirst = map[string][]Generated{} // by the first of Terms, longest first

// Register makes generated code known. It is for init functions.
func Register(g Generated) {
	same := byFirst[g.Terms[0]]
	same = append(same, g)
	slices.SortStableFunc(same, func(a, b Generated) int { return len(b.Terms) - len(a.Terms) })
	byFirst[g.Terms[0]] = same
}

// Lookup returns the generated code for the first terms of a list, as many as
// there is code for, over a layout; nil if there is none.
func Lookup(terms []string, l *column.Layout) *Generated {
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

func (g *Generated) fits(l *column.Layout) bool {
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
