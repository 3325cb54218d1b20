package answers

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/relevance"
)

const (
	// harmless is how long scoring a portion must have taken before the portion is judged. In
	// a portion of few rows, the start of scoring takes longer than the rows.
	harmless = 200 * time.Microsecond
	// tooLong is how much CPU time a version may take in one question, in portions that took
	// too long, before it is condemned by that question alone.
	tooLong = 250 * time.Millisecond
	// costAsked is the number of questions in which a version must have been too slow to be
	// condemned after condemnAfter portions: one question alone may have another reason.
	costAsked = 3
)

// costWatch judges how long a version takes in a question. It does so for each portion of the
// rows while the version ranks, not only at the end: if a machine answers many questions by a
// version that is far too slow, none of them ends soon. Once the version is condemned, the
// question ends if its broker gives way (asks by another version then). costWatch is a
// [query.Watcher].
type costWatch struct {
	of       *condemner
	id       relevance.ID
	model    *relevance.Model
	evidence *evidence
	refuses  bool // the question ends once the version is condemned, since its broker gives way

	processor bool // took is CPU time, and not time by the clock
	// The current portion: the rows that were scored since the last portion was judged.
	rows int           // how many rows
	read int           // how many bytes of texts and items of lists were read for them
	took time.Duration // how long that took

	against time.Duration // CPU time in portions that took too long
	slow    bool          // some portion took too long
	counted bool          // the question is counted as one with such portions
}

// begin starts to watch how long a version takes in a question. It returns nil for a built-in
// model, which cannot be condemned.
func (w *costWatch) begin(c *condemner, id relevance.ID, m *relevance.Model, refuses bool) query.Watcher {
	if id.Version == "" {
		return nil
	}
	*w = costWatch{of: c, id: id, model: m, evidence: c.evidence(m), refuses: refuses}
	return w
}

// Processor reports whether CPU time is to be measured in place of time by the clock. That is
// so once the version is suspected because it was slow by the clock: the clock also runs while
// the process is stopped, or others have the processor.
func (w *costWatch) Processor() bool {
	if !w.processor && w.evidence.suspected() {
		w.processor, w.rows, w.read, w.took = true, 0, 0, 0
	}
	return w.processor
}

// Scored adds rows to the current portion, and judges the portion once it took harmless or
// longer. The error says that the version is condemned, and ends the question.
func (w *costWatch) Scored(rows, read int, took time.Duration) error {
	w.rows, w.read, w.took = w.rows+rows, w.read+read, w.took+took
	if w.took >= harmless {
		w.judge()
		w.rows, w.read, w.took = 0, 0, 0
	}
	if w.refuses {
		if why := w.of.why(w.id); why != "" {
			return refusal(w.id, why)
		}
	}
	return nil
}

// judge judges the current portion. The length of texts and lists is no fault of the version:
// the more of them it reads, the longer it may take.
func (w *costWatch) judge() {
	e, rows := w.evidence, time.Duration(w.rows)
	limit := rows*e.limit + time.Duration(w.read)*race.Slower*relevance.ReadLimit
	if w.took <= limit {
		e.acquitCost()
		return
	}
	if w.slow = true; !w.processor {
		e.slow.CompareAndSwap(0, 1) // the version is suspected; the machine may be the cause, so the next portion is measured in CPU time
		return
	}
	if w.against += w.took; !w.counted {
		w.counted = true
		e.slowIn.Add(1)
	}
	if n := e.slow.Add(1); n >= condemnAfter && e.slowIn.Load() >= costAsked || w.against >= tooLong {
		reads := ""
		if read := w.read / w.rows; read > 0 {
			reads = fmt.Sprintf(" and %d more that read texts and lists", read)
		}
		w.of.condemn(w.id, causeCost, "a record takes it %s of a processor on %s: more than %s, which is fifty times what its admission reckoned for %d operations%s, and 5 µs at least", w.took/rows, w.of.node.id, limit/rows, w.model.Cost(), reads)
	}
}

// end is called at the end of a question. It ends the suspicion of the version if no portion
// was too slow, also if the last portion was too short to judge.
func (w *costWatch) end(by query.Measured) {
	if w.of != nil && by.Took > 0 && !w.slow {
		w.evidence.acquitCost()
	}
}

// suspected reports whether a portion took too long, and no portion has been in time since.
func (e *evidence) suspected() bool { return e.slow.Load() > 0 }

// acquitCost forgets that a version took too long.
func (e *evidence) acquitCost() {
	reset(&e.slow)
	reset(&e.slowIn)
}
