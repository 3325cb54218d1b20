package relevance

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/hint"
)

// specFile is a YAML file that is read, with the problems found so far.
type specFile struct {
	*problems
	in  *source // its name and its lines, for problems
	src []byte
}

// at returns a place in the file.
func (d *specFile) at(line, col int) pos { return pos{d.in, line, col} }

// entry is a key of a mapping and its value.
type entry struct {
	key   string
	at    pos
	value *document.Node
}

// read parses the file, and returns the entries of its top mapping; nil after a fault.
func (d *specFile) read() []entry {
	n, err := document.Parse(d.src)
	var faults *document.Error
	switch {
	case errors.As(err, &faults):
		for _, f := range faults.Faults {
			d.add(d.at(f.Line, f.Col), f.WayOut, "%s", f.Detail)
		}
		return nil
	case err != nil:
		d.add(d.at(1, 1), "", "%v", err)
		return nil
	case n == nil || n.Kind == document.Null:
		d.add(d.at(1, 1), "begin with name: and version:", "the file is empty")
		return nil
	}
	return d.mapping(n, "a spec")
}

func (d *specFile) position(n *document.Node) pos { return d.at(n.Line, n.Col) }

// mapping returns the entries of a mapping, in order, each key once. A nil n has none.
// what is the mapping in messages, as in the methods below.
func (d *specFile) mapping(n *document.Node, what string) []entry {
	if n == nil {
		return nil
	}
	if n.Kind != document.Mapping {
		d.add(d.position(n), "", "%s is a mapping of names to values, and this is %s", what, n.Kind)
		return nil
	}
	var out []entry
	seen := map[string]bool{}
	for _, v := range n.Entries {
		e := entry{key: v.Key, at: d.at(v.Line, v.Col), value: v.Value}
		if seen[e.key] {
			d.add(e.at, "remove one", "%s stands twice", e.key)
			continue
		}
		seen[e.key] = true
		out = append(out, e)
	}
	return out
}

// text reads a scalar as it is written; "", with a problem noted, if n is no scalar.
func (d *specFile) text(n *document.Node, what string) string {
	switch n.Kind {
	case document.String, document.Int, document.Float, document.Bool:
		if n.Block {
			return strings.TrimRight(n.Text, "\n")
		}
		return n.Text
	}
	d.add(d.position(n), "", "%s is a text, and this is %s", what, n.Kind)
	return ""
}

// number reads a finite number.
func (d *specFile) number(n *document.Node, what string) float64 {
	switch n.Kind {
	case document.Int, document.Float:
		x, err := strconv.ParseFloat(strings.ReplaceAll(n.Text, "_", ""), 64)
		if i, not := strconv.ParseInt(n.Text, 0, 64); err != nil && not == nil {
			return float64(i) // such as 0x10
		}
		if err != nil || math.IsInf(x, 0) || math.IsNaN(x) { // .inf and .nan
			d.add(d.position(n), "write a finite number", "%s is not finite", what)
			return 0
		}
		return x
	case document.String:
		if _, err := strconv.ParseFloat(n.Text, 64); errors.Is(err, strconv.ErrRange) && !n.Quoted {
			d.add(d.position(n), "write a finite number", "%s is beyond what a float64 holds", what)
			return 0
		}
		d.add(d.position(n), "", "%s is a number, and this is the text %q", what, n.Text)
		return 0
	}
	d.add(d.position(n), "", "%s is a finite number, and this is %s", what, n.Kind)
	return 0
}

// list returns the items of a list. A scalar counts as a list of one.
func (d *specFile) list(n *document.Node, what string) []*document.Node {
	switch n.Kind {
	case document.List:
		return n.Items
	case document.Mapping, document.Null:
		d.add(d.position(n), "", "%s is a list, and this is %s", what, n.Kind)
		return nil
	}
	return []*document.Node{n}
}

// from returns the file's text from a place on, at most about enough bytes.
func (d *specFile) from(at pos, enough int) []rune {
	var text strings.Builder
	for i, line := range d.in.lines[at.line-1:] {
		if i > 0 {
			text.WriteByte('\n')
		}
		for col := 1; i == 0 && col < at.col && line != ""; col++ {
			_, n := utf8.DecodeRuneInString(line)
			line = line[n:]
		}
		text.WriteString(line[:min(len(line), enough)])
		if enough -= len(line); enough <= 0 {
			break
		}
	}
	return []rune(text.String())
}

// places returns the place in the file of each character of a scalar's value, and of its
// end. So a fault in an expression can point at the character that caused it, even if YAML
// has removed quotes, escapes and line breaks from the value.
func (d *specFile) places(n *document.Node, value string) []pos {
	at := d.position(n)
	src := d.from(at, 4*len(value)+4096)
	i, here := 0, at
	step := func() {
		if src[i] == '\n' {
			here = d.at(here.line+1, 1)
		} else {
			here.col++
		}
		i++
	}
	if n.Block {
		for i < len(src) && src[i] != '\n' {
			step()
		}
	} else if i < len(src) && (src[i] == '"' || src[i] == '\'') {
		step()
	}
	var out []pos
	for _, r := range value {
		for i < len(src) && src[i] != r && (isSpace(src[i]) && !isSpace(r) || (src[i] == '\\' || src[i] == '\'')) {
			step()
		}
		out = append(out, here)
		if i < len(src) && (src[i] == r || isSpace(src[i]) && isSpace(r)) {
			step()
		}
	}
	return append(out, here)
}

func isSpace(r rune) bool { return r == ' ' || r == '\n' || r == '\t' || r == '\r' }

// Problem is one fault of a spec.
type Problem struct {
	File       string
	Line, Col  int    // from 1; Col in characters
	Message    string // what is wrong
	Suggestion string // what to do about it, or empty
	text       string // the whole line in the file
}

// SpecError has every fault of a spec, up to maxProblems, file by file in the order of
// their lines.
type SpecError struct {
	Problems []Problem
}

// Error renders each fault with its line and a caret:
//
//	home.yaml:9:16: no field liks in record
//	   9 |   likes: log1p(record.liks)
//	     |                       ^ did you mean likes?
func (e *SpecError) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		p.write(&b)
	}
	return b.String()
}

// shownColumns is how many characters of a line are shown on each side of the caret.
const shownColumns = 70

func (p *Problem) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s:%d:%d: %s", p.File, p.Line, p.Col, p.Message)
	at := max(p.Col-1, 0)
	from, i := max(0, at-shownColumns), 0
	var shown strings.Builder
	for _, r := range p.text { // not as []rune: a line may be as long as the whole file
		if i >= at+shownColumns {
			break
		}
		if i >= from {
			shown.WriteRune(max(r, ' '))
		}
		i++
	}
	fmt.Fprintf(b, "\n%5d | %s\n      | %s^", p.Line, shown.String(), strings.Repeat(" ", max(0, min(at, i)-from)))
	if p.Suggestion != "" {
		b.WriteString(" " + p.Suggestion)
	}
}

// problems collects the faults of a spec and of the files that it names.
type problems struct {
	list []Problem
}

// source is a file in which faults are found.
type source struct {
	name  string
	lines []string
}

func newSource(name string, src []byte) *source {
	return &source{name: name, lines: strings.Split(string(src), "\n")}
}

// maxProblems bounds the faults in a [SpecError], since a fault takes more time than text
// without one. One more entry then says that there are more faults.
const maxProblems = 100

// tooMany is the panic by which add ends the reading of a spec that has more than
// maxProblems faults; see specReader.untilFull.
type tooMany struct{}

// add notes a problem at a place; format and args are as for Sprintf.
func (p *problems) add(at pos, suggestion, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.list = append(p.list, Problem{at.in.name, at.line, at.col, "there are more faults from here on", "mend those before", ""})
		panic(tooMany{})
	}
	text := ""
	if at.line >= 1 && at.line <= len(at.in.lines) {
		text = strings.TrimRight(at.in.lines[at.line-1], "\r")
	}
	p.list = append(p.list, Problem{at.in.name, at.line, at.col, fmt.Sprintf(format, args...), suggestion, text})
}

// err returns the faults as a [*SpecError]; nil if there are none.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	files := map[string]int{}
	for _, x := range p.list {
		if _, ok := files[x.File]; !ok {
			files[x.File] = len(files)
		}
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(files[a.File], files[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return &SpecError{p.list}
}

// pos is a place in a file; both from 1, col in characters.
type pos struct {
	in        *source
	line, col int
}

// nearest returns a hint with the known name that the writer of a wrong name probably meant.
func nearest(name string, known []string) string { return hint.Nearest(name, known) }
