package line

import (
	"strings"
	"testing"
)

// What others write stays in its line and steers nothing; what is written anew must
// be such a text.
func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"plain, ünï, 日本":                     "plain, ünï, 日本",
		"x\x1b[2J\x1b[31m red\nWHEN  forged": `x\u001b[2J\u001b[31m red\u000aWHEN  forged`,
		"8 bits \x9b2J":                      "8 bits \ufffd2J",
		"a\tb\r\x7f\u0085\u202e\u2066\u2028": `a\u0009b\u000d\u007f\u0085\u202e\u2066\u2028`,
	} {
		if got := Of(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
		if err := Check("why", text); (err == nil) != (text == want) || err != nil && !strings.Contains(err.Error(), "why: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got := Keep("a\tb\x1b\n", "\n\t"); got != "a\tb\\u001b\n" {
		t.Errorf("%q", got)
	}
}
