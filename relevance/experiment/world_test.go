package experiment

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// shown is the document of the package comment.
const shown = `
layers:
  - name: ranking
    salt: ranking-2026
    unit: viewer
    holdout: [9500-9999]
experiments:
  - name: fresher
    layer: ranking
    feeds: [home]
    state: running
    slots: [0-3999, 4500]
    share: 500
    targeting: viewer.country in ["de", "fr"]
    variants:
      - {name: control, weight: 5000}
      - {name: treatment, weight: 5000, set: {model: home2, limit: 30}}
    forced: {alice: treatment}
`

// names is what a test knows.
type names []string

func (n names) HasFeed(name string) bool  { return n.has("feed", name) }
func (n names) HasModel(name string) bool { return n.has("model", name) }
func (n names) has(kind, name string) bool {
	for _, s := range n {
		if s == kind+" "+name {
			return true
		}
	}
	return false
}

func (n names) IsPrivate(name string) (bool, error) {
	if n.has("unread", name) {
		return false, &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: "feed " + name + " cannot be read", WayOut: "restore it"}
	}
	return n.has("private", name), nil
}

func (n names) CheckFilter(src string) error {
	if strings.Contains(src, "nosuch") && !n.has("field", "nosuch") {
		return &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field nosuch in record"}
	}
	return nil
}

func (n names) CheckWeights(feed, model string, set map[string]float64) error {
	for name := range set {
		if !n.has("weight", feed+"/"+model+"/"+name) {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights", Detail: "no parameter " + name, WayOut: "did you mean likes?"}
		}
	}
	return nil
}

func parse(t testing.TB, src string) Document {
	t.Helper()
	d, err := Parse("test.yaml", []byte(src))
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return d
}

func compile(t testing.TB, docs ...string) *Set {
	t.Helper()
	var all []Document
	for _, src := range docs {
		all = append(all, parse(t, src))
	}
	s, err := admitAll(all, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(docs, "\n"))
	}
	return s
}

// faultsOf returns the lines of an Error.
func faultsOf(t testing.TB, err error) []string {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no Error", err)
	}
	return strings.Split(err.Error(), "\n")
}

// randomDocument returns layers of viewers and, in each, experiments that
// exclude each other, in YAML. Layers set different parameters.
func randomDocument(r *rand.Rand, layers int) string {
	var l, e strings.Builder
	sets := []string{"model: m%d", "limit: 1%d", "cap_per_entity: %d", "window: %dh", `filter: "record.n > %d"`}
	for i := range layers {
		unit := "viewer"
		if r.IntN(4) == 0 {
			unit = "attribute country"
		}
		held := r.IntN(1000)
		fmt.Fprintf(&l, "  - {name: layer%d, salt: salt%d, unit: %s, holdout: [%d-9999]}\n", i, i, unit, 9999-held)
		for n, at := 0, 0; n < 1+r.IntN(4); n++ {
			at += r.IntN(800)
			from, to := at, at+100+r.IntN(1200)
			at = to + 1
			fmt.Fprintf(&e, "  - name: e%d-%d\n    layer: layer%d\n    slots: [%d-%d]\n    share: %d\n", i, n, i, from, to, 100+r.IntN(9901))
			fmt.Fprintf(&e, "    feeds: %s\n", []string{"[home]", "[home, recent]", "[recent]"}[r.IntN(3)])
			fmt.Fprintf(&e, "    state: %s\n", []State{Running, Running, Running, Running, Draft, Paused, Stopped}[r.IntN(7)])
			fmt.Fprintf(&e, "    monitored: %v\n", r.IntN(2) == 0)
			if r.IntN(2) == 0 {
				fmt.Fprintf(&e, "    targeting: %s\n", []string{`viewer.country in ["c1", "c3"]`, `viewer.age > 30.0 && viewer.country != "c2"`, `has(viewer.beta) && viewer.beta`}[r.IntN(3)])
			}
			e.WriteString("    variants:\n")
			for left, v := 10_000, 0; left > 0 || v == 0; v++ {
				weight := min(left, r.IntN(7000))
				if v == 4 {
					weight = left
				}
				left -= weight
				fmt.Fprintf(&e, "      - {name: v%d, weight: %d, set: {%s}}\n", 9-v, weight, fmt.Sprintf(sets[i%len(sets)], v))
			}
			fmt.Fprintf(&e, "    forced: {viewer:%d: v9}\n", 1000*i+n)
		}
	}
	return "layers:\n" + l.String() + "experiments:\n" + e.String()
}

// randomViewer returns a viewer, now and then without an id or an attribute.
func randomViewer(r *rand.Rand) *millrace.Viewer {
	v := &millrace.Viewer{ID: fmt.Sprintf("viewer:%d", r.IntN(10_000)), Attributes: map[string]any{}}
	if r.IntN(20) == 0 {
		v.ID = ""
	}
	switch r.IntN(8) {
	case 0:
	case 1:
		v.Attributes["country"] = float64(r.IntN(100))
	default:
		v.Attributes["country"] = fmt.Sprintf("c%d", r.IntN(100))
	}
	if r.IntN(3) > 0 {
		v.Attributes["age"] = float64(r.IntN(80))
	}
	if r.IntN(2) == 0 {
		v.Attributes["beta"] = r.IntN(2) == 0
	}
	return v
}

// admitAll is [Admit] of documents that are all about to be put in place.
func admitAll(docs []Document, known Known) (*Set, error) { return compileAll(docs, 0, 0, known) }
