package display

import (
	"io"
	"os"

	"github.com/millrace/millrace/internal/line"
)

// Screen is a terminal that what others have written (ids, texts, names, reasons)
// cannot steer: characters that move the cursor, name the window or turn the
// direction of text are shown by their number.
type Screen struct{ *os.File }

// OnScreen returns a file as it is, or as a screen if it is a terminal.
func OnScreen(f *os.File) io.Writer {
	if IsTerminal(f) {
		return Screen{f}
	}
	return f
}

// Write implements io.Writer.
func (s Screen) Write(b []byte) (int, error) {
	if _, err := io.WriteString(s.File, harmless(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// harmless replaces characters that steer a terminal, but for the end of a line and
// the tabulator.
func harmless(text string) string { return line.Keep(text, "\n\t") }

// IsTerminal reports whether somebody reads along.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if s, is := w.(Screen); is {
		f, ok = s.File, true
	}
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
