package relevance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/hint"
)

// Problem is one fault of a spec.
type Problem struct {
	File       string
	Line, Col  int // from 1; Col in characters
	Message    string
	Suggestion string // the way out, or empty
	text       string // the line
}

// SpecError is every fault of a spec at once, in the order of the file.
type SpecError struct {
	Problems []Problem
}

// Error renders each fault with its line and a caret:
//
//	home.yaml:9:16: no field liks in record
//	   9 |   likes: log1p(record.liks)
//	     |                       ^ did you mean likes?
func (e *SpecError) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		p.write(&b)
	}
	return b.String()
}

// shownColumns is how much of a line a rendering shows on either side of the
// caret.
const shownColumns = 70

func (p *Problem) write(b *strings.Builder) {
	fmt.Fprintf(b, "%s:%d:%d: %s", p.File, p.Line, p.Col, p.Message)
	at := max(p.Col-1, 0)
	from, i := max(0, at-shownColumns), 0
	var shown strings.Builder
	for _, r := range p.text { // not []rune: a line may be the whole file
		if i >= at+shownColumns {
			break
		}
		if i >= from {
			shown.WriteRune(max(r, ' '))
		}
		i++
	}
	fmt.Fprintf(b, "\n%5d | %s\n      | %s^", p.Line, shown.String(), strings.Repeat(" ", max(0, min(at, i)-from)))
	if p.Suggestion != "" {
		b.WriteString(" " + p.Suggestion)
	}
}

// problems collects the faults of a spec and the files it names.
type problems struct {
	list []Problem
}

// source is a file that faults are found in.
type source struct {
	name  string
	lines []string
}

func newSource(name string, src []byte) *source {
	return &source{name: name, lines: strings.Split(string(src), "\n")}
}

// maxProblems bounds what a [SpecError] tells: finding each costs more than
// reading what is right.
const maxProblems = 100

// tooMany ends the reading of a spec that has more faults than are told.
type tooMany struct{}

func (p *problems) add(at pos, suggestion, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.list = append(p.list, Problem{at.in.name, at.line, at.col, "there are more faults from here on", "mend those before", ""})
		panic(tooMany{})
	}
	text := ""
	if at.line >= 1 && at.line <= len(at.in.lines) {
		text = strings.TrimRight(at.in.lines[at.line-1], "\r")
	}
	p.list = append(p.list, Problem{at.in.name, at.line, at.col, fmt.Sprintf(format, args...), suggestion, text})
}

// err returns the faults, file by file in their order, or nil.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	files := map[string]int{}
	for _, x := range p.list {
		if _, ok := files[x.File]; !ok {
			files[x.File] = len(files)
		}
	}
	slices.SortStableFunc(p.list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(files[a.File], files[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return &SpecError{p.list}
}

// pos is a place in a file; both from 1, col in characters.
type pos struct {
	in        *source
	line, col int
}

// nearest suggests the known name that a wrong one was probably meant to be.
func nearest(name string, known []string) string { return hint.Nearest(name, known) }
