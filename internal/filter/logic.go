package filter

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/expr"
)

// not is !a.
type not struct {
	out
	a kernel
}

func (k *not) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.a.eval(b)
	for i := range b.sel {
		k.words[i], k.states[i] = v.words[i]^1, asBool(v.states[i])
	}
	return &k.vector
}

// asBool returns the state of an operand that must be a bool: a null is unfit.
func asBool(s state) state {
	if s == null {
		return unfit
	}
	return s
}

// junction is && and ||. A row has the deciding value if any argument has it, else the
// first error if any argument has one, else the other value.
type junction struct {
	out
	decides uint64 // the word that decides: 0 for &&, 1 for ||
	args    []kernel
}

func (k *junction) eval(b *batch) *vector {
	n := len(b.sel)
	k.begin(n)
	fill(k.words, k.decides^1)
	for _, a := range k.args {
		v := a.eval(b)
		misfit := a.kind() != expr.Bool
		for i := range n {
			s := asBool(v.states[i])
			if misfit && s == present {
				s = unfit
			}
			switch {
			case k.states[i] == present && k.words[i] == k.decides:
			case s == present && v.words[i] == k.decides:
				k.words[i], k.states[i] = k.decides, present
			case s != present && k.states[i] == present:
				k.states[i] = s
			}
		}
	}
	return &k.vector
}

// cond is test ? yes : no. The branches have one type, or are null.
type cond struct {
	out
	test, yes, no kernel
}

func (k *cond) eval(b *batch) *vector {
	n := len(b.sel)
	k.begin(n)
	test, yes, no := k.test.eval(b), k.yes.eval(b), k.no.eval(b)
	for i := range n {
		from, branch := no, k.no
		if test.words[i] != 0 {
			from, branch = yes, k.yes
		}
		if s := asBool(test.states[i]); s != present {
			k.states[i] = s
			continue
		}
		k.words[i], k.states[i] = from.words[i], from.states[i]
		if k.typ == expr.String && branch.kind() == expr.String {
			k.strings[i] = from.strings[i]
		}
	}
	return &k.vector
}

// has is has(a): a is not null.
type has struct {
	out
	a kernel
}

func (k *has) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.a.eval(b)
	for i := range b.sel {
		k.words[i] = compute.Bit(v.states[i] != null)
	}
	return &k.vector
}
