package document

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// bomb is 428 bytes or so that stand for 9 to the power of levels texts.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < levels; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	return b.String()
}

// repeated is a text of about n bytes.
func repeated(before, s, after string, n int) string {
	return before + strings.Repeat(s, (n-len(before)-len(after))/len(s)) + after
}

// hostile are documents of the largest size or near it.
func hostile() map[string]string {
	const n = MaxBytes
	deeper := &strings.Builder{}
	for i := 0; deeper.Len() < n; i++ {
		deeper.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	many := &strings.Builder{}
	for i := 0; many.Len() < n-20; i++ {
		fmt.Fprintf(many, "k%d: %d.5\n", i, i)
	}
	all := map[string]string{"deeper": deeper.String()[:n], "keys": many.String(), "bomb": bomb(40)}
	for name, s := range map[string][3]string{
		"open lists": {"", "[", ""}, "lists in lists": {"a: ", "[", strings.Repeat("]", n/2)}, "empty lists": {"a: [", "[],", "]"},
		"open mappings": {"", "{a: ", ""}, "dashes": {"", "- ", ""}, "keys of keys": {"", "? ", ""}, "colons": {"", "a: ", ""},
		"one text": {"a: ", "x", ""}, "one quoted text": {`a: "`, "x", `"`}, "an open text": {`a: "`, "x ", ""}, "escapes": {`a: "`, `\u0041`, `"`},
		"numbers": {"a: [", "1,", "]"}, "longer numbers": {"a: [", "12.5, ", "]"}, "a list of lines": {"a:\n", "- 1\n", ""},
		"anchors": {"a: ", "&a ", ""}, "aliases": {"a: &a x\nb: [", "*a,", "]"}, "tags": {"a: ", "!a ", ""}, "one tag": {"a: ", "!", ""},
		"comments": {"", "#\n", ""}, "documents": {"", "---\n", ""}, "lines of a text": {"a: |\n", " x\n", ""}, "folded": {"a: >\n", " x\n", ""},
		"line ends": {"a: x", "\n", ""}, "returns": {"a: x", "\r", ""}, "spaces": {"a: x", " ", ""}, "directives": {"", "%\n", ""}, "zeros": {"a: ", "\x00", ""},
	} {
		all[name] = repeated(s[0], s[1], s[2], n)
		if perRepeat := marks([]byte(s[1])); perRepeat > 0 { // and as much of it as is read at all
			times := (maxMarks - marks([]byte(s[0]+s[2]))) / perRepeat
			all[name+", read"] = s[0] + strings.Repeat(s[1], min(times, n/len(s[1])-10)) + s[2]
		}
	}
	return all
}

// allocated returns the bytes that do allocates, dropped ones included.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestHostileDocumentsCostLittle (P20): no document within the size costs more
// than 64 MiB, even counting what the collector could take back meanwhile.
func TestHostileDocumentsCostLittle(t *testing.T) {
	for name, src := range hostile() {
		t.Run(name, func(t *testing.T) {
			if len(src) > MaxBytes {
				t.Fatalf("%d bytes are refused by their size", len(src))
			}
			var err error
			bytes := allocated(func() { _, err = Parse([]byte(src)) })
			if bytes > 64<<20 {
				t.Errorf("allocated %d MiB", bytes>>20)
			}
			t.Logf("%d KiB: %.100v", bytes>>10, err)
		})
	}
}

// TestAliasBomb: what stands for something else is refused where it stands.
func TestAliasBomb(t *testing.T) {
	_, err := Parse([]byte(bomb(11)))
	var faults *Error
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	if f := faults.Faults[0]; f.Line != 1 || f.Col != 5 || f.Detail != "the anchor &a0" {
		t.Errorf("%+v", f)
	}
	if len(faults.Faults) != maxFaults {
		t.Errorf("%d faults are told", len(faults.Faults))
	}
	for src, want := range map[string]string{
		"a: &x 1\nb: *x":                "line 1, column 4: the anchor &x",
		"b: *x":                         "unknown anchor",
		"a: {<<: {b: 1}}":               "line 1, column 5: the merge key <<; write the values out",
		"a: !!binary aGk=":              "line 1, column 4: the tag !!binary",
		"? [a]\n: b":                    "a key is a list or a mapping",
		"a: 1\n---\nb: 2":               "line 3, column 1: a second document; keep one document in a file",
		"a: 1\n---\n---\nb: 2":          "line 4, column 1: a second document; keep one document in a file",
		"a: b: c":                       "line 1, column 4: not YAML: mapping values are not allowed in this context; put the text in quotes",
		"a: 1\nb: [1,\nc: 2\n":          "not YAML",
		"a: " + strings.Repeat("[", 33): "not YAML",
		strings.Repeat("- ", 33) + "1":  "more than 32 deep",
		strings.Repeat(" ", MaxBytes+1): "more than 524288 bytes",
		strings.Repeat("a\n", 1<<16+1):  "line ends, commas",
	} {
		if _, err := Parse([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: want %q in %v", src, want, err)
		}
	}
	for _, src := range []string{"", "\n", "# a\n", "---\n", "a: 1\n---\n", "~"} {
		if _, err := Parse([]byte(src)); err != nil {
			t.Errorf("%q: %v", src, err)
		}
	}
}

// A field is found where its key stands, and what is not there at the last key
// before it.
func TestFind(t *testing.T) {
	n, err := Parse([]byte("a: 1\nb:\n  c: [x, {d: 1}]\n  spiffe://x/y.z: [p]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]int{
		"a": {1, 1}, "b": {2, 1}, "b.c": {3, 3}, "b.c[1]": {3, 10}, "b.c[1].d": {3, 11}, "b.c[0]": {3, 7}, "b.spiffe://x/y.z": {4, 3}, "b.spiffe://x/y.z[0]": {4, 20},
		"": {1, 1}, "none": {1, 1}, "b.none.c": {2, 1}, "b.c[7].d": {3, 3}, "b.c[": {3, 3}, "b.c[x]": {3, 3}, "ab": {1, 1}, "a.b": {1, 1},
	} {
		if line, col := n.Find(path); line != want[0] || col != want[1] {
			t.Errorf("%s is found in line %d, column %d; want %v", path, line, col, want)
		}
	}
	if line, col := (*Node)(nil).Find("a"); line != 1 || col != 1 {
		t.Errorf("in nothing: %d, %d", line, col)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a: 1\nb: [x, 'y', \"z\"]\nc: {d: ~}\n")
	f.Add("&a [*a]")
	f.Add("a: |\n  b\n? c\n: - d\n  - e")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse([]byte(s))
		if err == nil && n != nil && n.Line < 1 {
			t.Fatalf("%+v", n)
		}
	})
}

func BenchmarkHostile(b *testing.B) {
	for name, src := range hostile() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse([]byte(src))
			}
		})
	}
}

// A text that ends in the middle of its line is told at that line, not where the map
// around it begins.
func TestBreaksAreToldAtTheirLine(t *testing.T) {
	for src, want := range map[string]string{
		"features:\n  a: record.likes\n  gopher: \"go\" in record.tags\n  b: record.x\n": "line 3,",
		"a: 1\nb:\n  c: 1\n  d: 2\n  e: 'x' y\n":                                         "line 5,",
		"a: 1\nb: [1, 2\nc: 3\n":                                                         "line 2,",
		"\"go\" in x\n":                                                                  "line 1,",
	} {
		if _, err := Parse([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", src, err, want)
		}
	}
}
