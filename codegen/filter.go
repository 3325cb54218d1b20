package codegen

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
)

// filter writes the terms of a feed's filter that are loops over columns. A filter's terms
// are the operands of its outermost &&. Each run of such terms, without another in between,
// becomes one function.
func (w *writer) filter(f *filter.Filter, layouts []*column.Layout) {
	written := map[string]bool{}
	for _, l := range layouts {
		terms := f.Loops(l)
		for from := 0; from < len(terms); {
			to := from
			for to < len(terms) && terms[to].Loop != nil {
				to++
			}
			if from < to {
				w.keep(terms[from:to], written)
			}
			from = to + 1
		}
	}
}

// keep writes the function of terms, unless one with the same terms and columns is written.
func (w *writer) keep(terms []filter.Term, written map[string]bool) {
	f := &keeper{w: w, names: newNames(), columns: map[int]int{}, words: map[int]string{}, nulls: map[int]masked{}}
	f.terms(terms)
	register := f.register(terms)
	if written[register] {
		return
	}
	name := "keep" + camel(w.name, true)
	if n := len(written); n > 0 {
		name += strconv.Itoa(n + 1)
	}
	written[register] = true
	fmt.Fprintf(&w.register, "\tcompute.RegisterFilter(compute.Filter{\n\tFeed: %q,\n%sKeep: %s,\n})\n", w.name, register, name)
	fmt.Fprintf(&w.body, "\n// %s drops the rows for which one of these is false: %s.\nfunc %s(k *compute.FilterArgs) {\n%sfor i := range k.Blocks() {\n%s}\n}\n",
		name, count(len(terms), "term"), name, f.head.String(), f.loop.String())
}

// keeper writes one function: a head that runs once for a chunk of rows, and a loop over the
// chunk's blocks of 64 rows.
type keeper struct {
	w          *writer
	names      names
	fields     []column.Field // that the function reads
	columns    map[int]int    // by column of the layout, its index in fields
	words      map[int]string // by column, the variable with its words in the chunk
	nulls      map[int]masked // by column, the variables with its null bits
	ranges     int            // how many ranges depend on the request's as_of
	head, loop bytes.Buffer
}

// register returns the text by which the engine finds the function: the normalised terms, and
// the columns that it reads.
func (f *keeper) register(terms []filter.Term) string {
	var b strings.Builder
	b.WriteString("Terms: []string{\n")
	for _, t := range terms {
		fmt.Fprintf(&b, "%q,\n", t.Source)
	}
	b.WriteString("},\nColumns: []compute.FilterColumn{\n")
	for _, c := range f.fields {
		fmt.Fprintf(&b, "{Name: %q, Kind: compute.Kind%s, Nullable: %t},\n", c.Name, columnKinds[c.Kind], c.Nullable)
	}
	b.WriteString("},\n")
	return b.String()
}

var columnKinds = [...]string{
	column.Bool: "Bool", column.Int: "Int", column.Time: "Time", column.Double: "Double", column.String: "String",
	column.Doubles: "Doubles", column.Strings: "Strings",
}

// terms writes the body of the loop. Neighbouring terms that meet no error and no NaN become
// one verdict, since it makes no difference which of them drops a row.
func (f *keeper) terms(terms []filter.Term) {
	plain := ""
	for i, t := range terms {
		text, plainTerm := f.verdict(t.Loop)
		fmt.Fprintf(&f.loop, "\n// %s\n", comment(t.CEL))
		last := i == len(terms)-1
		if !plainTerm {
			f.keep(text, last)
			continue
		}
		if plain == "" {
			plain = f.names.take("hit")
			fmt.Fprintf(&f.loop, "%s := %s\n", plain, text)
		} else {
			fmt.Fprintf(&f.loop, "%s &= %s\n", plain, text)
		}
		if !last && isPlain(terms[i+1].Loop) {
			continue
		}
		f.keep("compute.Verdict{Hit: "+plain+"}", last)
		plain = ""
	}
}

// isPlain reports whether a loop can meet no error (such as from a null) and no NaN.
func isPlain(l *filter.Loop) bool {
	return !slices.ContainsFunc(filter.Leaves([]filter.Term{{Loop: l}}), func(l *filter.Loop) bool {
		return l.Op == filter.Doubles || l.Op == filter.Since || l.Field.Nullable && l.Op != filter.NotNull
	})
}

// keep writes code that drops those rows of a block for which a verdict is not true. Unless
// the verdict is the last one, the code goes on with the next block if no row is left.
func (f *keeper) keep(verdict string, last bool) {
	if last {
		fmt.Fprintf(&f.loop, "k.Keep(i, %s)\n", verdict)
		return
	}
	fmt.Fprintf(&f.loop, "if k.Keep(i, %s) == 0 {\ncontinue\n}\n", verdict)
}

// verdict returns an expression for what a loop says of a block. If the loop is plain,
// without errors and NaN, that is a mask with a bit for each row; else a compute.Verdict.
func (f *keeper) verdict(l *filter.Loop) (text string, plain bool) {
	if len(l.Args) > 0 {
		return f.combined(l)
	}
	if l.Op == filter.NotNull {
		return f.notNull(l), true
	}
	text, plain = f.found(l)
	if l.Field.Nullable {
		text, plain = asVerdict(text, plain), false
		text = fmt.Sprintf("compute.%s(%s, %s)", map[bool]string{true: "Ordered", false: "Without"}[l.Ordered], text, f.null(l))
	}
	switch {
	case l.Outside && plain:
		text = "^" + text
	case l.Outside:
		text = "compute.Outside(" + text + ")"
	}
	if l.Op == filter.Since {
		valid := fmt.Sprintf("compute.Between(%s, %s)", f.column(l), f.bounds(l, l.ValidLo, l.ValidSpan))
		text, plain = "compute.Valid("+asVerdict(text, plain)+", "+valid+")", false
	}
	return text, plain
}

// found returns an expression for the rows of a block whose value is within a range, or in a
// set. A range is its lowest word and its span, the highest word less the lowest.
func (f *keeper) found(l *filter.Loop) (text string, plain bool) {
	switch l.Op {
	case filter.Doubles:
		return fmt.Sprintf("compute.DoublesBetween(%s, %s, %s)", f.column(l), f.float(l.Min), f.float(l.Max)), false
	case filter.InSet:
		return f.set(l), true
	}
	if l.Span == 0 && !l.OfAsOf {
		return fmt.Sprintf("compute.Equal(%s, %#x)", f.column(l), l.Lo), true
	}
	return fmt.Sprintf("compute.Between(%s, %s)", f.column(l), f.bounds(l, l.Lo, l.Span)), true
}

// bounds returns a range as two arguments. A range that depends on as_of, the request's
// instant, is read from k.Ranges.
func (f *keeper) bounds(l *filter.Loop, lo, span uint64) string {
	if !l.OfAsOf {
		return fmt.Sprintf("%#x, %#x", lo, span)
	}
	f.ranges++
	return fmt.Sprintf("k.Ranges[%d].Lo, k.Ranges[%d].Span", f.ranges-1, f.ranges-1)
}

// fewWords is the size of the largest set whose words are compared one by one, because few
// comparisons cost less than a look-up. A larger set is looked up in a table.
const fewWords = 4

// set returns an expression for the rows whose word is in a set. Texts that are too long to
// stand in a word are compared as texts.
func (f *keeper) set(l *filter.Loop) string {
	var parts []string
	if len(l.Words) > fewWords {
		words := make([]string, len(l.Words))
		for i, w := range l.Words {
			words[i] = fmt.Sprintf("%#x", w)
		}
		parts = append(parts, f.w.list("compute.NewSet("+strings.Join(words, ", ")+")")+".In("+f.column(l)+")")
	} else {
		for _, w := range l.Words {
			parts = append(parts, fmt.Sprintf("compute.Equal(%s, %#x)", f.column(l), w))
		}
	}
	if len(l.Texts) > 0 {
		texts := make([]string, len(l.Texts))
		for i, t := range l.Texts {
			texts[i] = strconv.Quote(t)
		}
		parts = append(parts, f.w.list("compute.NewTexts("+strings.Join(texts, ", ")+")")+".In(k.Rows, "+f.column(l)+")")
	}
	switch len(parts) {
	case 0:
		return "uint64(0)"
	case 1:
		return parts[0]
	}
	return "(" + strings.Join(parts, " | ") + ")"
}

// notNull returns an expression for the rows where a column is not null, or is null if the loop
// is Outside.
func (f *keeper) notNull(l *filter.Loop) string {
	nulls := "uint64(0)"
	if l.Field.Nullable {
		nulls = f.null(l)
	}
	if l.Outside {
		return nulls
	}
	return "^" + nulls
}

// combined returns an expression for a loop that is &&, || or !.
func (f *keeper) combined(l *filter.Loop) (text string, plain bool) {
	texts, plains := make([]string, len(l.Args)), make([]bool, len(l.Args))
	plain = true
	for i, a := range l.Args {
		texts[i], plains[i] = f.verdict(a)
		plain = plain && plains[i]
	}
	if plain {
		switch l.Op {
		case filter.Not:
			return "^" + texts[0], true
		case filter.Or:
			return "(" + strings.Join(texts, " | ") + ")", true
		}
		return "(" + strings.Join(texts, " & ") + ")", true
	}
	for i := range texts {
		texts[i] = asVerdict(texts[i], plains[i])
	}
	if l.Op == filter.Not {
		return "compute.Not(" + texts[0] + ")", false
	}
	op := map[filter.LoopOp]string{filter.And: "compute.And(", filter.Or: "compute.Or("}[l.Op]
	text = texts[0]
	for _, t := range texts[1:] {
		text = op + text + ", " + t + ")"
	}
	return text, false
}

// asVerdict returns an expression of verdict as one of type compute.Verdict.
func asVerdict(text string, plain bool) string {
	if plain {
		return "compute.Verdict{Hit: " + text + "}"
	}
	return text
}

// column returns an expression for the words of a column in the block.
func (f *keeper) column(l *filter.Loop) string {
	if f.words[l.Column] == "" {
		name := f.names.take(camel(l.Field.Name, false))
		f.words[l.Column] = name
		fmt.Fprintf(&f.head, "%s := k.Column(%d)\n", name, f.field(l))
	}
	return "compute.Block(" + f.words[l.Column] + ", i)"
}

// null returns an expression for the mask of the rows where a column is null.
func (f *keeper) null(l *filter.Loop) string {
	m, made := f.nulls[l.Column]
	if !made {
		name := camel(l.Field.Name, false) + "Nulls"
		m = masked{f.names.take(name), f.names.take(name + "Bit")}
		f.nulls[l.Column] = m
		fmt.Fprintf(&f.head, "%s, %s := k.Nulls(%d)\n", m.words, m.bit, f.field(l))
	}
	return fmt.Sprintf("compute.Nulls(compute.Block(%s, i), %s)", m.words, m.bit)
}

// field returns the index of a column in fields, and adds it if it is not there.
func (f *keeper) field(l *filter.Loop) int {
	i, ok := f.columns[l.Column]
	if !ok {
		i = len(f.fields)
		f.columns[l.Column], f.fields = i, append(f.fields, l.Field)
	}
	return i
}

// float returns the text of a number from which Go makes the same bits. x is not NaN.
func (f *keeper) float(x float64) string {
	if math.IsInf(x, 0) || x == 0 && math.Signbit(x) {
		f.w.imports["math"] = true
	}
	switch {
	case math.IsInf(x, 0):
		return fmt.Sprintf("math.Inf(%+d)", int(math.Copysign(1, x)))
	case x == 0 && math.Signbit(x):
		return "math.Copysign(0, -1)"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
