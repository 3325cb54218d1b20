package expr

import (
	"fmt"
	"strings"
)

// Problem is one fault of an expression.
type Problem struct {
	Line, Col  int    // from 1; Col in characters
	Message    string // what is wrong
	Suggestion string // what to do about it, or empty
}

func (p Problem) String() string {
	s := fmt.Sprintf("%d:%d: %s", p.Line, p.Col, p.Message)
	if p.Suggestion != "" {
		s += "; " + p.Suggestion
	}
	return s
}

// Error has every fault of an expression, up to maxProblems, in the order of the source.
type Error struct {
	Source   string    // the expression, without bytes that are not UTF-8
	Problems []Problem // at least one
}

// Error renders each problem with its line of the source and a caret:
//
//	1:8: no field lang in record; did you mean language?
//	  record.lang == "en"
//	         ^
func (e *Error) Error() string {
	lines := strings.Split(e.Source, "\n")
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.String())
		if p.Line >= 1 && p.Line <= len(lines) {
			writeCaret(&b, lines[p.Line-1], p.Col)
		}
	}
	return b.String()
}

// caretWidth is how many characters of a long line are shown before the caret, and after
// it.
const caretWidth = 60

func writeCaret(b *strings.Builder, line string, col int) {
	runes := []rune(strings.ToValidUTF8(strings.TrimSuffix(line, "\r"), "\uFFFD"))
	at := min(max(col-1, 0), len(runes))
	from, to := max(0, at-caretWidth), min(len(runes), at+caretWidth)
	b.WriteString("\n  ")
	for _, r := range runes[from:to] {
		if r < ' ' {
			r = ' '
		}
		b.WriteRune(r)
	}
	b.WriteString("\n  ")
	b.WriteString(strings.Repeat(" ", at-from))
	b.WriteByte('^')
}
