// Command millrace is one binary with every role and every tool of the feed index.
package main

import (
	"github.com/millrace/millrace/cmd/cli"
)

func main() { cli.Main() }
