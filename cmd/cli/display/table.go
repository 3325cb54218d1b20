package display

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/millrace/millrace/internal/line"
)

// Table is a table of text, whose cells are aligned. It is no io.Writer: everything that
// is written to it passes [Printf], so that no name, id or reason that somebody else has
// chosen begins a line or a cell of its own, or steers a terminal.
type Table struct{ w *tabwriter.Writer }

// NewTable returns an empty table, which Flush writes to w.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// Printf adds cells. Only the format can end a cell, by a tabulator, or a line.
func (t *Table) Printf(format string, args ...any) { Printf(t.w, format, args...) }

// Flush writes the lines that have been added since the last Flush.
func (t *Table) Flush() error { return t.w.Flush() }

// Cells are several cells with tabulators between them. Their texts must be harmless, as
// numbers are: [Printf] writes them as they are.
type Cells string

// Printf is [fmt.Fprintf], but in the text of an argument it shows the number of each
// character that ends a line or a cell or steers a terminal. Arguments that are [Cells]
// stay as they are. It returns no error: w is a writer that keeps the error, such as the
// one in a Table, or one whose errors do not matter.
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
