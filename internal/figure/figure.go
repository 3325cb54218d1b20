// Package figure prints what a benchmark measured in the form that make bench
// collects.
package figure

import (
	"encoding/json"
	"fmt"
	"os"
)

// Print writes one figure as a line of JSON to standard output. Names stay
// stable; goal is in the same unit as value.
func Print(name string, value float64, unit string, goal float64) {
	b, err := json.Marshal(struct {
		Figure string  `json:"figure"`
		Value  float64 `json:"value"`
		Unit   string  `json:"unit"`
		Goal   float64 `json:"goal"`
	}{name, value, unit, goal})
	if err != nil {
		panic(fmt.Sprintf("figure %s: %v", name, err)) // NaN or Inf: a bug of the benchmark
	}
	os.Stdout.Write(append(b, '\n'))
}
