package outcome

import (
	"maps"
	"slices"

	"github.com/millrace/millrace"
)

// Course is how outcomes that name an answer came along: when they belonged to it, and
// when they could not. The zero value has none.
type Course struct {
	width millrace.Time // of a span; it doubles as time goes on
	spans map[millrace.Time]span
}

// span counts the outcomes of a time.
type span struct{ right, wrong int }

// maxSpans bounds the memory, and so how exactly it is known when something changed.
const maxSpans = 256

func (c *Course) add(at millrace.Time, wrong bool) {
	if c.spans == nil {
		c.width, c.spans = 1000, map[millrace.Time]span{}
	}
	k := at / c.width
	s := c.spans[k]
	if wrong {
		s.wrong++
	} else {
		s.right++
	}
	for c.spans[k] = s; len(c.spans) > maxSpans; {
		wider := map[millrace.Time]span{}
		for k, s := range c.spans {
			w := wider[k/2]
			wider[k/2] = span{w.right + s.right, w.wrong + s.wrong}
		}
		c.width, c.spans = 2*c.width, wider
	}
}

// Broken returns since when outcomes have been broken: wrong ones come, and are ten more than
// right ones since then. Where they are whole again, since right ones are ten more, it returns
// from when to when they were broken, in one or more stretches.
func (c *Course) Broken() (from, until millrace.Time, whole bool) {
	now, low, high := 0, 0, 0                      // how many more wrong ones there are, and at least and most in the stretch
	var lowEnd, highEnd, first, last millrace.Time // when it was so
	broken, ever := false, false
	for i, k := range slices.Sorted(maps.Keys(c.spans)) {
		if i == 0 {
			lowEnd, first, last = k*c.width, k*c.width, k*c.width
		}
		s := c.spans[k]
		now += s.wrong - s.right
		end := (k + 1) * c.width
		switch {
		case broken && now >= high:
			high, highEnd = now, end
		case broken && high-now >= strangeFrom:
			broken, low, lowEnd = false, now, end
		case !broken && now-low >= strangeFrom:
			if broken, high, highEnd, last = true, now, end, lowEnd; !ever {
				ever, first = true, lowEnd
			}
		case !broken && now <= low:
			low, lowEnd = now, end
		}
	}
	if ever && !broken {
		return first, highEnd, true
	}
	return last, 0, false
}
