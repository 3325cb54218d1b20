package outcome

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
)

// Course counts outcomes over time: right ones, which belong to an answer, and wrong ones,
// which name an answer to which they cannot belong. From it, [Course.Broken] tells when the
// program that writes outcomes was broken. The zero value has no outcomes.
//
// The counts are kept by spans of time. If there are too many spans, neighbours are joined
// unless one has more right ones and the other more wrong ones. If that is not enough, the
// spans where the two numbers differ least are joined with their neighbours. So it stays
// known exactly from when to when outcomes were broken, even after a year.
type Course struct {
	spans  []span        // in the order of time, of whole seconds; none overlaps another
	newest millrace.Time // see Newest
}

// span counts the outcomes with from <= time < until, in milliseconds.
type span struct {
	from, until  millrace.Time
	right, wrong int
}

// excess returns how many more wrong outcomes than right ones there are.
func (s span) excess() int { return s.wrong - s.right }

// with returns a span that covers both, with the outcomes of both.
func (s span) with(o span) span {
	return span{min(s.from, o.from), max(s.until, o.until), s.right + o.right, s.wrong + o.wrong}
}

const (
	// maxSpans bounds the memory. The newest maxSpans/4 spans are not joined when there
	// are too many, since outcomes do not come in the order of their times.
	maxSpans = 256
	// strangeFrom is how many more wrong outcomes than right ones must come for outcomes to
	// count as broken, and how many more right ones for them to count as whole again. A few
	// wrong ones come from links that viewers share with others.
	strangeFrom = 10
)

// came is an outcome that is to be added to a course. again is [Outcome.Again].
type came struct {
	at           millrace.Time
	wrong, again bool
}

// add adds an outcome, as a span of the second in which it was.
func (c *Course) add(at millrace.Time, wrong bool) {
	s := span{from: at - at%1000, right: 1}
	if s.until = s.from + 1000; wrong {
		s.right, s.wrong = 0, 1
	}
	c.put(s)
}

// put adds a span. It joins the span with those that it overlaps.
func (c *Course) put(s span) {
	i := len(c.spans)
	for i > 0 && c.spans[i-1].until > s.from { // nearly always the span belongs at the end
		i--
	}
	j := i
	for ; j < len(c.spans) && c.spans[j].from < s.until; j++ {
		s = s.with(c.spans[j])
	}
	if c.spans = slices.Replace(c.spans, i, j, s); len(c.spans) > maxSpans {
		c.thin()
	}
}

// thin joins spans until there are at most three quarters of maxSpans: see [Course].
func (c *Course) thin() {
	n := len(c.spans) - maxSpans/4
	old := slices.Clone(c.spans[:1])
	for _, s := range c.spans[1:n] {
		if last := &old[len(old)-1]; last.excess() > 0 && s.excess() < 0 || last.excess() < 0 && s.excess() > 0 {
			old = append(old, s)
		} else {
			*last = last.with(s)
		}
	}
	for len(old) > maxSpans/2 {
		least := 1
		for i := range old[:len(old)-1] {
			if i > 0 && abs(old[i].excess()) < abs(old[least].excess()) {
				least = i
			}
		}
		old = slices.Replace(old, least-1, least+2, old[least-1].with(old[least]).with(old[least+1]))
	}
	c.spans = append(old, c.spans[n:]...)
}

func abs(n int) int { return max(n, -n) }

// Plus returns the sum of two courses, as a new one. later should have the later outcomes.
func (c *Course) Plus(later *Course) *Course {
	sum := &Course{slices.Clone(c.spans), max(c.newest, later.newest)}
	for _, s := range later.spans {
		sum.put(s)
	}
	return sum
}

// Newest returns the time of the newest outcome that belonged to an answer; 0 if none did.
func (c *Course) Newest() millrace.Time { return c.newest }

// Stretch is a time in which outcomes were broken, and how many came in it.
type Stretch struct {
	From, Until  millrace.Time // Until is 0 while they still are
	Right, Wrong int
}

// String returns the stretch in words, for people.
func (s Stretch) String() string {
	says := fmt.Sprintf("%d name the answer of another viewer, or one without their record, and %d belong to an item, ", s.Wrong, s.Right)
	if s.Until == 0 {
		return says + fmt.Sprintf("since %s", s.From)
	}
	return says + fmt.Sprintf("from %s to %s", s.From, s.Until)
}

// Broken returns the times in which outcomes were broken, in the order of time; the last
// stretch may go on. A stretch begins at the point after which ten more wrong ones than
// right ones came, however many right ones came before it. It ends at the point after which
// ten more right ones than wrong ones came. In a stretch the right ones prove nothing
// either: a program that writes outcomes wrongly may name answers that fit by chance.
// Outcomes of viewers and answers of which nothing is known are in every log, and are not
// in a course.
func (c *Course) Broken() (all []Stretch) {
	// These are sums of all spans up to some time: now, up to the present one; began, up to
	// the beginning of the stretch; turn, up to the point where the excess of wrong ones was
	// least so far, or in a stretch where it was most.
	var now, turn, began span
	broken := false
	for i, s := range c.spans {
		if i == 0 {
			turn.until = s.from
		}
		now = span{until: s.until, right: now.right + s.right, wrong: now.wrong + s.wrong}
		switch more := now.excess() - turn.excess(); {
		case broken && more <= -strangeFrom:
			all = append(all, stretch(began, turn))
			broken, turn = false, now
		case !broken && more >= strangeFrom:
			broken, began, turn = true, turn, now
		case broken && more >= 0, !broken && more <= 0:
			turn = now
		}
	}
	if broken {
		s := stretch(began, now)
		s.Until = 0
		all = append(all, s)
	}
	return all
}

// stretch returns what came between the times of two sums.
func stretch(from, until span) Stretch {
	return Stretch{from.until, until.until, until.right - from.right, until.wrong - from.wrong}
}

// Now returns the stretch that still goes on; nil if outcomes are not broken.
func (c *Course) Now() *Stretch {
	if all := c.Broken(); len(all) > 0 && all[len(all)-1].Until == 0 {
		return &all[len(all)-1]
	}
	return nil
}
