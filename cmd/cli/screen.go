package cli

import (
	"io"
	"os"

	"github.com/millrace/millrace/internal/line"
)

// screen is a terminal that what others have written (ids, texts, names, reasons)
// cannot steer: characters that move the cursor, name the window or turn the
// direction of text are shown by their number.
type screen struct{ *os.File }

// onScreen returns a file as it is, or as a screen if it is a terminal.
func onScreen(f *os.File) io.Writer {
	if isTerminal(f) {
		return screen{f}
	}
	return f
}

// Write implements io.Writer.
func (s screen) Write(b []byte) (int, error) {
	if _, err := io.WriteString(s.File, harmless(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// harmless replaces characters that steer a terminal, but for the end of a line and
// the tabulator.
func harmless(text string) string { return line.Keep(text, "\n\t") }
