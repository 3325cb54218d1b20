package outcome

import "fmt"

// Report is how many outcomes there were, by what became of them.
type Report struct {
	Attributed int `json:"attributed"` // they belong to an item of an answer
	// Twice are repetitions. They have the same id, viewer, record and action as an outcome
	// before, name the same answer and belong to the same answer. Only the first counts.
	Twice     int `json:"twice"`
	Elsewhere int `json:"of_another_viewer"` // they name an answer that went to another viewer
	Lacking   int `json:"not_in_the_answer"` // they name an answer of their viewer that did not show the record
	// Nothing are all others: no answer in the window showed their viewer the record, they
	// name an answer that is not known, or the answer does not count (see Ledger.Acts).
	Nothing int `json:"of_nothing"`
}

// Plus returns the sum of two reports.
func (r Report) Plus(o Report) Report {
	return Report{r.Attributed + o.Attributed, r.Twice + o.Twice, r.Elsewhere + o.Elsewhere, r.Lacking + o.Lacking, r.Nothing + o.Nothing}
}

// String returns the report as a sentence.
func (r Report) String() string {
	return fmt.Sprintf("%d belong to an item; %d came twice, %d name the answer of another viewer, %d an answer without the record, and %d belong to nothing that was shown", r.Attributed, r.Twice, r.Elsewhere, r.Lacking, r.Nothing)
}
