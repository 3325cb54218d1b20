package compute_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/millrace/millrace/compute"
)

// What the page of the functions says of a decay gives the bits of Decay: its examples,
// and where there is a Python its recipe too.
func TestDecayOfThePage(t *testing.T) {
	page, err := os.ReadFile("../internal/expr/DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	recipe := regexp.MustCompile("(?s)```python\n(.*?)```").FindSubmatch(page)
	if recipe == nil {
		t.Fatal("the page has no recipe")
	}
	examples := regexp.MustCompile(`(?m)^decay\((\S+), (\S+)\)\.hex\(\) +# (\S+)$`).FindAllSubmatch(recipe[1], -1)
	if len(examples) != 4 {
		t.Errorf("%d examples are found, want 4", len(examples))
	}
	for _, e := range examples {
		var x [3]float64
		for i := range x {
			if x[i], err = strconv.ParseFloat(string(e[i+1]), 64); err != nil {
				t.Fatal(err)
			}
		}
		if got := compute.Decay(x[0], x[1]); got != x[2] {
			t.Errorf("Decay(%v, %v) is %x, and the page says %s", x[0], x[1], got, e[3])
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no python3")
	}
	script := bytes.NewBuffer(recipe[1])
	var want []float64
	r := rand.New(rand.NewPCG(5, 8))
	for range 5000 {
		half := math.Exp(r.Float64() * 16)
		age := half * math.Exp(r.Float64()*20-13.1) // up to about 990 half-lives
		want = append(want, compute.Decay(age, half))
		fmt.Fprintf(script, "print(repr(decay(%s, %s)))\n", strconv.FormatFloat(age, 'e', -1, 64), strconv.FormatFloat(half, 'e', -1, 64))
	}
	c := exec.CommandContext(t.Context(), python, "-")
	c.Stdin = script
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Fields(out)
	if len(lines) != len(want) {
		t.Fatalf("%d results of %d", len(lines), len(want))
	}
	for i, w := range want {
		if got, err := strconv.ParseFloat(string(lines[i]), 64); err != nil || got != w {
			t.Fatalf("the recipe gives %s, and Decay %v", lines[i], w)
		}
	}
}
