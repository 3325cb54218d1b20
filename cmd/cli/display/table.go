package display

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/line"
)

// Table is lines of cells that stand below each other. It is no io.Writer: all that
// is written to it passes [Printf], so that no name, id or reason that somebody else
// has chosen begins a line or a cell of its own, or steers a terminal.
type Table struct{ w *tabwriter.Writer }

// NewTable begins a table, which Flush writes.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Printf writes lines of which the format has the tabulators and the ends.
func (t *Table) Printf(format string, args ...any) { Printf(t.w, format, args...) }

// Flush writes what there is.
func (t *Table) Flush() error { return t.w.Flush() }

// Cells are several, with the tabulators between them, whose texts have been shown
// to be harmless, such as numbers.
type Cells string

// Printf is fmt.Fprintf that shows of what arguments say, but for [Cells], the characters
// by their number that end a line or cell or steer a terminal. Where it is written to
// says by its own what fails.
func Printf(w io.Writer, format string, args ...any) {
	safe := make([]any, len(args))
	for i, x := range args {
		if safe[i] = (within{x}); isCells(x) {
			safe[i] = x
		}
	}
	fmt.Fprintf(w, format, safe...)
}

func isCells(x any) bool { _, is := x.(Cells); return is }

// within is an argument that stays within its line, whatever verb it is for.
type within struct{ of any }

// Format implements fmt.Formatter.
func (x within) Format(s fmt.State, verb rune) {
	_, _ = io.WriteString(s, line.Of(fmt.Sprintf(fmt.FormatString(s, verb), x.of)))
}
