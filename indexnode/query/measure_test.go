package query

import (
	"testing"
	"time"

	"github.com/millrace/millrace/relevance"
)

// What models beside a question's took together is theirs, to the nanosecond:
// evenly where they compute the same, and none is charged for another's.
func TestMeasuredBesideIsDivided(t *testing.T) {
	recency, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	for _, models := range [][]*relevance.Model{{home}, {home, home}, {home, home, home}, {recency, home}, {home, recency, home, home, home, home, home}} {
		for _, took := range []time.Duration{0, 1, 7, 1_000_003, 3 * time.Hour} {
			q := newQuery()
			for i := range len(models) + 1 { // one was more at another time
				r := newQuery()
				r.stages.Scored, r.looked = int64(i), i
				q.beside = append(q.beside, r)
			}
			q.ranked, q.besideSpent.time = len(models), took
			all := q.MeasuredBeside(relevance.Join(models...))
			sum, least, most := time.Duration(0), took, time.Duration(0)
			for i, m := range all {
				if sum += m.Took; m.Took < 0 || m.Scored != int64(i) || m.Looked != i {
					t.Errorf("%+v", m)
				}
				if models[i] == home {
					least, most = min(least, m.Took), max(most, m.Took)
				} else if 10*m.Took > took {
					t.Errorf("recency is charged %s of %s", m.Took, took)
				}
			}
			if len(all) != len(models) || sum != took || most-least > 2 {
				t.Errorf("%d models: %d measures come to %s of %s; the same model from %s to %s", len(models), len(all), sum, took, least, most)
			}
		}
	}
}
