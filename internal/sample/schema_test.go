package sample

import (
	"testing"

	"github.com/millrace/millrace/schemas"
)

// Every line is a record of the activity schema, with the envelope it shows.
func TestRecordsFitTheSchema(t *testing.T) {
	timelines := map[string]int{}
	for line := range Records() {
		e := envelope(t, line)
		timelines[string(e.Type)] += 1 + len(e.About)
		if e.Record.Time == 0 || e.Record.Object == "" || e.Record.Version != 0 || e.Record.Deleted {
			t.Errorf("%s: %+v", line, e)
		}
	}
	// A post goes to its author and forum, a comment also to whom it answers
	// unless that is oneself, a like to both sides.
	if timelines["post"] != 2*5924 || timelines["comment"] < 2*2218 || timelines["comment"] > 3*2218 || timelines["like"] > 2*(759+624) {
		t.Errorf("records on timelines: %v", timelines)
	}
}

func envelope(t *testing.T, line []byte) schemas.Envelope {
	t.Helper()
	body, err := schemas.Activity().EncodeJSON(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	e, err := schemas.Activity().Envelope(body)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return e
}
