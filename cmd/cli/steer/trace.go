package steer

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/brokers"
)

// Trace returns the command trace, which has every broker trace one viewer for a while.
func Trace() *cobra.Command {
	var viewer string
	var d time.Duration
	var off bool
	c := &cobra.Command{
		Use:   "trace --viewer ID [--for 10m | --off]",
		Short: "Have every broker trace and log one viewer's requests for a while",
		Long: `Switches on, within a second and on every broker that hears etcd, a full account
of one viewer's requests, and says which have heard: each is sampled by
OpenTelemetry whatever the sampler says, and logged with its request, its answer without the records, and how that was
made, as with "explain". It ends by itself.`,
		Args: cobra.NoArgs,
	}
	cm := clusters.FlagsOf(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		cl, err := cm.Open(c.Context())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		on := fmt.Sprintf("viewer %.100q", viewer)
		if off {
			if err := cl.Note(c.Context(), audit.Entry{Act: "trace", On: on, Before: "traced, if it was", After: "not traced"}); err != nil {
				return err
			}
			if err := brokers.Untrace(c.Context(), cl, viewer); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is not traced\n", viewer)
			return clusters.TellHeard(c.Context(), c.OutOrStdout(), cl)
		}
		if err := cl.Note(c.Context(), audit.Entry{Act: "trace", On: on, Before: "not traced", After: "traced for " + d.String()}); err != nil {
			return err
		}
		until, err := brokers.Trace(c.Context(), cl, viewer, d)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%s is traced until %s\n", viewer, until.Format(time.RFC3339))
		return clusters.TellHeard(c.Context(), c.OutOrStdout(), cl)
	}
	f := c.Flags()
	f.StringVar(&viewer, "viewer", "", "whose requests")
	f.DurationVar(&d, "for", 10*time.Minute, "for how long")
	f.BoolVar(&off, "off", false, "end it now")
	if err := c.MarkFlagRequired("viewer"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}
