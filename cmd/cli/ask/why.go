package ask

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
)

// Why returns the command why, which tells why a record is not in a feed.
func Why() *cobra.Command {
	var flags requestFlags
	var req feedv1.WhyRequest
	var output display.Form
	c := &cobra.Command{
		Use:   "why --record ID --viewer ID (--entities A,B,... | --entities-file FILE)",
		Short: "Tell why a record is not in a feed",
		Long: `Names the stage that dropped a record: it was never ingested, was deleted, is
outside the window or not asked for, which clause of the filter dropped it and
by what values, how far below the cut it scores, which records of its entity or
object are shown instead, whether an earlier page showed it, or whether the
partition that has it did not answer; and the variants of experiments that its
entity has, and the viewer. Ask with the flags of millrace feed.`,
		Example: `  millrace why --record post:17 --feed home --viewer member:9 --entities member:1,member:3`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if req.Request, err = flags.request(c.Context(), c.Flags()); err != nil {
				return err
			}
			cl, err := reach.Broker(c.Context(), flags.addr)
			if err != nil {
				return err
			}
			defer cl.Close()
			resp, err := cl.Why(c.Context(), &req)
			if err != nil {
				return err
			}
			return output.Write(c.OutOrStdout(), display.Message{Message: resp}, func(w io.Writer) error { return printWhy(w, req.Record, resp) })
		},
	}
	flags.add(c.Flags())
	f := c.Flags()
	f.StringVar(&req.Record, "record", "", "the record's id")
	f.StringVar(&req.Entity, "entity", "", "whose timelines to look in (default: all that the request asks for)")
	display.Flag(c, &output)
	if err := c.MarkFlagRequired("record"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// printWhy prints a line for each timeline that has the record, or had it. If there is no
// such timeline, it prints the stage and detail of the answer as a whole.
func printWhy(w io.Writer, record string, resp *feedv1.WhyResponse) error {
	if len(resp.Findings) == 0 {
		display.Printf(w, "%s: %s: %s\n", record, resp.Stage, resp.Detail)
		display.Printf(w, "Whether it was refused: millrace deadletters list --containing %s\n", record)
	}
	for _, f := range resp.Findings {
		display.Printf(w, "%s in %s/%s: %s: %s%s\n", record, f.Entity, f.Type, f.Stage, f.Detail, variantsText(f.Variants))
	}
	if of := resp.Receipt.GetVariants(); len(of) > 0 {
		display.Printf(w, "The viewer has %s\n", strings.TrimPrefix(variantsText(of), "; "))
	}
	if missing := resp.Coverage.GetMissing(); len(missing) > 0 {
		display.Printf(w, "%d of %d partitions did not answer\n", len(missing), resp.Coverage.GetPartitionsAsked())
	}
	return nil
}
