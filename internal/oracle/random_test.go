package oracle

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/schemas"
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// Every question is one that a caller may ask.
func TestQuestionsAreValid(t *testing.T) {
	env := expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}, Entity: []*column.Layout{schemas.Features().Layout()}}
	qs, r := NewQuestions(loaded(t)), random(1)
	for range 2000 {
		q := qs.Draw(r)
		if len(q.Entities) == 0 || q.From > q.To || q.Limit < 1 || q.Limit > 1000 || q.AsOf < millrace.MinTime || q.AsOf >= millrace.MaxTime {
			t.Errorf("%+v", q)
		}
		if _, err := expr.Parse(q.Filter, env); q.Filter != "" && err != nil {
			t.Errorf("%s", err)
		}
	}
}

func TestQuestionsRepeat(t *testing.T) {
	qs := NewQuestions(loaded(t))
	if a, b := qs.Draw(random(7)), qs.Draw(random(7)); !reflect.DeepEqual(a, b) {
		t.Errorf("one seed, two questions:\n%+v\n%+v", a, b)
	}
}

// The questions reach what there is to get wrong: every outcome of a filter,
// full and short and empty answers, ties, caps and further records of an
// object.
func TestQuestionsReachEverything(t *testing.T) {
	f, e := loaded(t), eval(t)
	qs, r := NewQuestions(f), random(1)
	seen := map[string]int{}
	count := func(what string, n int) {
		if n > 0 {
			seen[what]++
		}
	}
	for range 300 {
		question := qs.Draw(r)
		q, err := e.Query(question)
		if err != nil {
			t.Fatalf("%+v: %v", question, err)
		}
		a := f.Query(q)
		count("false", a.Stages.False)
		count("null", a.Stages.Null)
		count("error", a.Stages.Error)
		count("capped", a.Stages.Capped)
		if len(a.Items) == q.Limit {
			count("full", 1)
		} else {
			count("short", 1)
		}
		if len(a.Items) == 0 {
			count("empty", 1)
		}
		count(question.Model, len(a.Items))
		for i, it := range a.Items {
			count("also", len(it.Also))
			if i > 0 && it.Score == a.Items[i-1].Score {
				count("tie", 1)
			}
		}
	}
	for _, what := range []string{"false", "null", "error", "capped", "full", "short", "empty", "also", "tie", "recency", "home"} {
		if seen[what] < 5 {
			t.Errorf("%s: %d times in 300 questions: %v", what, seen[what], seen)
		}
	}
}
