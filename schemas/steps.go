package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Step is one operation of the decoder from a schema to itself: what a
// generator of decoders needs to know. Steps follow the body, the fields of
// nested records in one row.
type Step struct {
	Op      string   // "boolean", "int", "long", "time", "float", "double", "bytes", "string", "fixed", "enum", "array", "map", "union" or "null"
	Field   string   // dotted path
	Column  int      // where the value goes, or -1
	Size    int      // bytes of a fixed
	Symbols []string // of an enum
	Subs    [][]Step // of the items, or of each branch
}

var opNames = map[op]string{
	opBoolean: "boolean", opInt: "int", opLong: "long", opTime: "time", opFloat: "float", opDouble: "double", opBytes: "bytes",
	opString: "string", opFixed: "fixed", opEnum: "enum", opArray: "array", opMap: "map", opUnion: "union", opNull: "null",
}

// Steps returns how bodies of s are decoded into its own layout.
func (s *Schema) Steps() ([]Step, error) {
	d, err := NewDecoder(s, s)
	if err != nil {
		return nil, err
	}
	return exported(d.plan), nil
}

func exported(p plan) []Step {
	var steps []Step
	for i := range p {
		s := &p[i]
		x := Step{Op: opNames[s.op], Field: s.path, Column: -1, Size: s.n}
		if s.put != putNothing || s.op == opNull {
			x.Column = s.at
		}
		for _, symbol := range s.syms {
			x.Symbols = append(x.Symbols, string(symbol))
		}
		for _, sub := range s.subs {
			x.Subs = append(x.Subs, exported(sub))
		}
		steps = append(steps, x)
	}
	return steps
}

// Shape identifies what a decoder from s to itself does: the canonical form,
// and the columns with their kinds and roles. Generated decoders are found by
// it; a fingerprint of 64 bits alone could be met on purpose.
func (s *Schema) Shape() string {
	h := sha256.New()
	fmt.Fprintln(h, s.canonical)
	for _, f := range s.layout.Fields() {
		fmt.Fprintf(h, "%q %d %t %q\n", f.Name, f.Kind, f.Nullable, f.Role)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
