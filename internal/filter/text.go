package filter

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/search"
)

// text is startsWith, endsWith, contains.
type text struct {
	out
	a, b  kernel
	test  func(s, part string) bool
	watch *watch
}

// searched is how many bytes a plain search looks through in the time that a regular
// expression takes for one.
const searched = 16

// textTests are the tests by the name of their CEL function.
var textTests = map[string]func(s, part string) bool{
	"startsWith": strings.HasPrefix,
	"endsWith":   strings.HasSuffix,
	"contains":   search.Contains,
}

func (k *text) eval(b *batch) *vector {
	k.begin(len(b.sel))
	l, r := k.a.eval(b), k.b.eval(b)
	for i := range b.sel {
		if ls, rs := l.states[i], r.states[i]; ls|rs != present {
			k.states[i] = firstError(ls, rs)
			continue
		}
		if k.watch.over(1 + len(l.strings[i])/searched) {
			k.states[i] = failed
			continue
		}
		k.words[i] = compute.Bit(k.test(l.strings[i], r.strings[i]))
	}
	return &k.vector
}

// matches is s.matches(pattern).
type matches struct {
	out
	a       kernel
	pattern *regexp.Regexp
	watch   *watch
}

func (k *matches) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.a.eval(b)
	for i := range b.sel {
		if s := v.states[i]; s != present {
			k.states[i] = firstError(s, present)
			continue
		}
		if k.watch.over(len(v.strings[i])) {
			k.states[i] = failed
			continue
		}
		k.words[i] = compute.Bit(k.pattern.MatchString(v.strings[i]))
	}
	return &k.vector
}

// textSize is size(string): the number of its code points.
type textSize struct {
	out
	a kernel
}

func (k *textSize) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.a.eval(b)
	for i := range b.sel {
		if s := v.states[i]; s != present {
			k.states[i] = firstError(s, present)
			continue
		}
		k.words[i] = uint64(utf8.RuneCountInString(v.strings[i]))
	}
	return &k.vector
}
