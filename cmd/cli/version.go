package cli

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the version of a release, which the linker sets; see
// scripts/release.
var release string

// version is Millrace's, of which a team's binary is a build too.
func version() string {
	module := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path != millracePath {
				continue
			}
			if m.Replace != nil {
				m = m.Replace
			}
			module = m.Version
		}
	}
	return cmp.Or(release, module, "(devel)")
}

func versionCommand() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "version",
		Short: "Say which version this is, and what it was built with and for",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *form, _ []string) error {
		shown := struct {
			Version string `json:"version"`
			Go      string `json:"go"`
			OS      string `json:"os"`
			Arch    string `json:"arch"`
		}{version(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
		return output.write(c.OutOrStdout(), shown, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "millrace %s (%s, %s/%s)\n", shown.Version, shown.Go, shown.OS, shown.Arch)
			return err
		})
	})
}
