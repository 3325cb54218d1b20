package ask

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/display"
)

// Print prints an answer as a table with a row for each item. Below it are a line on what
// answered and how, and the hints of the broker. name returns the name that is printed for
// an entity.
func Print(w io.Writer, resp *feedv1.GetFeedResponse, name func(millrace.Entity) string) {
	t := display.NewTable(w)
	t.Printf("#\tSCORE\tID\tWHO\tWHAT\tWHEN\tWHY\tABOUT\n")
	for i, it := range resp.Items {
		t.Printf("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i+1, scoreText(scorer(resp.Receipt), it.Score), it.Id, name(millrace.Entity(it.Entity)), it.Type,
			it.Time.AsTime().Format("2006-01-02 15:04"), reasons(it), excerpt(it))
	}
	t.Flush()
	c := resp.Coverage
	display.Printf(w, "\n%d items; %d of %d timelines answered", len(resp.Items), c.GetTimelinesAnswered(), c.GetTimelinesAsked())
	for _, m := range c.GetMissing() {
		display.Printf(w, "; partition %d missing: %s", m.Partition, m.Reason)
	}
	if n := c.GetTimelinesBehind(); n > 0 {
		display.Printf(w, "; %d by replicas that lag behind the log", n)
	}
	r := resp.Receipt
	display.Printf(w, "; model %s %s, %s", r.GetModel(), r.GetModelVersion(), r.GetExecution())
	if r.GetWeightsSum() != "" {
		display.Printf(w, ", weights %.12s", r.WeightsSum)
	}
	if v := r.GetInPlaceOf(); v != "" {
		display.Printf(w, " in place of %s, which is condemned", v)
	}
	if d := r.GetDraft(); d.GetFault() != "" {
		display.Printf(w, "; not drafted with %s: %s", d.Model, d.Fault)
	} else if d != nil {
		display.Printf(w, "; drafted with %s %s", d.Model, d.ModelVersion)
	}
	display.Printf(w, "%s", variantsText(r.GetVariants()))
	if of := r.GetUnapplied(); len(of) > 0 {
		display.Printf(w, " (counts for no variant of %s: a version that it needs is condemned)", strings.Join(of, ", "))
	}
	for _, v := range r.GetEntityVariants() {
		entities := "entities"
		if v.Entities == 1 {
			entities = "entity"
		}
		display.Printf(w, "; %s: %s for %d %s", v.Experiment, v.Variant, v.Entities, entities)
	}
	fmt.Fprintln(w)
	for _, hint := range resp.Hints {
		display.Printf(w, "hint: %s\n", hint)
	}
}

// variantsText returns the variants, by experiment, as "; EXPERIMENT: VARIANT" for each.
func variantsText(of map[string]string) (text string) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		text += fmt.Sprintf("; %s: %s", name, of[name])
	}
	return text
}

// recency is the built-in model whose score is the time of the record, in milliseconds
// since 1970.
const recency = "recency"

// scorer returns the model that gave all scores of an answer. It returns "" for a drafted
// answer: there two models choose items by turns, and no one model gave all scores.
func scorer(r *feedv1.Receipt) string {
	if d := r.GetDraft(); d != nil && d.Fault == "" {
		return ""
	}
	return r.GetModel()
}

// scoreText returns a score as people read it: a time in UTC if model is recency, and
// otherwise a number of four significant digits.
func scoreText(model string, score float64) string {
	if model == recency {
		return time.UnixMilli(int64(score)).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return fmt.Sprintf("%.4g", score)
}

// reasons returns the cell WHY of an item: how many likes, comments and shares the record
// has, and how many further records are about the same object.
func reasons(it *feedv1.Item) string {
	var all []string
	for _, counter := range []struct{ one, field string }{{"like", "likes"}, {"comment", "comments"}, {"share", "shares"}} {
		if n := it.Record.GetFields()[counter.field].GetNumberValue(); n == 1 {
			all = append(all, "1 "+counter.one)
		} else if n > 1 {
			all = append(all, fmt.Sprintf("%.0f %s", n, counter.field))
		}
	}
	if n := len(it.Also); n > 0 {
		all = append(all, fmt.Sprintf("+%d more", n))
	}
	return strings.Join(all, ", ")
}

// excerpt returns the text of a record in one line of 50 characters at most. Without a text
// it returns the object that the record is about.
func excerpt(it *feedv1.Item) string {
	const limit = 50
	text := strings.Join(strings.Fields(it.Record.GetFields()["text"].GetStringValue()), " ")
	if text == "" {
		return it.Object
	}
	if r := []rune(text); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return text
}
