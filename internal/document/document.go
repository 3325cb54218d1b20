// Package document reads what people and other processes write in YAML, of which JSON is
// a part. It keeps to bounds before it trusts any of it: it counts bytes, depth and
// values, and nothing in a document may refer to something else. It is the only package
// that knows a YAML library.
//
// YAML is read without anchors, aliases, merge keys and tags: a few hundred
// bytes of aliases stand for billions of values. Without them, what a document
// costs to read is a small multiple of its bytes.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The bounds of a document in YAML. The largest one takes less than 64 MiB and
// 100 ms to read or to refuse.
const (
	MaxBytes  = 512 << 10
	MaxDepth  = 32      // how deep lists and mappings may stand in one another
	MaxValues = 1 << 15 // scalars, lists and mappings, keys included
	maxMarks  = 1 << 16 // see marks; they are counted before the library reads anything
)

// Kind is what a value is.
type Kind uint8

// The kinds of values.
const (
	Null Kind = iota
	Bool
	Int
	Float
	String
	List
	Mapping
)

func (k Kind) String() string {
	return [...]string{"nothing", "a boolean", "an integer", "a number", "a text", "a list", "a mapping"}[k]
}

// Node is a value of a document, and where it begins: Line and Col count from
// 1, Col in characters.
type Node struct {
	Kind      Kind
	Line, Col int
	Text      string  // of a scalar, without quotes
	Quoted    bool    // it is a text in ' or "
	Block     bool    // it is a text after | or >
	Items     []*Node // of a list
	Entries   []Entry // of a mapping, in order; a key may stand twice
}

// Entry is a key of a mapping and its value.
type Entry struct {
	Key       string
	Line, Col int // of the key
	Value     *Node
}

// Find returns where a field stands, by its path in the form of [Fault.Field]. If it is
// not there, Find returns where the last part of the path is that is there; if there is
// none, line and column 1. n may be nil.
func (n *Node) Find(path string) (line, col int) {
	line, col = 1, 1
	for n != nil {
		next := (*Node)(nil)
		for _, e := range n.Entries {
			rest, ok := strings.CutPrefix(path, e.Key)
			if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				line, col, next, path = e.Line, e.Col, e.Value, strings.TrimPrefix(rest, ".")
				break
			}
		}
		if number, rest, ok := strings.Cut(path, "]"); ok && n.Kind == List {
			if i, err := strconv.Atoi(strings.TrimPrefix(number, "[")); err == nil && i >= 0 && i < len(n.Items) {
				next, path = n.Items[i], strings.TrimPrefix(rest, ".")
				line, col = next.Line, next.Col
			}
		}
		n = next
	}
	return line, col
}

// Fault is one thing that is wrong with a document.
type Fault struct {
	Line, Col int
	Field     string // such as "spacing.entity"; empty: the document
	Detail    string
	WayOut    string // what to write instead; may be empty
}

// Error is the error of a document: its faults as far as they could be found, the first
// maxFaults in the order in which they were found.
type Error struct {
	Faults []Fault
}

// Error renders the faults, one a line:
//
//	line 3, column 1: windw: there is no such field; did you mean window?
func (e *Error) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "line %d, column %d: ", f.Line, f.Col)
		if f.Field != "" {
			b.WriteString(f.Field + ": ")
		}
		b.WriteString(f.Detail)
		if f.WayOut != "" {
			b.WriteString("; " + f.WayOut)
		}
	}
	return b.String()
}

// maxFaults bounds the faults of an [Error]; further ones are dropped.
const maxFaults = 20

func (e *Error) add(line, col int, field, detail, wayOut string) {
	if len(e.Faults) < maxFaults {
		e.Faults = append(e.Faults, Fault{line, col, field, detail, wayOut})
	}
}

func (e *Error) orNil() error {
	if len(e.Faults) == 0 {
		return nil
	}
	return e
}

// ReadFile reads a file for [Parse] or [Decode]. It reads at most MaxBytes and one byte
// more, by which these see that a file is too large.
func ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxBytes+1))
}

// Parse reads the one document of a file in YAML. It returns nil for a file without a
// document. The error is an [Error]: of a file that is no YAML, is beyond the bounds, has
// a second document, or has an anchor, an alias, a merge key or a tag.
func Parse(src []byte) (n *Node, err error) {
	faults := &Error{}
	if len(src) > MaxBytes {
		faults.add(1, 1, "", fmt.Sprintf("the file has more than %d bytes", MaxBytes), "split it, or leave out what it repeats")
		return nil, faults
	}
	if marks(src) > maxMarks {
		faults.add(1, 1, "", fmt.Sprintf("the file has more than %d line ends, commas, colons, dashes and brackets", maxMarks), "leave some values out")
		return nil, faults
	}
	defer func() {
		if r := recover(); r != nil { // the library may panic, and a role that serves must not end by a document
			faults.add(1, 1, "", fmt.Sprintf("not YAML: %v", r), "")
			n, err = nil, faults
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(src))
	var first, second yaml.Node
	if err := d.Decode(&first); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntax(src, err)
	}
	for more := true; more; {
		switch err := d.Decode(&second); {
		case errors.Is(err, io.EOF):
			more = false
		case err != nil:
			return nil, syntax(src, err)
		case second.Content[0].Tag != "!!null": // an empty second document does no harm
			faults.add(second.Content[0].Line, second.Content[0].Column, "", "a second document", "keep one document in a file")
			more = false
		}
	}
	r := reader{faults: faults}
	n = r.node(first.Content[0], 1)
	if err := faults.orNil(); err != nil {
		return nil, err
	}
	return n, nil
}

// marks counts the characters that separate values: line ends, commas, colons, opening
// brackets, dashes and question marks. A document has at most one value more than it has
// marks.
func marks(src []byte) (n int) {
	for _, c := range src {
		switch c {
		case '\n', '\r', ',', ':', '[', '{', '-', '?':
			n++
		}
	}
	return n
}

// syntaxLine matches an error of the library, which names the line where a document is
// wrong.
var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)

// syntax makes an [Error] of an error of the library, which names only the line.
func syntax(src []byte, err error) error {
	m := syntaxLine.FindStringSubmatch(err.Error())
	if m == nil {
		m = []string{"", "", err.Error()}
	}
	line, _ := strconv.Atoi(m[1])
	lines := strings.Split(string(src), "\n")
	if strings.HasPrefix(m[2], "did not find expected") {
		line = breaksOff(lines, line+1, m[2]) // such errors count lines from 0, and name the line where the list or map around the fault begins
	}
	line = min(max(line, 1), len(lines))
	text := lines[line-1]
	at := len(text) - len(strings.TrimLeft(text, " "))
	wayOut := ""
	if strings.Contains(m[2], "mapping values are not allowed") {
		if _, rest, ok := strings.Cut(text, ": "); ok {
			at = len(text) - len(strings.TrimLeft(rest, " "))
		}
		wayOut = `put the text in quotes: ": " means a key and its value`
	}
	if strings.HasPrefix(strings.TrimLeft(text, " "), "\t") {
		wayOut = "indent by spaces: YAML takes no tabs there"
	}
	return &Error{[]Fault{{line, len([]rune(text[:at])) + 1, "", "not YAML: " + m[2], wayOut}}}
}

// breaksOff returns the line of a fault for which the library names the line (begins) of
// the list or map around it: the document up to that line is the shortest with the fault.
func breaksOff(lines []string, begins int, message string) int {
	has := func(n int) bool {
		var root yaml.Node
		err := yaml.Unmarshal([]byte(strings.Join(lines[:n], "\n")+"\n"), &root)
		return err != nil && strings.HasSuffix(err.Error(), message)
	}
	begins = min(max(begins, 1), len(lines))
	at := begins + sort.Search(len(lines)-begins, func(i int) bool { return has(begins + i) })
	if !has(at) { // no part of the document has this fault
		return begins
	}
	return at
}

// reader turns the library's nodes into Nodes, and counts them.
type reader struct {
	faults *Error
	values int
	full   bool // beyond a bound: the rest is not read
}

func (r *reader) fault(n *yaml.Node, detail, wayOut string) {
	r.faults.add(n.Line, n.Column, "", detail, wayOut)
}

// node reads a value at a depth; the depth of the document itself is 1.
func (r *reader) node(n *yaml.Node, depth int) *Node {
	out := &Node{Line: n.Line, Col: n.Column}
	if r.values++; r.values > MaxValues || depth > MaxDepth {
		r.beyond(n, depth)
		return out
	}
	r.standsForItself(n)
	switch n.Kind {
	case yaml.ScalarNode:
		r.scalar(n, out)
	case yaml.SequenceNode:
		out.Kind = List
		for i := 0; i < len(n.Content) && !r.full; i++ {
			out.Items = append(out.Items, r.node(n.Content[i], depth+1))
		}
	case yaml.MappingNode:
		out.Kind = Mapping
		for i := 0; i+1 < len(n.Content) && !r.full; i += 2 {
			key := n.Content[i]
			r.values++
			r.standsForItself(key)
			if key.Kind != yaml.ScalarNode && key.Kind != yaml.AliasNode {
				r.fault(key, "a key is a list or a mapping", "write a text")
				continue
			}
			out.Entries = append(out.Entries, Entry{key.Value, key.Line, key.Column, r.node(n.Content[i+1], depth+1)})
		}
	}
	return out
}

func (r *reader) beyond(n *yaml.Node, depth int) {
	if r.full {
		return
	}
	r.full = true
	if depth > MaxDepth {
		r.fault(n, fmt.Sprintf("lists and mappings stand more than %d deep in one another", MaxDepth), "make it flatter")
		return
	}
	r.fault(n, fmt.Sprintf("there are more than %d values", MaxValues), "leave some out")
}

// standsForItself adds a fault for a node that refers to something else or changes its
// meaning: an alias, an anchor, a merge key or a tag.
func (r *reader) standsForItself(n *yaml.Node) {
	switch {
	case n.Kind == yaml.AliasNode:
		r.fault(n, "the alias *"+n.Value, "write the value out")
	case n.Anchor != "":
		r.fault(n, "the anchor &"+n.Anchor, "remove it, and write the value out where it is used")
	case n.Tag == "!!merge":
		r.fault(n, "the merge key <<", "write the values out")
	case n.Style&yaml.TaggedStyle != 0:
		r.fault(n, "the tag "+n.Tag, "remove it; a field knows its type")
	}
}

func (r *reader) scalar(n *yaml.Node, out *Node) {
	out.Text = n.Value
	out.Quoted = n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	out.Block = n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0
	switch n.Tag {
	case "!!null":
		out.Kind = Null
	case "!!bool":
		out.Kind = Bool
	case "!!int":
		out.Kind = Int
	case "!!float":
		out.Kind = Float
	default: // times are texts here
		out.Kind = String
		if _, err := strconv.ParseFloat(n.Value, 64); n.Style == 0 && errors.Is(err, strconv.ErrRange) {
			out.Kind = Float // a number that is too large for a float64, which the library takes for a text
		}
	}
}
