// Package figure prints what a benchmark measured in the form that make bench
// collects.
package figure

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// line is one figure.
type line struct {
	Figure string   `json:"figure"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Goal   *float64 `json:"goal,omitempty"`

	Processor string `json:"processor,omitempty"` // figures differ by family
}

// Print writes one figure as a line of JSON to standard output. Names stay
// stable; goal is in the same unit as value.
func Print(name string, value float64, unit string, goal float64) {
	line{name, value, unit, &goal, processor()}.print()
}

// Tell is Print of a figure that has no goal.
func Tell(name string, value float64, unit string) { line{name, value, unit, nil, processor()}.print() }

var processor = sync.OnceValue(Processor)

func (l line) print() {
	b, err := json.Marshal(l)
	if err != nil {
		panic(fmt.Sprintf("figure %s: %v", l.Figure, err)) // NaN or Inf: a bug of the benchmark
	}
	os.Stdout.Write(append(b, '\n'))
}
