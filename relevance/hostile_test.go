package relevance

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// specOf is a spec of as many features as have room, each of an expression.
func specOf(expression, weights string, bytes int) string {
	var b strings.Builder
	b.WriteString("name: a\nversion: \"1\"\nschemas: [millrace.Activity]\nscorer: linear\nfeatures:\n")
	n := 0
	for ; b.Len()+len(expression)+40 < bytes && n < maxFeatures; n++ {
		fmt.Fprintf(&b, "  f%d: \"%s\"\n", n, expression)
	}
	b.WriteString("parameters:\n  weights:\n")
	for i := range n {
		fmt.Fprintf(&b, weights, i)
	}
	return b.String()
}

// TestHostileSpecsCostLittle (P20): what a spec costs until it is refused does
// not grow with the faults in it, or with the length of the line that each is
// in. All that is allocated counts, also what is garbage by then.
func TestHostileSpecsCostLittle(t *testing.T) {
	descending := &strings.Builder{}
	for i := range 30_000 {
		fmt.Fprintf(descending, "%d: 1, ", 30_000-i)
	}
	oneLine := &strings.Builder{}
	for i := range 4000 {
		fmt.Fprintf(oneLine, "f%d: \"record.lkes\", ", i)
	}
	for name, src := range map[string]string{
		"unknown fields":   specOf("1+record.lkes+record.x+record.y+record.z", "    f%d: 1\n", 200<<10),
		"patterns":         specOf(`record.language.matches(\"(a{9}){99}\") ? 1.0 : 0.0`, "    f%d: 1\n", 200<<10),
		"unknown weights":  specOf("1", "    "+strings.Repeat("x", 58)+"%d: 1\n", 100<<10),
		"one line":         "name: a\nversion: \"1\"\nschemas: [millrace.Activity]\nscorer: linear\nfeatures: {" + oneLine.String() + "f: \"1\"}\n",
		"unknown keys":     strings.Repeat("nme: a\n", 1) + strings.Repeat("vrsion: 1\n", 20_000),
		"a descending key": "name: a\nversion: \"1\"\nscorer: linear\nfeatures: {a: \"lookup(t, 1, 0)\"}\nparameters: {tables: {t: {" + descending.String() + "}}}\n",
		"deep lists":       "name: " + strings.Repeat("[", 64<<10),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Parse("spec.yaml", []byte(src), ShippedSchemas())
			var faults *SpecError
			if !errors.As(err, &faults) || len(faults.Problems) > maxProblems+1 {
				t.Fatalf("%.200v", err)
			}
			text := err.Error()
			runtime.ReadMemStats(&after)
			t.Logf("%d bytes of spec, %d faults, %d KiB; %.120s", len(src), len(faults.Problems), (after.TotalAlloc-before.TotalAlloc)>>10, text)
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("allocated %d MiB", took>>20)
			}
		})
	}
}
