package outcome

import "fmt"

// Report says what became of outcomes.
type Report struct {
	Attributed int `json:"attributed"` // to an item
	// Twice are those told before: under the same id, of the same viewer, record and
	// action, and with the same answer, the one that it names and the one that it
	// belongs to. Only the first counts.
	Twice     int `json:"twice"`
	Elsewhere int `json:"of_another_viewer"` // name an answer that went to another viewer
	Lacking   int `json:"not_in_the_answer"` // name an answer of their viewer, which did not show the record
	Nothing   int `json:"of_nothing"`        // of an answer, or a viewer, that showed no such record, or not in the window
}

// Plus returns the sum of two reports.
func (r Report) Plus(o Report) Report {
	return Report{r.Attributed + o.Attributed, r.Twice + o.Twice, r.Elsewhere + o.Elsewhere, r.Lacking + o.Lacking, r.Nothing + o.Nothing}
}

// String tells all of it.
func (r Report) String() string {
	return fmt.Sprintf("%d belong to an item; %d came twice, %d name the answer of another viewer, %d an answer without the record, and %d belong to nothing that was shown", r.Attributed, r.Twice, r.Elsewhere, r.Lacking, r.Nothing)
}
