// Package codegen writes Go for model specs: spec, plan, text. What it writes
// has no maps, no interface calls and no allocation, and gives the same bits
// as the interpreter in package relevance.
package codegen

import "errors"

// File is one generated file.
type File struct {
	Name string // its base name: "home.go"
	Text []byte // gofmt'ed Go
}

// Spec is the source of one model spec.
type Spec struct {
	Name string // for messages and the file's header: "home.yaml"
	Text []byte
}

// Generate writes the Go of specs, one file a spec in the order given. The
// error reports every fault of every spec.
func Generate(specs ...Spec) ([]File, error) {
	return nil, errors.New("codegen: not built yet")
}
