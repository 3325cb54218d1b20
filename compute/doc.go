// Package compute is what generated Go is made of: the arithmetic of models, the
// loops of filters, the reads of Avro bodies, and the registers that generated
// code enters by its init functions. The interpreter and the engine call the same
// functions, so that generated code gives the same bits as they do.
//
// It is public because generated code lives in repositories of its own. A team's
// binary is cmd/cli's Main and the packages of generated code that it imports;
// "millrace init" writes such a module.
//
// # The promise
//
// Generated code has a version, [Version] for what this release writes. A file of
// version N refers to the constant RunsVersionN:
//
//   - A release that has RunsVersionN compiles and runs it: everything that code of
//     version N calls is there, with the signature and the results that it had.
//     testdata/versionN holds code as it was written then, in which every call
//     occurs; tests compile it, compare its scores with the interpreter's, and fail
//     when code that is written today calls what it does not.
//   - A release that does not have it does not compile it. The compiler names
//     compute.RunsVersionN and the line, which says what to do: run the millrace
//     generate of the release that go.mod names. The release is then too old for
//     the code (N is above its Version), or no longer runs it. Releases run at
//     least the version before their own.
//
// Nothing else of this package is for generated code, nothing of it is for code
// that people write, and both may change with any release.
//
// # What the version does not say
//
// Generated code is found by its shape: a digest of what a model computes, or of a
// schema. A release may plan the same spec another way, and then has no code for
// it: the interpreter serves the model with the same scores, more slowly, and the
// receipts of answers and the metric millrace_broker_answers_total say so.
// "millrace generate --check" finds such files before they serve.
package compute

// Version is the version of the generated code that this release writes.
const Version = 1

// RunsVersion1 says that this release runs generated code of version 1, which
// refers to it.
const RunsVersion1 = true
