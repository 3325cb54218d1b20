// Package figure prints what a benchmark measured, in the form that the Makefile collects,
// together with the goal for it.
package figure

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// line is one figure as JSON.
type line struct {
	Figure string   `json:"figure"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Goal   *float64 `json:"goal,omitempty"`
	Missed bool     `json:"missed,omitempty"` // by more than the goal allows

	Processor string `json:"processor,omitempty"` // its model, since figures depend on it
}

// Print writes one figure as a line of JSON to standard output, with its goal if it has one.
// Goals are found by name, so a figure keeps its name. It panics if value is NaN or infinite.
func Print(name string, value float64, unit string) {
	l := line{Figure: name, Value: value, Unit: unit, Processor: processor()}
	if g := goalOf(name); g != nil {
		l.Goal, l.Missed = &g.value, g.misses(value)
	}
	b, err := json.Marshal(l)
	if err != nil {
		panic(fmt.Sprintf("figure %s: %v", l.Figure, err)) // NaN or Inf: a bug of the benchmark
	}
	os.Stdout.Write(append(b, '\n'))
}

var processor = sync.OnceValue(Processor)
