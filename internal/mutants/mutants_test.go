package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// Of a small module it is known which faults its tests notice.
func TestWhatTestsNotice(t *testing.T) {
	var out strings.Builder
	c := config{packages: []string{"."}, n: 100, seed: 1, dir: "testdata/fixture", patience: 2 * time.Second, out: &out}
	told := map[string]string{}   // by fault
	for seed := range uint64(6) { // faults that lie in one another come by turns
		c.seed = seed
		out.Reset()
		if err := c.run(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		lines := strings.Split(out.String(), "\n")
		for i, line := range lines {
			if _, fault, ok := strings.Cut(line, ": "); ok && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "    ") {
				told[fault] = strings.TrimSpace(lines[i+1])
			}
		}
	}
	for fault, want := range map[string]string{
		"condition negated: if x < least {":                                          "TestClamp",
		"bound: if x > most {":                                                       "NOT NOTICED", // equal either way
		"second half forgotten: return x > limit && x != 13":                         "NOT NOTICED",
		"bound: return x > limit && x != 13":                                         "NOT NOTICED: " + unreached,
		"statement left out: x++":                                                    "NOT NOTICED: " + unreached,
		"arguments swapped: func Between(x, a, b int) int { return Clamp(x, a, b) }": "TestClamp",
		"statement left out: sum += n":                                               "TestForever",
		"statement left out: mu.Lock()":                                              "fatal error: sync: unlock of unlocked mutex",
		"statement left out: n--":                                                    "tests do not end",
	} {
		if told[fault] != want {
			t.Errorf("%q is told as %q, not %q", fault, told[fault], want)
		}
	}
	if t.Failed() {
		t.Logf("%q", told)
	}
	if len(told) < 11 {
		t.Errorf("only %d kinds of faults were tried", len(told))
	}
	c.least = 100
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "fewer than 100 in a hundred") {
		t.Errorf("faults that are not noticed pass: %v", err)
	}
}

// A run that is ended early tells what it knows by then.
func TestEndedEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	c := config{packages: []string{"."}, n: 100, seed: 1, dir: "testdata/fixture", patience: 2 * time.Second, out: endAt{&out, "\n    Test", cancel}}
	if err := c.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(out.String(), " together") {
		t.Errorf("it tells nothing of what it knows:\n%s", out.String())
	}
}

// endAt writes, and ends what is under way when some text is written.
type endAt struct {
	to   io.Writer
	text string
	end  func()
}

func (w endAt) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.text) {
		w.end()
	}
	return w.to.Write(b)
}
