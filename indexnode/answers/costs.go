package answers

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/relevance"
)

const (
	// harmless is what a model may take for some rows, whatever that is for each:
	// of few, to begin takes longer than to score.
	harmless = 200 * time.Microsecond
	// tooLong is what a model may take in one question, if it takes too long for
	// each record: then no other question is waited for.
	tooLong = 250 * time.Millisecond
	// costAsked is how many questions must speak against what a version takes.
	costAsked = 3
)

// costWatch judges what a version takes in a question, while it ranks: where a
// processor has many questions to answer by a version that is far too slow, none of
// them is over soon. Once the version is condemned, the question ends.
type costWatch struct {
	of       *condemner
	id       relevance.ID
	model    *relevance.Model
	evidence *evidence
	refuses  bool // the question ends where the version is condemned

	processor bool          // took is time of a processor
	rows      int           // since it was judged last
	read      int           // for them: bytes of texts and items of lists
	took      time.Duration // by them
	against   time.Duration // of a processor, in portions that spoke against the version
	slow      bool          // a portion did
	counted   bool          // among the questions that do
}

// begin returns who watches what a version takes in a question from now on; nil of
// one that every binary has.
func (w *costWatch) begin(c *condemner, id relevance.ID, m *relevance.Model, refuses bool) query.Watcher {
	if id.Version == "" {
		return nil
	}
	*w = costWatch{of: c, id: id, model: m, evidence: c.evidence(m), refuses: refuses}
	return w
}

// Processor reports whether the version is suspected. Then the time of a processor
// counts: time passes as well where the process was stopped, or others had the
// processor.
func (w *costWatch) Processor() bool {
	if !w.processor && w.evidence.suspected() {
		w.processor, w.rows, w.read, w.took = true, 0, 0, 0
	}
	return w.processor
}

// Scored judges what has been scored since the last time, once that took long
// enough to say something.
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

// judge judges what was scored since it was judged last. How long texts and lists
// are is up to who writes records, and no fault of the version: it may take the more
// the more there is to read.
func (w *costWatch) judge() {
	e, rows := w.evidence, time.Duration(w.rows)
	limit := rows*e.limit + time.Duration(w.read)*slower*relevance.ReadLimit
	if w.took <= limit {
		e.acquitCost()
		return
	}
	if w.slow = true; !w.processor {
		e.slow.CompareAndSwap(0, 1) // it may have been the machine: see Processor
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
		w.of.condemn(w.id, causeCost, "a record takes it %s of a processor on %s: more than %s, fifty times what its admission reckoned for %d operations%s", w.took/rows, w.of.node.id, limit/rows, w.model.Cost(), reads)
	}
}

// end acquits a version of which nothing was slow in a question that has scored.
func (w *costWatch) end(by query.Measured) {
	if w.of != nil && by.Took > 0 && !w.slow {
		w.evidence.acquitCost()
	}
}

// suspected reports whether a version took a question too long since it did not.
func (e *evidence) suspected() bool { return e.slow.Load() > 0 }

// acquitCost forgets what spoke against what a version takes.
func (e *evidence) acquitCost() {
	reset(&e.slow)
	reset(&e.slowIn)
}
