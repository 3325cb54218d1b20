// Package shadows tells how the rankings of shadow models differ from what viewers
// were served. A shadow model ranks some answers again beside the model that serves.
// Nobody is shown its ranking.
package shadows

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/relevance/shadow"
)

// query has the flags of `feed shadows`.
type query struct {
	brokers      []string
	topic, since string
	file, model  string
	output       display.Form
}

// Command returns the command feed shadows.
func Command() *cobra.Command {
	var q query
	c := &cobra.Command{
		Use: "shadows FEED", Short: "How the rankings of a feed's shadow models differ from what viewers were served", Args: cobra.ExactArgs(1),
		Long: `Reads the topic of exposures and compares, in the sampled answers (shadow_share
of the feed), how each shadow model ranked the same candidates: which items both
show, how scores move, the part of each content type, whose items would be shown
more and whose less, what a candidate costs, and which features items lack: of the
first items of a ranking on a node, at most 4, shown or not; all else is of the pages.
Quantiles of scores are within 1 % of their value: what differs by less, such as
the instants that recency scores by, looks the same.
NOT ALL says that an open transaction in the topic hides entries, which are missing.

Brokers write it if their configuration has exposures. It has the answers that
were compared, and those that a shadow failed to rank, which the first line of its
report counts. Those that were sampled and not compared, since the broker had too
much to do (dropped) or partitions were missing (partial), are counted by
millrace_broker_shadow_answers_total alone. The metrics
millrace_broker_shadow_* say the same as the report of each broker since it
started, but for authors.

RBO and tau take items of equal score as of one rank, although an answer puts one
of them first: a model that gives the same scores differs in nothing. The overlaps
are of the items as they would be shown.`,
		Example: `  millrace feed shadows home --since 24h
  millrace feed shadows home -o json --out shadows.json`,
		RunE: func(c *cobra.Command, args []string) error {
			return q.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), args[0])
		},
	}
	f := c.Flags()
	f.StringSliceVar(&q.brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka, host:port each")
	f.StringVar(&q.topic, "topic", "exposures", "the topic that brokers write what they showed to")
	f.StringVar(&q.since, "since", "", "only answers since then: 90m, or a time as of RFC 3339 (default: all that the topic has)")
	f.StringVar(&q.model, "shadow", "", "only this shadow model (default: all)")
	display.Flag(c, &q.output)
	f.StringVar(&q.file, "out", "", "write the report to this file")
	return c
}

func (q *query) run(ctx context.Context, w, told io.Writer, feed string) error {
	var from millrace.Time
	then := "" // says in messages since when answers are read; "": all are
	if q.since != "" {
		var err error
		if from, err = command.Since("since", q.since, time.Now()); err != nil {
			return err
		}
		then = fmt.Sprintf(" since %s", from)
	}
	var tally shadow.Tally
	feeds, answers := map[string]bool{}, 0
	_, hidden, err := exposures.Read(ctx, reach.Kafka(ctx, q.brokers), q.topic, from, func(r *exposure.Record) {
		feeds[r.Feed] = true
		if r.Feed == feed {
			answers++
			tally.Add(r)
		}
	})
	if err != nil {
		return err
	}
	if hidden != nil {
		display.Printf(told, "NOT ALL: %d entries of %s are not in the report: %v\n", hidden.Entries, q.topic, hidden)
	}
	if answers == 0 {
		return command.UnknownAmong("feed", feed, q.topic+" has no answer", then, feeds)
	}
	reports := Of(&tally)
	if q.model != "" {
		kept := reports[:0]
		for _, r := range reports {
			if r.Shadow == q.model {
				kept = append(kept, r)
			}
		}
		reports = kept
	}
	if len(reports) == 0 {
		return &millrace.Error{Reason: millrace.ReasonNotFound, Field: "feed", Detail: fmt.Sprintf("no shadow has ranked an answer of feed %s that %s has%s", feed, q.topic, then), WayOut: "give its definition shadow and shadow_share, and the brokers' configuration exposures"}
	}
	var text bytes.Buffer
	if err := q.output.Write(&text, reports, func(w io.Writer) error {
		if err := writeShadows(w, reports, tally.Beyond()); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "\n%s has %d answers of feed %s%s. Which others were sampled, and dropped or partial, only brokers count: millrace_broker_shadow_answers_total\n", q.topic, answers, feed, then)
		return err
	}); err != nil {
		return err
	}
	if q.file == "" {
		_, err = w.Write(text.Bytes())
		return err
	}
	if err := command.WriteFile(q.file, text.Bytes()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%d shadows of feed %s are in %s\n", len(reports), feed, q.file)
	return err
}

// Of returns the reports of a tally, with empty lists in place of nil for JSON.
func Of(t *shadow.Tally) []shadow.Report {
	reports := t.Reports()
	for i := range reports {
		r := &reports[i]
		r.Scores, r.Types, r.Authors, r.Lacking = display.List(r.Scores), display.List(r.Types), display.List(r.Authors), display.List(r.Lacking)
	}
	return reports
}

func writeShadows(w io.Writer, reports []shadow.Report, beyond int64) error {
	for i := range reports {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := writeShadow(w, &reports[i]); err != nil {
			return err
		}
	}
	if beyond > 0 {
		display.Printf(w, "\n%d rankings are of pairs beyond those that are told apart\n", beyond)
	}
	return nil
}

// Summarize writes a row for each report, and which command shows the rest. beyond is how
// many rankings are not in the reports.
func Summarize(w io.Writer, reports []shadow.Report, beyond int64) error {
	t := display.NewTable(w)
	t.Printf("SHADOW\tOF\tFEED\tANSWERS\tFAILED\tOVERLAP AT 10\tAT LIMIT\tRBO\tTAU-B\tOTHER AUTHORS\tNS A CANDIDATE\n")
	var feeds []string
	for i := range reports {
		r := &reports[i]
		if !slices.Contains(feeds, r.Feed) {
			feeds = append(feeds, r.Feed)
		}
		t.Printf("%s %s\t%s\t%s\t%d\t%d\t%.3g\t%.3g\t%.3g\t%s\t%s\t%.4g (served %.4g)\n", r.Shadow, r.Version, r.Model, r.Feed, r.Answers, r.Failed, r.Overlap10, r.Overlap, r.RBO, optional(r.Tau, "%.3g"), share(&r.AuthorShift), r.ShadowCost.Nanos, r.ServedCost.Nanos)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if beyond > 0 {
		display.Printf(w, "%d rankings are of pairs beyond those that are told apart\n", beyond)
	}
	for _, feed := range feeds {
		display.Printf(w, "scores, types, authors and features of its shadows: millrace feed shadows %s\n", feed)
	}
	return nil
}

func writeShadow(w io.Writer, r *shadow.Report) error {
	display.Printf(w, "%s %s as a shadow of %s, in %d answers of feed %s%s\n", r.Shadow, r.Version, r.Model, r.Answers, r.Feed, failures(r))
	if r.Answers == 0 {
		return nil
	}
	t := display.NewTable(w)
	t.Printf("  overlap at 10\t%.3g\n  overlap at limit\t%.3g\n  RBO\t%.3g\n  Kendall tau-b\t%s\n  items of other authors\t%s\n", r.Overlap10, r.Overlap, r.RBO, optional(r.Tau, "%.3g"), share(&r.AuthorShift))
	t.Printf("  ns a candidate\t%.4g\tserved %.4g\n", r.ShadowCost.Nanos, r.ServedCost.Nanos)
	t.Printf("\n  SCORES\tSERVED\tSHADOW\tSHIFT\n")
	for _, x := range r.Scores {
		t.Printf("  %g%%\t%s\t%s\t%s\n", 100*x.Quantile, optional(x.Served, "%.4g"), optional(x.Shadow, "%.4g"), optional(x.Shift, "%+.4g"))
	}
	t.Printf("\n  TYPES\tSERVED\tSHADOW\n")
	for _, x := range r.Types {
		t.Printf("  %s\t%s\t%s\n", x.Type, share(&x.Served), share(&x.Shadow))
	}
	t.Printf("\n  AUTHORS\tSERVED\tSHADOW\n")
	for _, x := range r.Authors {
		missed := display.Cells("")
		if x.Missed > 0 {
			missed = display.Cells(fmt.Sprintf("\tbut for %d items at most", x.Missed))
		}
		t.Printf("  %s\t%s\t%s%s\n", x.Entity, share(&x.Served), share(&x.Shadow), missed)
	}
	t.Printf("\n  FEATURES MISSING (of the first items of a ranking on a node, at most 4, shown or not)\n  FEATURE\tSERVED\tSHADOW\n")
	for _, x := range r.Lacking {
		t.Printf("  %s\t%s\t%s\n", x.Feature, share(x.Served), share(x.Shadow))
	}
	return t.Flush()
}

// failures says how many answers a shadow failed to rank, besides those of the report; ""
// if none.
func failures(r *shadow.Report) string {
	if r.Failed == 0 {
		return ""
	}
	return fmt.Sprintf("; it FAILED in %d more: explain of such a request says why", r.Failed)
}

// share renders a part of a whole in percent, and nil as "-".
func share(x *float64) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf("%.3g%%", 100**x)
}

func optional(x *float64, format string) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, *x)
}
