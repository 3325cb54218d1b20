package display

import (
	"os"
	"testing"
)

// What records, names and reasons hold steers no terminal.
func TestHarmless(t *testing.T) {
	for text, want := range map[string]string{
		"plain, ünï, 日本\n\tnext":              "plain, ünï, 日本\n\tnext",
		"\x1b[31mred\x1b]0;title\x07\r":       `\u001b[31mred\u001b]0;title\u0007\u000d`,
		"\x7f\u0085\u202eevil\u2066\u200fend": `\u007f\u0085\u202eevil\u2066\u200fend`,
	} {
		if got := harmless(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

// On a screen it is shown so; a file has it as it is, for programs.
func TestOnScreen(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if OnScreen(f) != f {
		t.Error("a file is taken for a terminal")
	}
	if n, err := (Screen{f}).Write([]byte("a\x1bb")); n != 3 || err != nil {
		t.Error(n, err)
	}
	if text, err := os.ReadFile(f.Name()); err != nil || string(text) != `a\u001bb` {
		t.Errorf("%q, %v", text, err)
	}
}
