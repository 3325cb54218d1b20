package experiment

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/document"
)

// Rewrite returns the text of the document d, with another state and share of one experiment;
// name is the name of the experiment. src is the text that d was read from. Everything else
// stays as its author wrote it, with comments, unless the YAML is of a form that Rewrite cannot
// edit: then the result has no comments. The error is an [Error] if the new document is not
// valid.
func Rewrite(d Document, src []byte, name string, state State, share int) ([]byte, error) {
	i := slices.IndexFunc(d.Experiments, func(e Experiment) bool { return e.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("experiment: document %s has no experiment %s", d.Name, name)
	}
	want := d
	want.Experiments = slices.Clone(d.Experiments)
	want.Experiments[i].State, want.Experiments[i].Share = state, share
	f := &faults{name: d.Name, root: d.root}
	if want.check(f); f.orNil() != nil {
		return nil, f.orNil()
	}
	next := rewritten(src, child(child(d.root, "experiments"), fmt.Sprintf("[%d", i)), state, share)
	if got, err := Parse(d.Name, next); err == nil && reflect.DeepEqual(got.Layers, want.Layers) && reflect.DeepEqual(got.Experiments, want.Experiments) {
		return next, nil
	}
	return want.Encode() // the YAML has an unusual form, and loses its comments
}

// rewritten returns src with another state and share in the mapping e of an experiment; src
// itself if it cannot.
func rewritten(src []byte, e *document.Node, state State, share int) []byte {
	if e == nil {
		return src
	}
	stateAt, shareAt := child(e, "state"), child(e, "share")
	if stateAt == nil {
		return src
	}
	text := string(state)
	if shareAt == nil && share > 0 {
		sep := "\n" + string(bytes.Repeat([]byte{' '}, e.Entries[0].Col-1))
		if at := offset(src, e.Line, e.Col); at < len(src) && src[at] == '{' {
			sep = ", "
		}
		text += sep + fmt.Sprintf("share: %d", share)
	}
	edits := []scalarEdit{{stateAt, text}}
	if shareAt != nil {
		edits = append(edits, scalarEdit{shareAt, fmt.Sprint(share)})
	}
	slices.SortFunc(edits, func(a, b scalarEdit) int { // the last edit first, so that the offsets of the others stay right
		return slices.Compare([]int{b.at.Line, b.at.Col}, []int{a.at.Line, a.at.Col})
	})
	for _, x := range edits {
		src = x.apply(src)
	}
	return src
}

// scalarEdit replaces a scalar by a text.
type scalarEdit struct {
	at   *document.Node
	text string
}

func (x scalarEdit) apply(src []byte) []byte {
	from := offset(src, x.at.Line, x.at.Col)
	n := len(x.at.Text)
	if x.at.Quoted {
		n += 2
	}
	return slices.Concat(src[:from], []byte(x.text), src[min(from+n, len(src)):])
}

// offset returns the offset in bytes of a line and a column in src. Both count from 1, and the
// column counts characters. Beyond the end it returns len(src).
func offset(src []byte, line, col int) (at int) {
	for ; line > 1; line-- {
		end := bytes.IndexByte(src[at:], '\n')
		if end < 0 {
			return len(src)
		}
		at += end + 1
	}
	for ; col > 1 && at < len(src); col-- {
		_, n := utf8.DecodeRune(src[at:])
		at += n
	}
	return at
}
