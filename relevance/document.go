package relevance

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// document is a YAML file whose values know where they stand.
type document struct {
	*problems
	in  *source
	src []byte
}

// at is a place in the document.
func (d *document) at(line, col int) pos { return pos{d.in, line, col} }

// The bounds of a spec or its parameters. They are looked at before the parser
// is: what it takes grows with the square of how deep a file nests.
const (
	maxSpecBytes   = 512 << 10
	maxSpecEntries = 4_500 // lines, and items of lists and mappings within a line
	maxAnchors     = 200   // and tags, which a spec has no use for
	maxSpecDepth   = 64    // lists and mappings within each other, on a line or by their marks
)

// bounded reports a fault of a file that is too much to parse.
func (d *document) bounded() bool {
	if len(d.src) > maxSpecBytes {
		d.add(d.at(1, 1), "", "the file has %d bytes; at most %d are read", len(d.src), maxSpecBytes)
		return false
	}
	entries, depth, marks, anchors, line, head := 0, 0, 0, 0, 1, true
	for i, c := range d.src {
		switch c {
		case '\n':
			entries++
			line++
			marks, head = 0, true
		case ',':
			entries++
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(0, depth-1)
		case '-', '?':
			if head {
				marks++
			}
		case '&', '!':
			if next := d.src[min(i+1, len(d.src)-1)]; i > 0 && isSpace(rune(d.src[i-1])) && next != c && next != '=' && next != '(' {
				anchors++
			}
		}
		head = head && c != ':' && c != ',' && c != '"' && c != '\''
		if entries > maxSpecEntries {
			d.add(d.at(line, 1), "keep the parameters, or the features, few, and parameters in a file of their own", "more than %d entries", maxSpecEntries)
			return false
		}
		if anchors > maxAnchors {
			d.add(d.at(line, 1), "write values out, and bind a ! to what it negates by brackets: !(a)", "more than %d anchors or tags", maxAnchors)
			return false
		}
		if depth > maxSpecDepth || marks > maxSpecDepth {
			d.add(d.at(line, 1), "", "lists and mappings within each other, deeper than %d", maxSpecDepth)
			return false
		}
	}
	return true
}

// entry is a key of a mapping and its value.
type entry struct {
	key   string
	at    pos
	value ast.Node
}

// read parses a file into its top mapping; nil after a fault.
func (d *document) read() []entry {
	if !d.bounded() {
		return nil
	}
	f, err := parser.ParseBytes(d.src, 0)
	if err != nil {
		d.syntax(err)
		return nil
	}
	if len(f.Docs) > 1 && f.Docs[1].Body != nil {
		d.add(d.position(f.Docs[1].Body), "keep one spec a file", "a second document")
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil {
		d.add(d.at(1, 1), "begin with name: and version:", "the file is empty")
		return nil
	}
	return d.mapping(f.Docs[0].Body, "a spec")
}

func (d *document) syntax(err error) {
	var s *yaml.SyntaxError
	at, message := d.at(1, 1), err.Error()
	if errors.As(err, &s) {
		message = s.Message
		if s.Token != nil {
			at = d.at(s.Token.Position.Line, s.Token.Position.Column)
		}
	}
	wayOut := ""
	if strings.Contains(message, "mapping value is not allowed") {
		wayOut = `put the expression in quotes: ": " means a key and its value`
	}
	d.add(at, wayOut, "not YAML: %s", strings.TrimSpace(message))
}

func (d *document) position(n ast.Node) pos {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		n = m.Values[0].Key
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		n = m.Key
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return d.at(1, 1)
	}
	return d.at(t.Position.Line, t.Position.Column)
}

// mapping returns the entries of a mapping, in order, each key once.
func (d *document) mapping(n ast.Node, what string) []entry {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	case nil:
		return nil
	default:
		d.add(d.position(n), "", "%s is a mapping of names to values, and this is %s", what, describe(n))
		return nil
	}
	var out []entry
	seen := map[string]bool{}
	for _, v := range values {
		e := entry{key: v.Key.GetToken().Value, at: d.position(v.Key), value: v.Value}
		if seen[e.key] {
			d.add(e.at, "remove one", "%s stands twice", e.key)
			continue
		}
		seen[e.key] = true
		out = append(out, e)
	}
	return out
}

func describe(n ast.Node) string {
	switch n.Type() {
	case ast.NullType:
		return "nothing"
	case ast.SequenceType:
		return "a list"
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	case ast.AliasType, ast.AnchorType, ast.TagType, ast.MergeKeyType:
		return "an anchor, alias or tag; write the value out"
	}
	return "a " + strings.ToLower(n.Type().String())
}

// text reads a scalar as it is written.
func (d *document) text(n ast.Node, what string) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return strings.TrimRight(n.Value.Value, "\n")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value
	}
	d.add(d.position(n), "", "%s is a text, and this is %s", what, describe(n))
	return ""
}

// number reads a finite number.
func (d *document) number(n ast.Node, what string) float64 {
	switch v := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		x, err := strconv.ParseFloat(strings.ReplaceAll(n.GetToken().Value, "_", ""), 64)
		if err != nil {
			if i, ok := v.(*ast.IntegerNode); ok {
				return integer(i)
			}
		}
		if err == nil && !math.IsInf(x, 0) {
			return x
		}
	case *ast.NanNode, *ast.InfinityNode:
		d.add(d.position(n), "write a finite number", "%s is not finite", what)
		return 0
	case *ast.StringNode:
		x, err := strconv.ParseFloat(v.Value, 64)
		if err == nil && v.Token.Type == token.StringType && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x // 1e-3 has no point, and YAML 1.1 reads a text
		}
		if math.IsInf(x, 0) && err != nil {
			d.add(d.position(n), "write a finite number", "%s is beyond what a float64 holds", what)
			return 0
		}
		d.add(d.position(n), "", "%s is a number, and this is the text %q", what, v.Value)
		return 0
	}
	d.add(d.position(n), "", "%s is a finite number, and this is %s", what, describe(n))
	return 0
}

func integer(n *ast.IntegerNode) float64 {
	switch v := n.Value.(type) {
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	}
	return 0
}

// list returns the items of a list; a scalar is a list of one.
func (d *document) list(n ast.Node, what string) []ast.Node {
	switch n := n.(type) {
	case *ast.SequenceNode:
		return n.Values
	case *ast.MappingNode, *ast.MappingValueNode, *ast.NullNode:
		d.add(d.position(n), "", "%s is a list, and this is %s", what, describe(n))
		return nil
	}
	return []ast.Node{n}
}

// places maps each character of a scalar's value to its place in the file, so
// that a fault inside an expression points at the character that caused it.
func (d *document) places(n ast.Node, value string) []pos {
	at := d.position(n)
	src := []rune(strings.Join(d.in.lines[at.line-1:], "\n"))
	i, here := at.col-1, at
	step := func() {
		if src[i] == '\n' {
			here = d.at(here.line+1, 1)
		} else {
			here.col++
		}
		i++
	}
	if _, block := n.(*ast.LiteralNode); block {
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
