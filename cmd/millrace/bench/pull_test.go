package bench

import (
	"math"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// The baseline reads back what it writes, and its score is the model's.
func TestBaselineScoresAlike(t *testing.T) {
	w, err := newWorld(Config{Shape: "team", Entities: 1000, Viewers: 3, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	activity := schemas.Activity()
	d, err := schemas.NewDecoder(activity, activity)
	if err != nil {
		t.Fatal(err)
	}
	for i := range w.asked {
		v := w.asked[i].viewer
		seen := v.vocabulary()
		for _, x := range w.records(i) {
			body, err := w.body(&x)
			if err != nil {
				t.Fatal(err)
			}
			a := column.New(activity.Layout(), 1, 0).Append()
			if err := d.Append(a, body); err != nil {
				t.Fatal(err)
			}
			s, err := w.model.Bind(activity.Layout(), nil, &seen, millrace.Time(asOf))
			if err != nil {
				t.Fatal(err)
			}
			var want [1]float64
			s.Score(a.Slab(), []int32{0}, nil, want[:])
			var back record
			back.readMember(x.member())
			if got := thirty(&back, &v); math.Abs(got-want[0]) > 1e-9 {
				t.Fatalf("%s scores %v, want %v", x.id(), got, want[0])
			}
			if back.id() != x.id() || back.object() != x.object() || back.at != x.at {
				t.Fatalf("%+v is read back as %+v", x, back)
			}
		}
	}
}
