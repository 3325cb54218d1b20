package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of a release, which the linker sets; see
// scripts/release.
var release string

func version() string {
	module := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok {
		module = cmp.Or(info.Main.Version, module)
	}
	return cmp.Or(release, module)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is, and what it was built with and for",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "millrace %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
