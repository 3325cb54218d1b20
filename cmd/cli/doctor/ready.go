package doctor

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/display"
)

// Ready is for images without a shell, whose health the container's
// engine asks by a command.
func Ready() *cobra.Command {
	var ports []string
	c := display.Looking(&cobra.Command{
		Use:   "ready",
		Short: "Say whether roles are ready, by their admin ports; fails unless all are",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		ctx, cancel := context.WithTimeout(c.Context(), checkTimeout)
		defer cancel()
		all := askRoles(ctx, ports)
		fault := unready(all)
		return errors.Join(fault, output.Write(c.OutOrStdout(), all, func(w io.Writer) error {
			if fault != nil {
				return nil // which says it
			}
			var says []string
			for _, r := range all {
				if r.Why != "" {
					r.Admin += " (" + r.Why + ")"
				}
				says = append(says, r.Admin)
			}
			display.Printf(w, "ready: %s\n", strings.Join(says, ", "))
			return nil
		}))
	})
	c.Flags().StringSliceVar(&ports, "admin", []string{"127.0.0.1:6060"}, "admin ports, host:port each")
	return c
}
