// Command mutants finds out whether tests notice mistakes. It puts small faults into the code of
// a package, one at a time, and runs those of the package's tests that come by, the fastest first.
// It reports the faults that no test notices. A person then judges whether such a fault changes nothing that anybody could see, or
// a test is missing.
//
// All faults of a package are built into one test binary, so that each fault costs one run of
// the tests but no build. An environment variable switches one of them on at run time (mutant
// schemata: Untch, Offutt and Harrold, "Mutation analysis using mutant schemata", 1993). The
// source files stay as they are: go build gets the changed ones as an overlay.
//
// The faults are those that a careless engineer makes: a condition negated, half
// of one forgotten, a bound off by one, an error ignored, a statement left out,
// two arguments swapped, true returned instead of false or the other way round.
package main
