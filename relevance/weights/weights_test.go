package weights

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// The same weights have one form, which reads as they were, to the last bit.
func TestFormReadsBack(t *testing.T) {
	if Form(nil) != "" || Form(map[string]float64{}) != "" || Sum("") != "" {
		t.Error("no weights have a form")
	}
	if set, err := Read("", ""); err == nil {
		t.Errorf("nothing reads as %v", set)
	}
	if got, want := Form(map[string]float64{"b": 2, "a": 0.5, "type.share": -1e-9, "<&\u2028": 1e21}), `{"\u003c\u0026\u2028":1e+21,"a":0.5,"b":2,"type.share":-1e-9}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// As sha256sum says it.
	if got, want := Sum(`{"scale":-2}`), "0b2e587bb22fb7e4f9d93eb87eeb34ed6aead5f6919da07959bb1d18a152acd2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		set := map[string]float64{}
		for range 1 + r.IntN(5) {
			x := math.Float64frombits(r.Uint64())
			if math.IsNaN(x) || math.IsInf(x, 0) {
				x = math.Copysign(0, -1)
			}
			set[fmt.Sprintf("f%d.%c", r.IntN(9), rune(32+r.IntN(0x2fff)))] = x
		}
		form := Form(set)
		got, err := Read(form, Sum(form))
		if err != nil || len(got) != len(set) {
			t.Fatalf("%s: %v, %v", form, got, err)
		}
		for name, x := range set {
			if math.Float64bits(got[name]) != math.Float64bits(x) {
				t.Fatalf("%s: %q is %v, want %v", form, name, got[name], x)
			}
		}
	}
}

// Another text than Form writes is refused though it means the same: it would go
// by another checksum.
func TestReadRefuses(t *testing.T) {
	for _, form := range []string{
		`{"b":2,"a":1}`, `{"a": 1}`, `{"a":1.0}`, `{"a":1}{"b":2}`, `{"a":1,"a":1}`, `{"a":null}`, `{}`, `null`, `[1]`, `{"a":"1"}`, `{"a":1e400}`, `{"a":1} `, `{"<":1}`, "\xff",
	} {
		if set, err := Read(form, Sum(form)); err == nil {
			t.Errorf("%s reads as %v", form, set)
		}
	}
	good := Form(map[string]float64{"a": 1})
	for _, c := range []struct{ form, sum, says string }{
		{good, Sum(good + " "), "they have the checksum"}, {good, "", "they have the checksum"}, {"", Sum(good), "they have the checksum"},
		{strings.Repeat("x", MaxBytes+1), "", "more than"},
	} {
		if _, err := Read(c.form, c.sum); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.20q with %.12q: %v, want %q", c.form, c.sum, err, c.says)
		}
	}
}

// Weights that are not finite have no form: who writes them has checked nothing.
func TestFormOfNoNumber(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("NaN has a form")
		}
	}()
	Form(map[string]float64{"a": math.NaN()})
}
