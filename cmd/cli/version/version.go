// Package version says which version of Millrace this is.
package version

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/display"
)

// Module is the path of Millrace's Go module.
const Module = "github.com/millrace/millrace"

// Release is the version of a release, which the linker sets; see
// scripts/release.
var Release string

// Here returns the version of Millrace in this binary: Release if it is set, else that of the
// module, else "(devel)". In the binary of another module that imports Millrace, it is the
// version that this module requires.
func Here() string {
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path != Module {
				continue
			}
			if m.Replace != nil {
				m = m.Replace
			}
			module = m.Version
		}
	}
	return cmp.Or(Release, module, "(devel)")
}

// Command returns the command version.
func Command() *cobra.Command {
	return display.Looking(&cobra.Command{
		Use:   "version",
		Short: "Say which version this is, and what it was built with and for",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		shown := struct {
			Version string `json:"version"`
			Go      string `json:"go"`
			OS      string `json:"os"`
			Arch    string `json:"arch"`
		}{Here(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
		return output.Write(c.OutOrStdout(), shown, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "millrace %s (%s, %s/%s)\n", shown.Version, shown.Go, shown.OS, shown.Arch)
			return err
		})
	})
}
