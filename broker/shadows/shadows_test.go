package shadows

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/exposure"
)

// What is kept of an answer does not change when the memory of what nodes sent is used again.
func TestRecordsOutliveAnswers(t *testing.T) {
	var lent [][]byte
	lend := func(s string) string {
		b := []byte(s)
		lent = append(lent, b)
		return unsafe.String(&b[0], len(b))
	}
	r := &exposure.Record{Items: []exposure.Item{{ID: lend("id"), Entity: lend("entity"), Type: lend("type"), Features: []exposure.Value{{Text: lend("text")}}}}}
	entries := []fanout.Entry{{Rank: millrace.Rank{Score: 3, ID: "r", Timeline: millrace.Timeline{Entity: "e", Type: "t"}}, Ranked: fanout.Ranked{Item: &nodev1.Item{Object: lend("object")}}}}
	q := &questions.Question{Query: &nodev1.QueryRequest{}}
	records := rankingOf(q, entries)
	q.Query.DistinctObjects = true
	objects := rankingOf(q, entries)
	lacking := addLacking([]exposure.Lacked{{Feature: "a", Items: 1}}, map[string]int64{lend("c"): 2, "a": 3, "b": 4})
	detach(r)
	for _, b := range lent {
		copy(b, strings.Repeat("?", len(b)))
	}
	if it := r.Items[0]; it.ID != "id" || it.Entity != "entity" || it.Type != "type" || it.Features[0].Text != "text" {
		t.Errorf("%+v", it)
	}
	if !slices.Equal(objects.Items, []string{"object"}) || !slices.Equal(records.Items, []string{"e\x00t\x00r"}) || objects.Scores[0] != 3 || records.Scores[0] != 3 {
		t.Errorf("%v, %v", objects, records)
	}
	if !slices.Equal(lacking, []exposure.Lacked{{Feature: "a", Items: 4}, {Feature: "b", Items: 4}, {Feature: "c", Items: 2}}) {
		t.Errorf("%v", lacking)
	}
}

// An item has the scores of the shadows that were compared, if all of them scored it.
func TestScoresOfWhatWasShown(t *testing.T) {
	entry := func(id string, scores ...float64) fanout.Entry {
		x := &feedv1.ItemExplain{}
		for _, s := range scores {
			x.Shadow = append(x.Shadow, &feedv1.ShadowScore{Score: s})
		}
		return fanout.Entry{Rank: millrace.Rank{ID: millrace.RecordID(id), Timeline: millrace.Timeline{Entity: "e", Type: "t"}}, Ranked: fanout.Ranked{Item: &nodev1.Item{Explain: x}}}
	}
	shown := &exposure.Record{Items: []exposure.Item{{ID: "a", Entity: "e", Type: "t"}, {ID: "b", Entity: "e", Type: "t"}, {ID: "c", Entity: "e", Type: "t"}, {ID: "a", Entity: "e", Type: "u"}}}
	scoreShown(shown, []fanout.Entry{entry("a", 1, 2, 3), entry("b", 1, 2)}, []int{0, 2})
	for i, want := range [][]float64{{1, 3}, nil, nil, nil} {
		if got := shown.Items[i].Shadows; !slices.Equal(got, want) {
			t.Errorf("item %d has %v, want %v", i, got, want)
		}
	}
}

// Labels tell which model ranked, with weights that a variant set.
func TestLabels(t *testing.T) {
	q := &questions.Question{FeedName: "f", Query: &nodev1.QueryRequest{Model: "m"}}
	for sum, want := range map[string]string{"": "m", "0123456789abcdef": "m+0123456789ab"} {
		q.Query.WeightsSum = sum
		if got := labelsOf(q, &nodev1.Model{Name: "s", Version: "3"}); !slices.Equal(got, []string{"f", want, "s", "3"}) {
			t.Errorf("%q", got)
		}
	}
}
