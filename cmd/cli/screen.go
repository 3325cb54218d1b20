package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
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
func harmless(text string) string {
	steers := func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
	}
	if strings.IndexFunc(text, steers) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if steers(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if s, is := w.(screen); is {
		f, ok = s.File, true
	}
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
