package display

import (
	"io"
	"os"

	"github.com/millrace/millrace/internal/line"
)

// Screen is a terminal that ids, texts, names and reasons of others cannot steer. It
// shows the number of a character that moves the cursor, names the window or turns the
// direction of text.
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

// harmless replaces characters that steer a terminal by their numbers. Ends of lines and
// tabulators stay.
func harmless(text string) string { return line.Keep(text, "\n\t") }

// IsTerminal reports whether w is a character device, so that somebody may read along.
// /dev/null is one, too.
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
