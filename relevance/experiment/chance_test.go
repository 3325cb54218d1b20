package experiment

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/slot"
)

var viewers = flag.Int("viewers", 50_000, "viewers of each kind of ids that are dealt over 10 layers")

// chi2 returns how far counts are from what is expected, and the z of the normal
// variable that is as far (E. B. Wilson and M. M. Hilferty, "The distribution of
// chi-square", PNAS 17 (1931): the cube root of χ²/k is about normal with mean
// 1 − 2/(9k) and variance 2/(9k)).
func chi2(counts, expected []float64, degrees int) (sum, z float64) {
	for i := range counts {
		d := counts[i] - expected[i]
		sum += d * d / expected[i]
	}
	v := 2 / (9 * float64(degrees))
	return sum, (math.Cbrt(sum/float64(degrees)) - (1 - v)) / math.Sqrt(v)
}

// The 5 % points of χ² (Pearson and Hartley, Biometrika Tables for
// Statisticians I, table 8) are z = 1.645.
func TestChi2(t *testing.T) {
	for degrees, point := range map[int]float64{10: 18.3070, 30: 43.7730, 100: 124.342} {
		_, z := chi2([]float64{1 + math.Sqrt(point)}, []float64{1}, degrees)
		if math.Abs(z-1.6449) > 0.01 {
			t.Errorf("%d degrees: %.4f", degrees, z)
		}
	}
}

// Chance allows |z| of 4.5 once in 147,000 tests; here are about 150, of one
// fixed list of viewers. Both ends count: what is too even is not chance.
const mostZ = 4.5

// TestChance: viewers, of ids that count up and of ids in hexadecimal, over 10
// layers: slots are even, each split is as its weights say, layers and
// experiments are independent of each other.
func TestChance(t *testing.T) {
	const layers = 10
	var src strings.Builder
	src.WriteString("layers:\n")
	for i := range layers {
		fmt.Fprintf(&src, "  - {name: l%d, salt: s%d, unit: viewer}\n", i, i)
	}
	src.WriteString("experiments:\n")
	for i := range layers {
		fmt.Fprintf(&src, "  - {name: a%d, layer: l%d, feeds: [home], state: running, slots: [0-4999], share: 6000, variants: [{name: x, weight: 1000}, {name: y, weight: 9000}]}\n", i, i)
		fmt.Fprintf(&src, "  - {name: b%d, layer: l%d, feeds: [home], state: running, slots: [5000-9999], share: 10000, variants: [{name: x, weight: 3333}, {name: y, weight: 3333}, {name: z, weight: 3334}]}\n", i, i)
	}
	s := compile(t, src.String())
	// The cells of a layer: nothing, and the five variants.
	cells := map[string]int{"": 0, "ax": 1, "ay": 2, "bx": 3, "by": 4, "bz": 5}
	shares := []float64{0.2, 0.03, 0.27, 0.5 * 0.3333, 0.5 * 0.3333, 0.5 * 0.3334}
	for kind, id := range map[string]func(i int) string{
		"counted": func(i int) string { return fmt.Sprintf("member:%d", i) },
		"spread":  func(i int) string { return fmt.Sprintf("%016x", uint64(i)*0x9E3779B97F4A7C15) },
	} {
		var slots [layers][slot.Count]float64
		var single [layers][6]float64
		var pairs [layers][layers][6][6]float64
		var slotByDraw [layers][100]float64
		for i := range *viewers {
			v := &millrace.Viewer{ID: id(i)}
			var cell [layers]int
			for _, x := range s.Assign("home", v).Experiments {
				l := int(x.Layer[1] - '0')
				cell[l] = cells[x.Experiment[:1]+x.Variant]
			}
			for l, c := range cell {
				at := s.layers[l].prefix.Slot(v.ID)
				slots[l][at]++
				slotByDraw[l][at/1000*10+s.experiment(fmt.Sprintf("a%d", l)).prefix.Slot(v.ID)/1000]++
				single[l][c]++
				for m := range l {
					pairs[m][l][cell[m]][c]++
				}
			}
		}
		n := float64(*viewers)
		check := func(what string, counts, expected []float64, degrees int) {
			sum, z := chi2(counts, expected, degrees)
			if math.Abs(z) > mostZ || math.IsNaN(z) {
				t.Errorf("%s, %s: χ² is %.1f of %d degrees, z %.2f", kind, what, sum, degrees, z)
			}
		}
		for l := range layers {
			check(fmt.Sprintf("slots of layer %d", l), slots[l][:], times(n, even(slot.Count)), slot.Count-1)
			check(fmt.Sprintf("splits of layer %d", l), single[l][:], times(n, shares), 5)
			check(fmt.Sprintf("slots by draws of layer %d", l), slotByDraw[l][:], times(n, even(100)), 99)
			for m := range l {
				var counts, expected []float64
				for i := range shares {
					for j := range shares {
						counts = append(counts, pairs[m][l][i][j])
						expected = append(expected, n*shares[i]*shares[j])
					}
				}
				check(fmt.Sprintf("layers %d and %d", m, l), counts, expected, 35)
			}
		}
	}
}

func even(n int) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = 1 / float64(n)
	}
	return all
}

func times(n float64, shares []float64) []float64 {
	all := make([]float64, len(shares))
	for i := range shares {
		all[i] = n * shares[i]
	}
	return all
}

// Of the values of an attribute the three take the same for units, and deal them alike.
func TestUnitsOfAttributesAgree(t *testing.T) {
	python := pythonOf(t)
	s := compile(t, strings.NewReplacer("unit: viewer", "unit: attribute household", "share: 500", "share: 10000", "[0-3999, 4500]", "[0-9999]",
		"    targeting: viewer.country in [\"de\", \"fr\"]\n", "", "    holdout: [9500-9999]\n", "").Replace(shown))
	rule, err := json.Marshal(s.Experiments()[0].Rule)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rule.json")
	if err := os.WriteFile(file, rule, 0o600); err != nil {
		t.Fatal(err)
	}
	units := map[string]bool{
		"5": true, "5.0": true, `"5.5"`: true, "-0.0": true, "true": true, "9007199254740992": true, "-9007199254740993": true, "1e3": true,
		"5.5": false, "1e22": false, "9007199254740994": false, "null": false, "[5]": false, `""`: false, `{"a": 1}`: false,
	}
	values := slices.Sorted(maps.Keys(units))
	var asked []string
	for _, text := range values {
		asked = append(asked, `{"id": "v", "value": `+text+`}`)
	}
	lines := dealtByPython(t, python, file, "home", asked, "--json")
	callers, err := client.ReadRule(rule)
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range values {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		broker := in(s.Assign("home", &millrace.Viewer{ID: "v", Attributes: map[string]any{"household": value}}))
		caller, _ := callers.Assign("home", client.UnitOf(value))
		if broker != lines[i] || broker != caller || (broker != "") != units[text] {
			t.Errorf("%s: the broker deals %q, the client %q, Python %q", text, broker, caller, lines[i])
		}
	}
}

// The broker's set, the Go client's rule and docs/assign.py give 1,000 units the
// same variants. MILLRACE_PYTHON names the Python, or python3 is taken; it needs
// no packages.
func TestPythonAndClientAgree(t *testing.T) {
	python := pythonOf(t)
	r := random(1)
	const elsewhere, drafted = "member:1", "member:2" // of this experiment by chance, and named by others of the layer
	const forcing = `  - {name: later, layer: ranking, feeds: [home, digest], state: running, slots: [9000-9100], share: 10000, forced: {"member:1": x}, variants: [{name: w, weight: 5000}, {name: x, weight: 5000}]}
  - {name: sketch, layer: ranking, feeds: [home, digest], state: draft, slots: [9101-9200], share: 0, forced: {"member:2": z}, variants: [{name: y, weight: 5000}, {name: z, weight: 5000}]}
`
	s := compile(t, replace(replace(replace(replace(replace(replace(shown, "share: 500", "share: 9000"), "[0-3999, 4500]", "[0-6000, 7000-7999]"),
		"control, weight: 5000", "control, weight: 1234"), "treatment, weight: 5000", "treatment, weight: 8766"), "    targeting: viewer.country in [\"de\", \"fr\"]\n", ""), "[home]", "[home, recent]")+forcing)
	units := []string{"alice", elsewhere, drafted, "höchst/ungewöhnlich 名", "\U0001F600", "a b", "\t"}
	for len(units) < 1000 {
		units = append(units, fmt.Sprintf("member:%.*s", 1+r.IntN(30), fmt.Sprint(r.Uint64(), r.Uint64())))
	}
	if in(s.Assign("home", &millrace.Viewer{ID: drafted})) == "z" || in(s.Assign("home", &millrace.Viewer{ID: elsewhere})) != "x" || in(s.Assign("recent", &millrace.Viewer{ID: elsewhere})) == "" {
		t.Error("nobody is elsewhere on one feed alone: the test tries too little")
	}
	n := map[string]int{}
	for _, d := range s.Experiments() {
		rule, err := json.Marshal(d.Rule)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rule.json")
		if err := os.WriteFile(file, rule, 0o600); err != nil {
			t.Fatal(err)
		}
		callers, err := client.ReadRule(rule)
		if err != nil {
			t.Fatal(err)
		}
		for _, feed := range []string{"home", "recent", "digest"} {
			lines := dealtByPython(t, python, file, feed, units)
			for i, unit := range units {
				broker := ""
				if a := s.Assign(feed, &millrace.Viewer{ID: unit}).Experiments; len(a) > 0 && a[0].Experiment == d.Experiment.Name {
					broker = a[0].Variant
				}
				caller, _ := callers.Assign(feed, unit)
				if broker != lines[i] || broker != caller {
					t.Errorf("%q of %s on %s: the broker deals %q, the client %q, Python %q", unit, d.Experiment.Name, feed, broker, caller, lines[i])
				}
				n[broker]++
			}
		}
	}
	if n[""] < 100 || n["control"] < 50 || n["treatment"] < 300 || n["z"] == 0 {
		t.Errorf("%v: the test tries too little", n)
	}
}

// Of random viewers, with attributes, named or not, and inside the targeting or not,
// docs/assign.py says what the broker deals them.
func TestPythonAgreesOnEverybody(t *testing.T) {
	python := pythonOf(t)
	r := random(3)
	s := compile(t, randomDocument(r, 4))
	var all []*millrace.Viewer
	for i := range 1500 {
		v := randomViewer(r)
		if i%4 == 0 {
			v.ID = fmt.Sprintf("viewer:%d", 1000*r.IntN(4)+r.IntN(4))
		}
		all = append(all, v)
	}
	dealt := 0
	for _, d := range s.Experiments() {
		e := s.experiment(d.Experiment.Name)
		rule, err := json.Marshal(d.Rule)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rule.json")
		if err := os.WriteFile(file, rule, 0o600); err != nil {
			t.Fatal(err)
		}
		var asked []string
		for _, v := range all {
			line, err := json.Marshal(map[string]any{"id": v.ID, "value": v.Attributes["country"], "outside": !e.target.admits(v)})
			if err != nil {
				t.Fatal(err)
			}
			asked = append(asked, string(line))
		}
		for i, got := range dealtByPython(t, python, file, e.Feeds[0], asked, "--json") {
			want := ""
			for _, x := range s.Assign(e.Feeds[0], all[i]).Experiments {
				if x.Experiment == e.Name {
					want = x.Variant
				}
			}
			if got != want {
				t.Errorf("%s of %s: Python says %q, the broker deals %q", asked[i], e.Name, got, want)
			}
			if want != "" {
				dealt++
			}
		}
	}
	if dealt < 100 {
		t.Errorf("%d are dealt a variant: the test tries too little", dealt)
	}
}

// dealtByPython is what docs/assign.py says of units, by the rule in a file.
func dealtByPython(t *testing.T, python, file, feed string, units []string, more ...string) []string {
	t.Helper()
	cmd := exec.Command(python, append([]string{"-B", filepath.Join("..", "..", "docs", "assign.py"), file, feed}, more...)...)
	cmd.Env = append(os.Environ(), "PYTHONIOENCODING=utf-8")
	cmd.Stdin = strings.NewReader(strings.Join(units, "\n") + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(units) {
		t.Fatalf("%d lines for %d units", len(lines), len(units))
	}
	return lines
}

// pythonOf is the Python that MILLRACE_PYTHON names, or else python3, if there is one.
func pythonOf(t *testing.T) string {
	t.Helper()
	python, given := os.LookupEnv("MILLRACE_PYTHON")
	if !given {
		python = "python3"
	}
	python, err := exec.LookPath(python)
	switch {
	case err != nil && given:
		t.Fatalf("MILLRACE_PYTHON: %v", err)
	case err != nil:
		t.Skip("no python3: install one, or set MILLRACE_PYTHON")
	}
	return python
}
