// Package ask has the commands that ask a broker: feed, for a feed, and why, for the reason
// that a record is not in one.
package ask

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
)

// Command returns the command feed, which asks a broker for a feed. The definitions become
// its subcommands: they change which feeds there are.
func Command(definitions ...*cobra.Command) *cobra.Command {
	var flags requestFlags
	var output display.Form
	c := &cobra.Command{
		Use:   "feed --viewer ID (--entities A,B,... | --entities-file FILE)",
		Short: "Ask a broker for a feed",
		Example: `  millrace feed --viewer member:9 --entities member:1,member:3 --limit 5
  millrace feed --feed home --viewer member:9 --entities-file follows.txt --filter 'record.likes > 3'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			req, err := flags.request(c.Context(), c.Flags())
			if err != nil {
				return err
			}
			cl, err := reach.Broker(c.Context(), flags.addr)
			if err != nil {
				return err
			}
			defer cl.Close()
			resp, err := cl.GetFeed(c.Context(), req)
			if err != nil {
				return err
			}
			return output.Write(c.OutOrStdout(), display.Message{Message: resp}, func(w io.Writer) error {
				Print(w, resp, func(e millrace.Entity) string { return string(e) })
				printReasons(w, resp)
				printAccount(w, resp.Explain)
				if resp.NextPageToken != "" {
					display.Printf(w, "next page: --page-token %s\n", resp.NextPageToken)
				}
				return nil
			})
		},
	}
	flags.add(c.Flags())
	c.Flags().BoolVar(&flags.req.Explain, "explain", false, "say how the answer was made, and what each feature contributes to each score")
	display.Flag(c, &output)
	c.AddCommand(definitions...)
	return c
}

// requestFlags are the values of the flags that make up a request.
type requestFlags struct {
	addr       string                // the address of the broker
	req        feedv1.GetFeedRequest // what flags set directly; method request adds the rest
	viewer     feedv1.Viewer
	attributes map[string]string // as [Attributes] reads them
	file       string            // the path of a file of entities, one a line; "" for none
	asOf       string            // a time in RFC 3339, like from and to; "" for none
	from, to   string
	limit      int64 // part of the request only if the flag is given
}

func (r *requestFlags) add(f *pflag.FlagSet) {
	f.StringVar(&r.addr, "addr", "127.0.0.1:9090", "the broker's gRPC address")
	f.StringVar(&r.req.Feed, "feed", "recent", "the feed definition")
	f.StringVar(&r.viewer.Id, "viewer", "", "who the feed is for")
	f.StringToStringVar(&r.attributes, "attribute", nil, AttributeUsage)
	f.StringSliceVar(&r.req.Entities, "entities", nil, "whom the viewer follows")
	f.StringVar(&r.file, "entities-file", "", "the same, a line each; - reads standard input")
	f.StringSliceVar(&r.req.Types, "types", nil, "content types (default: the feed's)")
	f.StringVar(&r.req.Filter, "filter", "", "a CEL expression over record, viewer and entity")
	f.StringVar(&r.req.Model, "model", "", "the model to score with (default: the feed's)")
	f.StringVar(&r.asOf, "as-of", "", "the instant scores are for, RFC 3339 (default: now)")
	f.StringVar(&r.from, "from", "", "records from this time on, RFC 3339")
	f.StringVar(&r.to, "to", "", "records before this time, RFC 3339")
	f.Int64Var(&r.limit, "limit", 20, "items wanted (default: the feed's)")
	f.StringVar(&r.req.PageToken, "page-token", "", "the page after the one that gave this")
}

// AttributeUsage is the help text of flags that give attributes of a viewer.
const AttributeUsage = `viewer attributes: name=text, or name:=JSON, such as age:=30, vip:=true, topics:='["go"]'`

// Attributes returns the attributes of a viewer from the values of a flag: name=text is a
// text, and name:=JSON the value that the JSON says. The error names the flag.
func Attributes(flag map[string]string) (map[string]*structpb.Value, error) {
	all := make(map[string]*structpb.Value, len(flag))
	for name, text := range flag {
		typed, isJSON := strings.CutSuffix(name, ":")
		if !isJSON {
			all[name] = structpb.NewStringValue(text)
			continue
		}
		v := &structpb.Value{}
		if err := protojson.Unmarshal([]byte(text), v); err != nil {
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--attribute", Detail: fmt.Sprintf("%s:=%.100s is no JSON", typed, text), WayOut: "write a number, true, false, or a list, or a text behind = alone"}
		}
		all[typed] = v
	}
	return all, nil
}

// request returns the request that the flags make up.
func (r *requestFlags) request(ctx context.Context, f *pflag.FlagSet) (*feedv1.GetFeedRequest, error) {
	req := &r.req
	if r.file != "" {
		if err := readLines(ctx, r.file, &req.Entities); err != nil {
			return nil, err
		}
	}
	for _, t := range []struct {
		flag, text string
		into       **timestamppb.Timestamp
	}{{"as-of", r.asOf, &req.AsOf}, {"from", r.from, &req.From}, {"to", r.to, &req.To}} {
		if t.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, t.text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %q is not a time like 2010-11-23T08:00:00Z", t.flag, t.text)
		}
		*t.into = timestamppb.New(at)
	}
	if f.Changed("limit") {
		req.Limit = &r.limit
	}
	if len(r.attributes) > 0 {
		var err error
		if r.viewer.Attributes, err = Attributes(r.attributes); err != nil {
			return nil, err
		}
	}
	req.Viewer = &r.viewer
	return req, nil
}

// readLines appends the lines of a file to into; the file - is standard input.
func readLines(ctx context.Context, file string, into *[]string) error {
	f := os.Stdin
	if file != "-" {
		var err error
		if f, err = os.Open(file); err != nil {
			return err
		}
		defer f.Close()
	}
	return command.EachLine(ctx, f, file, 64<<10, func(_ int, line []byte) error {
		*into = append(*into, string(line))
		return nil
	})
}

// printReasons prints what made the score of each item, as far as the answer explains it.
func printReasons(w io.Writer, resp *feedv1.GetFeedResponse) {
	for i, it := range resp.Items {
		e := it.Explain
		if e == nil {
			continue
		}
		model := scorer(resp.Receipt)
		display.Printf(w, "\n%d. %s scores %s on %s", i+1, it.Id, scoreText(model, it.Score), e.Node)
		if model != recency { // the score of recency is the time of the record, and nothing else
			printContributions(w, e)
		}
		for _, s := range e.Shadow {
			display.Printf(w, "; %s %s would score it %s", s.Model, s.ModelVersion, scoreText(s.Model, s.Score))
		}
		if e.ShadowError != "" {
			display.Printf(w, "; no shadow scores: %s", e.ShadowError)
		}
		fmt.Fprintln(w)
	}
}

// printContributions prints what features add to a score, the largest contributions first.
func printContributions(w io.Writer, e *feedv1.ItemExplain) {
	display.Printf(w, ": %+.4g", e.Base)
	size := func(f *feedv1.Contribution) float64 {
		if math.IsNaN(f.Contribution) {
			return math.Inf(1) // it makes the whole score NaN
		}
		return math.Abs(f.Contribution)
	}
	slices.SortStableFunc(e.Features, func(a, b *feedv1.Contribution) int { return cmp.Compare(size(b), size(a)) })
	for _, f := range e.Features {
		switch {
		case math.IsNaN(f.Contribution):
			display.Printf(w, ", %s NaN", f.Feature)
		case size(f) >= 5e-5: // smaller ones hardly change a score and are left out
			display.Printf(w, ", %s %+.4g", f.Feature, f.Contribution)
		}
	}
}
