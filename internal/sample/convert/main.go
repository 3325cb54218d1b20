// Command convert writes the bundled sample network from a CSV data set of the
// LDBC Social Network Benchmark:
//
//	go run ./internal/sample/convert -from ldbc-snb-sf0003 -to internal/sample/data
//
// A developer runs it by hand when the form of the sample changes; no build runs it.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	from := flag.String("from", "", "the `folder` of the data set, with dynamic/ and static/ in it")
	to := flag.String("to", "", "the `folder` to write to")
	flag.Parse()
	if err := run(*from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "convert:", err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	net, err := read(os.DirFS(from))
	if err != nil {
		return err
	}
	return net.write(to)
}
