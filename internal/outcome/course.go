package outcome

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
)

// Course is when outcomes came that name an answer: right ones, which belong to it, and
// wrong ones, which cannot. The zero value has none.
//
// It is kept as spans of time. Where there are too many, neighbours are joined unless one
// has more right ones and the other more wrong ones. If that is not enough, the spans where
// the two numbers differ least are joined with their neighbours. So a time in which outcomes
// were broken is told as exactly after a year as on its day.
type Course struct {
	spans  []span // in the order of time, of whole seconds, and none overlaps another
	newest millrace.Time
}

// span counts the outcomes of a time.
type span struct {
	from, until  millrace.Time
	right, wrong int
}

func (s span) excess() int { return s.wrong - s.right }

func (s span) with(o span) span {
	return span{min(s.from, o.from), max(s.until, o.until), s.right + o.right, s.wrong + o.wrong}
}

const (
	// maxSpans bounds the memory. The last quarter of them is never joined, since
	// outcomes do not come in the order of their times.
	maxSpans = 256
	// strangeFrom is how many more wrong outcomes than right ones make a log broken, and how
	// many more right ones make it whole again. A few wrong ones come of links that viewers
	// shared.
	strangeFrom = 10
)

// came is one outcome of a course.
type came struct {
	at           millrace.Time
	wrong, again bool
}

// add adds an outcome of a time.
func (c *Course) add(at millrace.Time, wrong bool) {
	s := span{from: at - at%1000, right: 1}
	if s.until = s.from + 1000; wrong {
		s.right, s.wrong = 0, 1
	}
	c.put(s)
}

// put adds a span.
func (c *Course) put(s span) {
	i := len(c.spans)
	for i > 0 && c.spans[i-1].until > s.from { // nearly always the last
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

// thin joins spans.
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

// Plus returns the course of both, of which the other came later.
func (c *Course) Plus(later *Course) *Course {
	sum := &Course{slices.Clone(c.spans), max(c.newest, later.newest)}
	for _, s := range later.spans {
		sum.put(s)
	}
	return sum
}

// Newest returns when the newest outcome was that belonged to an answer; 0: none did.
func (c *Course) Newest() millrace.Time { return c.newest }

// Stretch is a time in which outcomes were broken, and how many came in it.
type Stretch struct {
	From, Until  millrace.Time // Until is 0: they still are
	Right, Wrong int
}

// String says so in words.
func (s Stretch) String() string {
	says := fmt.Sprintf("%d name the answer of another viewer, or one without their record, and %d belong to an item, ", s.Wrong, s.Right)
	if s.Until == 0 {
		return says + fmt.Sprintf("since %s", s.From)
	}
	return says + fmt.Sprintf("from %s to %s", s.From, s.Until)
}

// Broken returns when outcomes were broken, in the order of time; the last stretch may go on.
// A stretch begins where from then on ten more wrong ones came than right ones, however many
// right ones came before; and it ends where from then on ten more right ones came. Whatever
// writes wrong ones writes wrong names, so that the right ones tell nothing either. Outcomes of
// viewers and answers of which nothing is known are in every log, and are not counted here.
func (c *Course) Broken() (all []Stretch) {
	// Sums until some time: until now; until the stretch began; and until the turn, where
	// wrong ones were fewest against right ones, and in a stretch most.
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

func stretch(from, until span) Stretch {
	return Stretch{from.until, until.until, until.right - from.right, until.wrong - from.wrong}
}

// Now returns the stretch that goes on; nil: outcomes are not broken.
func (c *Course) Now() *Stretch {
	if all := c.Broken(); len(all) > 0 && all[len(all)-1].Until == 0 {
		return &all[len(all)-1]
	}
	return nil
}
