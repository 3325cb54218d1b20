package relevance

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/document"
)

// specFile is a YAML file whose values know where they stand.
type specFile struct {
	*problems
	in  *source
	src []byte
}

// at is a place in the document.
func (d *specFile) at(line, col int) pos { return pos{d.in, line, col} }

// entry is a key of a mapping and its value.
type entry struct {
	key   string
	at    pos
	value *document.Node
}

// read parses a file into its top mapping; nil after a fault.
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

// mapping returns the entries of a mapping, in order, each key once.
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

// text reads a scalar as it is written.
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

// list returns the items of a list; a scalar is a list of one.
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

// from returns the file's text from a place on, as much of it as is enough.
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

// places maps each character of a scalar's value to its place in the file, so
// that a fault inside an expression points at the character that caused it.
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
