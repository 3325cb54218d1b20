package relevance

import (
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

// Ceilings are as low as the values of a plan allow: what can be worked out by hand of the
// largest likes, 10, of times from 20 to 50 s, and of what the request says.
func TestCeilingsAreTight(t *testing.T) {
	rows := ShippedSchemas()["millrace.Activity"].Layout
	likes, comments := rows.Index("likes"), rows.Index("comments")
	inf := math.Inf(1)
	viewer := func(a float64, b bool, langs ...string) map[string]any {
		return map[string]any{"a": a, "b": b, "langs": langs, "c": "c"}
	}
	two := viewer(2, true, "x")
	for _, c := range []struct {
		feature string
		viewer  map[string]any
		want    float64
	}{
		{"viewer.a * record.likes", two, 20},
		{"record.likes * viewer.a", viewer(-2, true), 0},
		{"viewer.a * record.likes * record.likes", viewer(-2, true), 0},
		{"(viewer.a - record.likes) * record.likes", two, 20},
		{"(viewer.a - record.likes) * (viewer.a - record.likes)", two, 64},
		{"viewer.a + record.likes", two, 12},
		{"viewer.a - record.likes", two, 2},
		{"record.likes - viewer.a", two, 8},
		{"record.likes / viewer.a", two, 5},
		{"record.likes / viewer.a", viewer(0, true), inf},
		{"record.likes / viewer.a", viewer(-2, true), 0},
		{"viewer.a / (record.likes + 1.0)", two, 2},
		{"viewer.a / (record.likes - 1.0)", two, inf},
		{"viewer.a / (-1.0 - record.likes)", viewer(-2, true), 2},
		{"-(record.likes - viewer.a)", two, 2},
		{"min(viewer.a, record.likes)", two, 2},
		{"max(viewer.a, record.likes)", two, 10},
		{"max(record.likes, viewer.a)", viewer(30, true), 30},
		{"clamp(viewer.a * record.likes, -1.0, 5.0)", two, 5},
		{"clamp(viewer.a * record.likes, -1.0, 50.0)", two, 20},
		{"clamp(record.likes, viewer.a, viewer.a)", two, 2},
		{"abs(viewer.a - record.likes)", two, 8},
		{"abs(viewer.a + record.likes)", two, 12},
		{"abs(-3.0 - viewer.a - record.likes)", two, 15},
		{"0.0 - abs(-3.0 - viewer.a - record.likes)", two, -5},
		{"0.0 - abs(3.0 + viewer.a + record.likes)", two, -5},
		{"0.0 - abs(viewer.a - record.likes)", two, 0},
		{"exp(viewer.a - record.likes)", two, math.Exp(2)},
		{"log1p(viewer.a * record.likes)", two, math.Log1p(20)},
		{"sqrt(viewer.a * record.likes)", two, math.Sqrt(20)},
		{"pow(viewer.a * record.likes, 2.0)", two, inf},
		{"bucketize(viewer.a * record.likes, [5.0, 15.0, 100.0])", two, 2},
		{"coalesce(viewer.a * record.likes, 50.0)", two, 50},
		{"coalesce(viewer.a * record.likes, 5.0)", two, 20},
		{"viewer.b && record.likes > 3", two, 1},
		{"viewer.b && record.likes > 3", viewer(2, false), 0},
		{"viewer.b || record.likes > 3", viewer(2, false), 1},
		{"0.0 - (viewer.b || record.likes > 3 ? 1.0 : 0.0)", two, -1},
		{"!(viewer.b || record.likes > 3)", two, 0},
		{"!(viewer.b && record.likes > 3)", two, 1},
		{"!(viewer.b && record.likes > 3) && viewer.b", viewer(2, false), 0},
		{"viewer.b ? viewer.a * record.likes : 7.0", two, 20},
		{"viewer.b ? viewer.a * record.likes : 7.0", viewer(2, false), 7},
		{"record.likes > 3 ? viewer.a : 7.0", two, 7},
		{"record.likes > 3 ? 7.0 : viewer.a", two, 7},
		{"(record.likes > 3 ? viewer.b : false)", viewer(2, false), 0},
		{"(viewer.b ? record.likes > 3 : false)", two, 1},
		{"record.verb in viewer.langs", two, 1},
		{"record.verb in viewer.langs", viewer(2, true), 0},
		{"record.likes in [1.0, 2.0] && viewer.b", two, 1},
		{`lookup({"x": 3.0, "y": 9.0}, cross(record.verb, viewer.c), 1.0)`, two, 9},
		{`lookup({"x": 3.0, "y": 9.0}, cross(record.verb, viewer.c), 11.0)`, two, 11},
		{"viewer.a * size(record.about)", two, inf},
		{"0.0 - viewer.a * size(record.about)", two, 0},
		{"viewer.a * record.comments", two, inf}, // which may be negative
		{"entity.embedding[0] * record.likes", two, inf},
		{"viewer.a * record.features[0]", two, inf},
		{"dot(record.features, record.features) * viewer.a", two, inf},
		{"(record.deleted ? 3.0 : 1.0) * viewer.a", two, 6},
		{"age(record.created_at)", two, 80},
		{"0.0 - age(record.created_at)", two, -50},
		{"decay(record.created_at, 10.0)", two, math.Pow(2, -5)},
		{"0.0 - decay(record.created_at, 10.0)", two, -math.Pow(2, -8)},
		{"decay(record.created_at, record.likes)", two, inf},
		{"record.created_at > timestamp(\"1970-01-01T00:00:01Z\") && viewer.b", two, 1},
		{"age(record.created_at) * viewer.a - record.likes", two, 160},
	} {
		m := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nentity: millrace.Features\nviewer: {a: double, b: bool, c: string, langs: list(string)}\nfeatures:\n  own: record.shares\n  f: '"+c.feature+"'\nscorer: linear\nparameters: {weights: {own: 1, f: 1}}\n")
		s, err := m.Bind(rows, schemas.Features().Layout(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ceilings := s.Ceilings(rows)
		if ceilings == nil {
			t.Errorf("%s has no ceilings", c.feature)
			continue
		}
		if s.Ceilings(rows) != ceilings {
			t.Error("they are made twice")
		}
		if err := s.Rebind(&millrace.Viewer{Attributes: c.viewer}, 100_000); err != nil {
			t.Fatal(err)
		}
		ceilings.Limits(func(column int) uint64 {
			switch {
			case column == rows.Time():
				t.Errorf("%s: the limit of times is asked for", c.feature)
			case !slices.Contains(ceilings.Columns(), column):
				t.Errorf("%s: column %d is not one of %v", c.feature, column, ceilings.Columns())
			case column == comments:
				return ^uint64(0) // some are -1
			case column == likes:
				return 10
			}
			return 3
		})
		for range 2 { // in another order the same
			ceilings.Of(1, 2)
			if got := ceilings.Of(20_000, 50_000); got != c.want && !(math.Abs(got-c.want) <= 1e-7*max(1, math.Abs(c.want)) && got >= c.want) {
				t.Errorf("%s of %v: at most %v more, want %v", c.feature, c.viewer, got, c.want)
			}
		}
	}
}

// What a sum must reach for a score is a little below what gives that score.
func TestThresholdsOfScores(t *testing.T) {
	rows := ShippedSchemas()["millrace.Activity"].Layout
	for scorer, link := range map[string]func(float64) float64{"linear": func(x float64) float64 { return x }, "logistic": func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }} {
		m := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {a: double}\nfeatures: {own: record.shares, f: viewer.a * record.likes}\nscorer: "+scorer+"\nparameters: {weights: {own: 1, f: 1}}\n")
		s, err := m.Bind(rows, nil, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := s.Ceilings(rows)
		for _, sum := range []float64{-20, -1, 0, 1, 5} {
			got := c.Threshold(link(sum))
			if !(got <= sum && got >= sum-1e-5) {
				t.Errorf("%s: a sum must reach %v for the score of %v", scorer, got, sum)
			}
		}
		if scorer == "logistic" {
			for _, floor := range []float64{0, -1, math.Inf(-1), math.NaN()} {
				if got := c.Threshold(floor); !math.IsInf(got, -1) {
					t.Errorf("a sum must reach %v for a score of %v", got, floor)
				}
			}
			if got := c.Threshold(1); !(got > 15 && got < 25) || c.Threshold(2) != got {
				t.Errorf("a sum must reach %v for a score of 1, and %v for one of 2", got, c.Threshold(2))
			}
		}
	}
	home, err := builtinModel(t, "home").Interpreted().Bind(rows, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := home.Ceilings(rows).Columns(); slices.Contains(got, rows.Time()) || slices.Contains(got, rows.Index("language")) {
		t.Errorf("limits are asked for %v", got)
	}
}
