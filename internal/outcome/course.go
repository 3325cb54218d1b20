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

// Worst returns the time in which wrong outcomes outweighed right ones most. Whole reports
// whether what came after it is enough to say that this is over.
func (c *Course) Worst() (from, until millrace.Time, whole bool) {
	now, most, least, right := 0, 0, 0, 0
	begins := millrace.Time(0)
	for i, k := range slices.Sorted(maps.Keys(c.spans)) {
		s := c.spans[k]
		if i == 0 || now < least {
			least, begins = now, k*c.width
		}
		now += s.wrong - s.right
		right += s.right
		if now-least >= most && s.wrong > 0 {
			most, right = now-least, 0
			from, until = begins, (k+1)*c.width
		}
	}
	return from, until, most > 0 && right >= strangeFrom
}
