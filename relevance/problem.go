package relevance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
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

// maxKnown is how many names a suggestion is looked for among.
const maxKnown = 256

// nearest suggests the known name that a wrong one was probably meant to be,
// or lists the known ones.
func nearest(name string, known []string) string {
	best, distance := "", utf8.RuneCountInString(name)/3+1
	for _, k := range known[:min(len(known), maxKnown)] {
		if d := editDistance(name, k); d <= distance {
			if d < distance || best == "" {
				best, distance = k, d
			}
		}
	}
	switch {
	case best != "":
		return "did you mean " + best + "?"
	case len(known) == 0:
		return ""
	case len(known) > 12:
		return "known are " + strings.Join(known[:12], ", ") + " and more"
	}
	return "known are " + strings.Join(known, ", ")
}

// maxCompared is up to how many characters names are compared.
const maxCompared = 64

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours that make b of a.
func editDistance(a, b string) int {
	n, m := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	if n > maxCompared || m > maxCompared {
		return max(n, m)
	}
	x, y := []rune(a), []rune(b)
	var rows [3][maxCompared + 1]int // of the character before the last, of the last, of this one
	for j := range m + 1 {
		rows[1][j] = j
	}
	for i := 1; i <= n; i++ {
		before, last, row := &rows[(i-1)%3], &rows[i%3], &rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= m; j++ {
			swap := 1
			if x[i-1] == y[j-1] {
				swap = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+swap)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return rows[(n+1)%3][m]
}
