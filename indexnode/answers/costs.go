package answers

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/relevance"
)

const (
	// harmless is the time that a model may always take, however few rows it scored: to begin
	// takes longer than to score a few.
	harmless = 200 * time.Microsecond
	// tooLong is how long a model may take in one question at most if it takes too long for
	// each record. After that it is condemned without waiting for other questions.
	tooLong = 250 * time.Millisecond
	// costAsked is in how many questions a version must be too slow to be condemned sooner.
	costAsked = 3
)

// costWatch judges how long a version takes in a question, while it ranks and not only at
// the end: if a processor answers many questions at a time by a version that is far too slow,
// none of them ends soon. Once the version is condemned, the question ends.
type costWatch struct {
	of       *condemner
	id       relevance.ID
	model    *relevance.Model
	evidence *evidence
	refuses  bool // the question ends once the version is condemned

	processor bool // took is the time of a processor, and not time that passed
	// Of the rows that were scored since they were judged last, a portion:
	rows int           // how many
	read int           // bytes of texts and items of lists that were read for them
	took time.Duration // how long that took

	against time.Duration // of a processor, in portions that took too long
	slow    bool          // some portion took too long
	counted bool          // the question is counted as one with such portions
}

// begin starts to watch how long a version takes in a question. It returns nil for a model
// that every binary has, which cannot be condemned.
func (w *costWatch) begin(c *condemner, id relevance.ID, m *relevance.Model, refuses bool) query.Watcher {
	if id.Version == "" {
		return nil
	}
	*w = costWatch{of: c, id: id, model: m, evidence: c.evidence(m), refuses: refuses}
	return w
}

// Processor reports whether the version is suspected, because it was slow before. Then the
// time of a processor is measured: time also passes while the process is stopped, or others
// have the processor.
func (w *costWatch) Processor() bool {
	if !w.processor && w.evidence.suspected() {
		w.processor, w.rows, w.read, w.took = true, 0, 0, 0
	}
	return w.processor
}

// Scored judges the rows that were scored since the last time, once these took long enough
// to tell something.
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

// judge judges a portion. How long texts and lists are is no fault of the version, but of the
// records: the more of them it has to read, the longer it may take.
func (w *costWatch) judge() {
	e, rows := w.evidence, time.Duration(w.rows)
	limit := rows*e.limit + time.Duration(w.read)*slower*relevance.ReadLimit
	if w.took <= limit {
		e.acquitCost()
		return
	}
	if w.slow = true; !w.processor {
		e.slow.CompareAndSwap(0, 1) // it is suspected; the machine may be the cause: see Processor
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

// end ends the suspicion of a version where no portion of a question was too slow. A
// portion in time ends it at once: see judge.
func (w *costWatch) end(by query.Measured) {
	if w.of != nil && by.Took > 0 && !w.slow {
		w.evidence.acquitCost()
	}
}

// suspected reports whether a portion took too long, and neither a portion nor a question
// has been in time since.
func (e *evidence) suspected() bool { return e.slow.Load() > 0 }

// acquitCost forgets that a version took too long.
func (e *evidence) acquitCost() {
	reset(&e.slow)
	reset(&e.slowIn)
}
