package doctor

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/wait"
)

// Ready returns the command ready. A container engine runs it as the health check of
// images that have no shell.
func Ready() *cobra.Command {
	var ports []string
	var patience time.Duration
	c := display.Looking(&cobra.Command{
		Use:   "ready",
		Short: "Say whether roles are ready, by their admin ports; fails unless all are",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		all, fault := awaitRoles(c.Context(), ports, patience)
		return errors.Join(fault, output.Write(c.OutOrStdout(), all, func(w io.Writer) error {
			if fault != nil {
				return nil // fault is returned, and says it
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
	c.Flags().DurationVar(&patience, "wait", 0, "wait so long until they are")
	return c
}

// awaitRoles asks roles until all are ready, for patience at most but once at least. fault
// says which are not ready; it is nil if all are.
func awaitRoles(ctx context.Context, ports []string, patience time.Duration) (all []roleShown, fault error) {
	for end := time.Now().Add(patience); ; {
		limited, cancel := context.WithTimeout(ctx, checkTimeout)
		all = askRoles(limited, ports)
		cancel()
		if fault = unready(all); fault == nil || time.Now().After(end) || wait.For(ctx, askEvery) != nil {
			return all, fault
		}
	}
}

// askEvery is the pause before roles that are not ready are asked again.
const askEvery = 500 * time.Millisecond
