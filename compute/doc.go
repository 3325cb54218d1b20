// Package compute has the functions that generated Go calls: the arithmetic of models,
// the loops of filters, and the reads of Avro bodies. It also has the registers into
// which generated code puts itself by its init functions. The interpreter of models and
// the engine of filters call the same functions, so that generated code gives the same
// bits as they do.
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
//   - A release that has RunsVersionN compiles and runs the file: everything that code of
//     version N calls is there, with the same signature and the same results.
//     testdata/versionN holds generated code of version N in which every such call occurs.
//     Tests compile it, compare its scores with the interpreter's, and fail if the
//     generator of today writes a call that does not occur there.
//   - A release that lacks RunsVersionN cannot compile the file: it is too old for the code
//     (N is above its Version), or it has dropped version N. Releases run at least the
//     version before their own. The compiler's error names compute.RunsVersionN and the
//     line in the file, where a comment says what to do: run the millrace generate of the
//     release that go.mod names.
//
// What generated code does not call may change with any release, and code that people write
// should call nothing of this package.
//
// # What the version does not say
//
// Generated code is found by its shape: a digest of what a model computes, or of a
// schema. A release may plan the same spec another way, and then finds no code for
// it: the interpreter serves the model with the same scores, more slowly. The
// receipts of answers and the metric millrace_broker_answers_total say so.
// "millrace generate --check" finds such files before they serve.
package compute

// Version is the version of the generated code that this release writes.
const Version = 1

// RunsVersion1 says that this release runs generated code of version 1, which
// refers to it.
const RunsVersion1 = true
