// Command mutants asks whether tests notice mistakes: it puts small faults into
// the code, one at a time, and runs the package's tests. What no test notices is
// reported, to be judged by a person: the fault changes nothing that anybody
// could see, or a test is missing.
//
// All faults of a package are built into one test binary, each behind a switch
// that is thrown at run time by an environment variable (mutant schemata, Untch,
// Offutt and Harrold, "Mutation analysis using mutant schemata", 1993), so a
// fault costs a run of the tests and not a build. The tree itself is not
// touched: the changed files are an overlay of the build.
//
// The faults are those that a careless engineer makes: a condition negated, half
// of one forgotten, a bound off by one, an error ignored, a statement left out,
// two arguments swapped, another truth returned.
package main
