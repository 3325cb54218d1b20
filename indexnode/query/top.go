package query

import (
	"math"
	"slices"

	"github.com/millrace/millrace"
)

// candidate is a row that passed the filter, with the score and time that decide nearly all
// comparisons.
type candidate struct {
	score   float64
	time    millrace.Time
	segment int32 // the index in Query.places
	row     int32 // within the segment's part
}

// top keeps the best candidates and drops the rest.
//
// Without cap, deduplication and exclusion, the best Limit candidates are the answer. With
// them, how many candidates an answer takes is known only afterwards. So top keeps about
// as many more as recent questions took, and not far more, since a larger top lets in more
// candidates. In the rare case that it kept too few, all segments are scanned again with a
// top [moreTimes] as large.
type top struct {
	best    []candidate // a heap, the worst at the root
	size    int         // the most that best may have
	reserve int         // how many more than Limit recent questions took
	// floor is the score of the worst candidate of best once best is full: a candidate
	// that scores less does not get in. It is -Inf until then.
	floor float64
}

// moreTimes is how many times as large top becomes when it kept too few candidates. It is
// large, since each growth costs another scan.
const moreTimes = 16

// reset empties the top, and sets its size for a question.
func (t *top) reset(s *Spec) {
	size := s.Limit
	if s.Cap > 0 || s.DistinctObjects || len(s.Exclude) > 0 {
		size += s.Limit/4 + 8 + t.reserve + len(s.Exclude)
	}
	t.keep(size)
}

// learn sets the reserve by how many candidates the answer of a question took. The reserve
// shrinks slowly, since a second scan costs more than some reserve.
func (t *top) learn(s *Spec, looked int) {
	used := looked - s.Limit - len(s.Exclude)
	t.reserve = max(used, t.reserve-(t.reserve+15)/16)
}

// keep empties the top, and sets its size.
func (t *top) keep(size int) { t.best, t.size, t.floor = t.best[:0], size, math.Inf(-1) }

// take offers the selected rows of a batch to the top. scores[i] is the score of row sel[i];
// times is the column of times of the batch.
func (q *Query) take(spans []span, sel []int32, times []uint64, scores []float64) {
	q.finite = q.finite || slices.ContainsFunc(scores, finite)
	t := &q.top
	floor := t.floor
	at := 0
	sel = sel[:len(scores)]
	for i, s := range scores {
		if s < floor { // false if either is NaN
			continue
		}
		row := sel[i]
		for at+1 < len(spans) && spans[at+1].at <= row {
			at++
		}
		q.offer(candidate{s, millrace.Time(times[row]), spans[at].segment, spans[at].row + row - spans[at].at})
		floor = t.floor
	}
}

// finite reports whether x is neither infinite nor NaN.
func finite(x float64) bool { return x-x == 0 }

// offer puts a candidate into the top if it is among the best so far.
func (q *Query) offer(c candidate) {
	t := &q.top
	if len(t.best) < t.size {
		t.best = append(t.best, c)
		q.up(t.best, len(t.best)-1)
	} else if q.before(&c, &t.best[0]) {
		t.best[0] = c
		q.down(t.best, 0)
	}
	if len(t.best) == t.size {
		t.floor = t.best[0].score
	}
}

// sorted turns the heap of the best into a list, best first. No more may be offered then.
func (q *Query) sorted() []candidate {
	h := q.top.best
	for n := len(h) - 1; n > 0; n-- {
		h[0], h[n] = h[n], h[0]
		q.down(h[:n], 0)
	}
	return h
}

// up restores the heap h, the worst at its root, after h[i] was added at the end. up and
// down are written by hand, since the interface calls of container/heap cost more than the
// comparisons.
func (q *Query) up(h []candidate, i int) {
	c := h[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !q.before(&h[parent], &c) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = c
}

// down restores the heap h after h[i] was replaced.
func (q *Query) down(h []candidate, i int) {
	c := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if r := child + 1; r < len(h) && q.before(&h[child], &h[r]) {
			child = r
		}
		if !q.before(&c, &h[child]) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = c
}

// before reports whether a ranks above b. It is small enough to be inlined.
func (q *Query) before(a, b *candidate) bool {
	return a.score > b.score || !(a.score < b.score) && q.beforeTied(a, b)
}

// beforeTied is before where no score is greater than the other: they are
// equal, or one is NaN. Ids and timelines are looked at only when times tie
// too.
func (q *Query) beforeTied(a, b *candidate) bool {
	if c := millrace.CompareScores(a.score, b.score); c != 0 {
		return c < 0
	}
	if a.time != b.time {
		return a.time > b.time
	}
	ra := millrace.Rank{Score: a.score, Time: a.time, ID: q.id(*a), Timeline: q.timeline(*a)}
	rb := millrace.Rank{Score: b.score, Time: b.time, ID: q.id(*b), Timeline: q.timeline(*b)}
	return ra.Compare(rb) < 0
}

func (q *Query) id(c candidate) millrace.RecordID {
	s := q.segment(c.segment)
	return millrace.RecordID(s.rows.StringAt(q.plans[s.plan].id, int(c.row)))
}

func (q *Query) timeline(c candidate) millrace.Timeline {
	return q.asked[q.places[c.segment].asked].timeline
}
