package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/document"
)

// Error is all faults of documents, in the order of the documents. A caller that must go on
// without the documents at fault leaves out those named here, and compiles the others again.
type Error struct {
	Documents []Faulty // at least one
}

// Faulty is a document with faults. Each has its line, column and field, what is wrong, and the
// way out.
type Faulty struct {
	Name string // of the document; "": it has none
	*document.Error
}

// Error returns a line for each fault, which begins with the name of its document.
func (e *Error) Error() string {
	var lines []string
	for _, d := range e.Documents {
		for line := range strings.SplitSeq(d.Error.Error(), "\n") {
			if d.Name != "" {
				line = d.Name + ": " + line
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// maxFaults is how many faults are kept of a document.
const maxFaults = 20

// faults collects what is wrong with one document.
type faults struct {
	name string
	root *document.Node
	all  []document.Fault
}

// addf adds a fault of the field at path, such as experiments[0].variants[1].
func (f *faults) addf(path, wayOut, format string, args ...any) {
	if len(f.all) < maxFaults {
		line, col := placeOf(f.root, path)
		f.all = append(f.all, document.Fault{Line: line, Col: col, Field: path, Detail: fmt.Sprintf(format, args...), WayOut: wayOut})
	}
}

func (f *faults) full() bool { return len(f.all) >= maxFaults }

// take adds the faults of an error of package document, or the error as one fault.
func (f *faults) take(err error) {
	var e *document.Error
	if errors.As(err, &e) {
		f.all = append(f.all, e.Faults...)
		return
	}
	f.addf("", "", "%v", err)
}

func (f *faults) orNil() error {
	if len(f.all) == 0 {
		return nil
	}
	return &Error{[]Faulty{{f.name, f.error()}}}
}

func (f *faults) error() *document.Error {
	slices.SortStableFunc(f.all, func(a, b document.Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return &document.Error{Faults: f.all}
}

// placeOf returns the line and column where the value at path begins in n. If the document does
// not have all of path, it returns where the last part begins that the document has; 1, 1 if n
// is nil.
func placeOf(n *document.Node, path string) (line, col int) {
	line, col = 1, 1
	for n != nil {
		line, col = n.Line, n.Col
		if path == "" {
			break
		}
		var step string
		step, path = cutStep(path)
		n = child(n, step)
	}
	return line, col
}

// cutStep cuts "a" or "[0]" off a path such as a[0].b.
func cutStep(path string) (step, rest string) {
	path = strings.TrimPrefix(path, ".")
	for i := range len(path) {
		if i > 0 && (path[i] == '.' || path[i] == '[') {
			return path[:i], path[i:]
		}
	}
	return path, ""
}

func child(n *document.Node, step string) *document.Node {
	if at, ok := strings.CutPrefix(step, "["); ok {
		i, err := strconv.Atoi(strings.TrimSuffix(at, "]"))
		if err != nil || i >= len(n.Items) {
			return nil
		}
		return n.Items[i]
	}
	for _, e := range n.Entries {
		if e.Key == step {
			return e.Value
		}
	}
	return nil
}
