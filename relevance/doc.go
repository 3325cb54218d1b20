// Package relevance scores records: model specs and their parameters, the
// registry of models that serve, and the interpreter, which is the exact
// reference of the Go that package codegen writes.
package relevance
