package filter

import (
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// allSame says the same of every row: it is the tester of a constant, such as a flag of
// the viewer, or a field that the layout does not have. Each word has all bits or none.
type allSame struct{ hit, unfit, failed uint64 }

func (k allSame) test(_ *column.Slab, lo, hi int, v *verdict) {
	for i := range (hi - lo + 63) / 64 {
		v.hit[i], v.unfit[i], v.failed[i] = k.hit, k.unfit, k.failed
	}
}

func fastConstant(c *constant) tester {
	switch {
	case c.state == failed:
		return allSame{failed: ^uint64(0)}
	case c.state != present:
		return allSame{unfit: ^uint64(0)}
	}
	return allSame{hit: -c.word}
}

// isNull finds the values of a column that are not null, or with loop.outside the nulls.
type isNull struct{ loop }

// fastNull returns the tester of f == null, or with outside that of f != null.
func fastNull(f *field, outside bool) tester {
	return &isNull{loop{index: f.index, nullable: f.nullable, outside: !outside}}
}

func (k *isNull) test(s *column.Slab, lo, hi int, v *verdict) {
	for i := range (hi - lo + 63) / 64 {
		v.hit[i] = ^uint64(0) // finish clears the nulls
	}
	k.finish(s, lo, hi, v)
}

// notOf is !a.
type notOf struct{ a tester }

func (k notOf) test(s *column.Slab, lo, hi int, v *verdict) {
	k.a.test(s, lo, hi, v)
	for i := range (hi - lo + 63) / 64 {
		v.hit[i] = ^(v.hit[i] | v.unfit[i] | v.failed[i])
		v.nan[i] = 0
	}
}

// combined is && or || of testers. An argument decides a row of && if it is false, and a
// row of || if it is true. A row that no argument decides is true for && and false for ||
// if all arguments have a value, and otherwise has the first error.
type combined struct {
	args    []tester
	or      bool
	scratch verdict
}

// fastJunction returns the tester of && or ||, or nil if an argument has none.
func fastJunction(j *junction) tester {
	k := &combined{or: j.decides == 1}
	for _, a := range j.args {
		t := fast(a)
		if t == nil || a.kind() != expr.Bool {
			return nil
		}
		k.args = append(k.args, t)
	}
	return k
}

func (k *combined) test(s *column.Slab, lo, hi int, v *verdict) {
	n := (hi - lo + 63) / 64
	var decided compute.Mask
	for i := range n {
		v.hit[i], v.unfit[i], v.failed[i] = ^uint64(0), 0, 0
		k.scratch.asked[i] = v.asked[i]
	}
	for _, t := range k.args {
		t.test(s, lo, hi, &k.scratch)
		for i := range n {
			hit, unfit, failed := k.scratch.hit[i], k.scratch.unfit[i], k.scratch.failed[i]
			decides := ^(hit | unfit | failed)
			if k.or {
				hit, decides = decides, hit
			}
			v.hit[i] &= hit
			decided[i] |= decides
			k.scratch.asked[i] &^= decides
			wasUnfit := v.unfit[i]
			v.unfit[i] |= unfit &^ v.failed[i]
			v.failed[i] |= failed &^ wasUnfit
			k.scratch.unfit[i], k.scratch.failed[i], k.scratch.nan[i] = 0, 0, 0
		}
	}
	for i := range n {
		v.unfit[i] &^= decided[i]
		v.failed[i] &^= decided[i]
		if k.or {
			v.hit[i] = decided[i]
		}
	}
}
