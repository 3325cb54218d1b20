package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Question is a [Query] as a caller writes it: with the filter's text and the
// model's name.
type Question struct {
	Entities []millrace.Entity
	Types    []millrace.ContentType
	From, To millrace.Time
	AsOf     millrace.Time
	Filter   string
	Model    string
	Viewer   millrace.Viewer
	Limit    int
	Cap      int
	Distinct bool
}

// Questions draws random questions about activities in a feed: of every size, with
// windows that begin and end on records, filters that are true, false, null or an
// error, and every option alone and together.
type Questions struct {
	entities []millrace.Entity
	types    []millrace.ContentType
	times    []millrace.Time
}

// NewQuestions returns the questions to ask of f as it is now. f must have a live record.
func NewQuestions(f *Feed) *Questions {
	var q Questions
	types, times := map[millrace.ContentType]bool{}, map[millrace.Time]bool{}
	for _, t := range f.Timelines() {
		q.entities = append(q.entities, t.Entity)
		types[t.Type] = true
		for _, r := range f.Live(t) {
			times[r.Time] = true
		}
	}
	q.entities = slices.Compact(q.entities) // Timelines are in order of entity
	q.types = slices.Sorted(maps.Keys(types))
	q.times = slices.Sorted(maps.Keys(times))
	return &q
}

// Draw draws a question, the same for the same state of r.
func (qs *Questions) Draw(r *rand.Rand) Question {
	q := Question{
		To:       millrace.MaxTime,
		AsOf:     pick(r, qs.times) + millrace.Time(r.IntN(2)*r.IntN(86_400_000)),
		Model:    pick(r, []string{"recency", "home"}),
		Viewer:   viewer(r),
		Limit:    upTo(r, 1000),
		Distinct: r.IntN(2) == 0,
	}
	for range upTo(r, min(2*len(qs.entities), 2000)) {
		q.Entities = append(q.Entities, pick(r, qs.entities))
	}
	if r.IntN(4) == 0 {
		q.Entities = append(q.Entities, "member:nobody", q.Entities[0])
	}
	if r.IntN(2) == 0 {
		for range 1 + r.IntN(len(qs.types)) {
			q.Types = append(q.Types, pick(r, qs.types))
		}
	}
	if r.IntN(2) == 0 {
		q.From = pick(r, qs.times)
	}
	if r.IntN(2) == 0 {
		q.To = pick(r, qs.times) + millrace.Time(r.IntN(2))
	}
	q.From, q.To = min(q.From, q.To), max(q.From, q.To)
	if r.IntN(2) == 0 {
		q.Filter = boolean(r, 2)
	}
	if r.IntN(3) == 0 {
		q.Cap = 1 + r.IntN(5)
	}
	return q
}

// upTo draws from 1 to n, small numbers more often.
func upTo(r *rand.Rand, n int) int {
	top := 1
	for top < n && r.IntN(3) > 0 {
		top *= 4
	}
	return 1 + r.IntN(min(top, n))
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

var (
	languages = []string{"en", "de", "zh", "es", "", "English", "Russian", "German"}
	countries = []string{"India", "China", "Germany", "United States", "", "Nowhere"}
)

// viewer draws a viewer that has each attribute or not.
func viewer(r *rand.Rand) millrace.Viewer {
	v := millrace.Viewer{ID: fmt.Sprintf("member:%d", r.IntN(300)), Attributes: map[string]any{}, Features: map[string]float64{}}
	if r.IntN(2) == 0 {
		v.Attributes["languages"] = []string{pick(r, languages), pick(r, languages)}
	}
	if r.IntN(2) == 0 {
		v.Attributes["types"] = []string{pick(r, []string{"post", "like", "comment", "share"})}
	}
	if r.IntN(2) == 0 {
		v.Attributes["country"] = pick(r, countries)
	}
	if r.IntN(2) == 0 {
		v.Features["freshness_hours"] = pick(r, []float64{0.25, 6, 24 * 30})
	}
	return v
}

// boolean draws a filter over the activity schema, nested up to depth.
func boolean(r *rand.Rand, depth int) string {
	if depth > 0 {
		switch r.IntN(6) {
		case 0:
			return "(" + boolean(r, depth-1) + " && " + boolean(r, depth-1) + ")"
		case 1:
			return "(" + boolean(r, depth-1) + " || " + boolean(r, depth-1) + ")"
		case 2:
			return "!(" + boolean(r, depth-1) + ")"
		}
	}
	switch r.IntN(9) {
	case 0:
		return fmt.Sprintf("record.%s %s %d", pick(r, []string{"likes", "comments", "impressions"}), comparison(r), r.IntN(4))
	case 1:
		return fmt.Sprintf("record.language %s %q", pick(r, []string{"==", "!=", "<", ">="}), pick(r, languages))
	case 2:
		var list []string
		for range 1 + r.IntN(4) {
			list = append(list, fmt.Sprintf("%q", pick(r, countries)))
		}
		return "record.country in [" + strings.Join(list, ", ") + "]"
	case 3:
		return fmt.Sprintf("record.verb == %q", pick(r, []string{"post", "like", "comment", "share"}))
	case 4: // null where the viewer has none
		return pick(r, []string{"record.language in viewer.languages", "record.country == viewer.country", "viewer.freshness_hours > 5.0", "has(viewer.country)"})
	case 5: // an error where there are none
		return fmt.Sprintf("record.likes / record.comments %s 1", comparison(r))
	case 6: // null where the entity has no features
		return "entity.followers " + comparison(r) + " 1.5"
	case 7:
		return fmt.Sprintf("record.text.%s(%q)", pick(r, []string{"startsWith", "contains", "endsWith"}), pick(r, []string{"About", "a", "photo", "s"}))
	}
	return fmt.Sprintf("size(record.features) %s %d", comparison(r), r.IntN(8))
}

func comparison(r *rand.Rand) string { return pick(r, []string{"==", "!=", "<", "<=", ">", ">="}) }

// Query returns the query that a question means, with the models of e.
func (e *Eval) Query(q Question) (Query, error) {
	filter, err := e.Filter(q.Filter)
	if err != nil {
		return Query{}, err
	}
	m, err := e.model(cmp.Or(q.Model, "recency"))
	if err != nil {
		return Query{}, err
	}
	return Query{
		Entities: q.Entities, Types: q.Types, From: q.From, To: q.To, AsOf: q.AsOf,
		Filter: filter, Score: e.Score(m), Viewer: q.Viewer,
		Limit: q.Limit, Cap: q.Cap, Distinct: q.Distinct,
	}, nil
}
