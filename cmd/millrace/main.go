// Command millrace is every role and tool of the feed index in one binary.
package main

import (
	"github.com/millrace/millrace/cmd/cli"
)

func main() { cli.Main() }
