// Package celref evaluates filters one record at a time with cel-go's own
// interpreter. It is the reference that tests hold the kernels of
// internal/filter against; nothing serves from it.
package celref

import (
	"errors"

	"github.com/millrace/millrace"
)

// Outcome is what a filter says of a record. Only True keeps it.
type Outcome uint8

// The outcomes; internal/filter defines them.
const (
	True Outcome = iota + 1
	False
	Null
	Error
	NaN
)

func (o Outcome) String() string {
	return [...]string{"none", "true", "false", "null", "error", "nan"}[o]
}

// Input is what a filter is evaluated against. Record and Entity map column
// names, dotted ones included, to nil, bool, int64, float64, string,
// [millrace.Time], []float64 or []string; a name without an entry is null, and
// a nil Entity has none.
type Input struct {
	Record, Entity map[string]any
	Viewer         *millrace.Viewer // nil has no values
	AsOf           millrace.Time
}

// Program is a compiled filter. It is safe for concurrent use.
type Program struct {
}

// Compile compiles a filter. It does not refuse what internal/expr refuses
// beyond CEL.
func Compile(src string) (*Program, error) {
	return nil, errors.New("celref: not built yet")
}

// Eval evaluates the filter for one record.
func (p *Program) Eval(in *Input) Outcome { return Error }
