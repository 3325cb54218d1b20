package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// statusQuery is what `experiment status` is asked.
type statusQuery struct {
	brokers      []string
	prefix       string
	topic, since string
	alpha        float64
}

func experimentStatus() *cobra.Command {
	var q statusQuery
	c := experimentOn(&cobra.Command{
		Use: "status NAME", Short: "How the variants of an experiment do, by what its viewers were shown", Args: cobra.ExactArgs(1),
		Long: `Reads the topic of exposures and compares each variant with the control: the one
that sets nothing, or is named control. Each viewer counts once, by their first
answer; who was forced into a variant does not count.

It may be asked as often as you like: the chance that any interval is ever wrong,
over all the times together, is at most --alpha. "no difference seen" is no proof
that there is none: the interval says what there may be.

If the definition has outcomes, such as {topic: clicks, actions: [click]}, it also
compares how many viewers did each with something that they were shown, and, of
rankings that draft a page together, whose items they did it with first.

An experiment with guards is looked at by the coordinator that leads: what it
waits for, and each step that it took with what it was decided by, comes last.`,
		Example: `  millrace experiment status fresher --since 24h`,
	}, func(ctx context.Context, t *trial, args []string) error { return t.status(ctx, args[0], &q) })
	f := c.Flags()
	f.StringSliceVar(&q.brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka, host:port each")
	f.StringVar(&q.prefix, "topic-prefix", "", "before Millrace's own topics")
	f.StringVar(&q.topic, "topic", "exposures", "the topic that brokers write what they showed to")
	f.StringVar(&q.since, "since", "", "only answers since then: 90m, or a time as of RFC 3339 (default: all that the topic has)")
	f.Float64Var(&q.alpha, "alpha", 0.05, "the chance of being wrong, over all intervals and looks together")
	return c
}

func (t *trial) status(ctx context.Context, name string, q *statusQuery) error {
	if !(q.alpha > 0 && q.alpha < 1) {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "--alpha", Detail: fmt.Sprintf("%v is no chance", q.alpha), WayOut: "say one between 0 and 1, such as 0.05"}
	}
	var from millrace.Time
	if q.since != "" {
		var err error
		if from, err = parseSince(q.since, time.Now()); err != nil {
			return err
		}
	}
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	of, err := st.Find(name)
	if err != nil {
		return err
	}
	if of.Rule.Unit == "entity" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("%s divides entities, and this compares viewers", name), WayOut: "compare items: export exposures, whose rows have the entity, and its variant among experiments"}
	}
	tally := compare.New(of)
	others, err := kafka.ReadExposures(ctx, kafkaAt(ctx, q.brokers), q.topic, from, tally.Add)
	if err != nil {
		return err
	}
	strange, unread := outcome.Faults{}, error(nil)
	if o := of.Experiment.Outcomes; o != nil {
		acts := actsOf(o, kafka.ActsConfig{Brokers: kafkaAt(ctx, q.brokers), Exposures: q.topic, Schemas: kafka.Prefixed(q.prefix).Schemas, From: from})
		unread = acts.Read(ctx, tally.Did)
		strange = acts.Faults
	}
	r, err := tally.Report(q.alpha)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "experiment %s is %s, with %g%% of its slots; document %s, version %s\n", name, of.Experiment.State, float64(of.Experiment.Share)/100, of.Document, st.Versions[of.Document].Version)
	if of.Unfit != "" {
		fmt.Fprintln(t.out, unfitLine(&of))
	}
	switch why, err := t.unapplied(ctx, &of.Experiment); {
	case err != nil:
		return err
	case why != "":
		fmt.Fprintf(t.out, "%s; its answers count for no variant\n", why)
	}
	if err := printReport(t.out, &r, q.alpha); err != nil {
		return err
	}
	trail, err := t.trails.Of(name)
	if err != nil {
		return err
	}
	printTrail(t.out, &of.Experiment, trail, time.Now())
	if others > 0 {
		fmt.Fprintf(t.out, "%d entries of %s are no exposures that this version reads\n", others, q.topic)
	}
	if strange.N > 0 {
		fmt.Fprintf(t.out, "%d entries of %s are no outcomes, and are not counted; the first: %v\n", strange.N, of.Experiment.Outcomes.Topic, strange.First)
	}
	if unread != nil {
		return fmt.Errorf("the report is without outcomes: %w", unread)
	}
	return nil
}

func printReport(w io.Writer, r *compare.Report, alpha float64) error {
	if r.First == 0 {
		fmt.Fprintln(w, "nothing was shown yet: brokers write what they show if their configuration has exposures")
		return nil
	}
	fmt.Fprintf(w, "answers from %s to %s\n\n", r.First, r.Last)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "VARIANT\tWEIGHT\tVIEWERS\tANSWERS\tFORCED\tREFUSED\tEMPTY\tPARTIAL\tNAN\tITEMS\tP50 MS\tP95\tP99")
	for _, action := range r.Actions {
		fmt.Fprint(t, "\tDID ", strings.ToUpper(action))
	}
	fmt.Fprintln(t)
	for _, a := range r.Arms {
		part := func(n int64) string { return text(100*float64(n)/float64(a.Units), "%.3g%%") }
		fmt.Fprintf(t, "%s\t%g%%\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%.3g\t%s\t%s\t%s", a.Variant, 100*a.Weight, a.Units, a.Answers, a.Forced,
			part(a.Refused), part(a.Empty), part(a.Partial), part(a.NaN), a.Items, text(a.Millis[0], "%.3g"), text(a.Millis[1], "%.3g"), text(a.Millis[2], "%.3g"))
		for _, n := range a.Did {
			fmt.Fprint(t, "\t", part(n))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, a := range r.Arms {
		if a.Undrafted > 0 {
			fmt.Fprintf(w, "%d answers of %s were not drafted: only the first model ranked them; their receipts say why\n", a.Undrafted, a.Variant)
		}
	}
	last := ""
	for _, e := range r.Effects {
		if e.Variant != last {
			last = e.Variant
			fmt.Fprintf(w, "\n%s beside %s:\n", e.Variant, r.Control)
		}
		fmt.Fprintf(t, "  %s\t%s\n", e.What, effect(&e))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range r.Drafts {
		fmt.Fprintf(w, "\n%s, drafted: of viewers who did %s, %d did so first with what %s ranked, and %d with what %s did:\n", d.Variant, d.Action, d.Units[0], d.Teams[0], d.Units[1], d.Teams[1])
		fmt.Fprintf(w, "  %s beside %s  %s\n", d.Teams[1], d.Teams[0], effect(&compare.Effect{What: compare.Did(d.Action), Effect: d.Effect}))
	}
	fmt.Fprintln(w)
	if len(r.Arms) > 1 {
		if p := r.Split.P; p < alpha/10 {
			fmt.Fprintf(w, "VIEWERS DO NOT FIT THE WEIGHTS (p %.2g): something but the hash decides who is in; believe nothing above before you know what\n", p)
		} else {
			fmt.Fprintf(w, "viewers fit the weights (p %.2g)\n", p)
		}
	}
	for _, n := range []struct {
		count int64
		what  string
	}{
		{r.Crossed, "viewers met two variants, and stay with their first"},
		{r.Unknown, "answers are of variants that the definition does not have"},
		{r.Beyond, "answers are of viewers beyond those that are told apart"},
	} {
		if n.count > 0 {
			fmt.Fprintf(w, "%d %s\n", n.count, n.what)
		}
	}
	return nil
}

// text renders a number, and - for none.
func text(x float64, format string) string {
	if math.IsNaN(x) {
		return "-"
	}
	return fmt.Sprintf(format, x)
}

// effect says what is known of a difference.
func effect(e *compare.Effect) string {
	none, times := 0., ""
	if e.What.Rate() {
		none, times = 1, " times"
	}
	switch {
	case e.Unknown():
		return "too little is known"
	case e.Contains(none):
		return fmt.Sprintf("no difference seen: %s to %s%s", number(e.Low), number(e.High), times)
	}
	way := "more"
	if e.Below(none) {
		way = "less"
	}
	return strings.ToUpper(way) + fmt.Sprintf(": %s%s (%s to %s)", number(e.Value), times, number(e.Low), number(e.High))
}

func number(x float64) string {
	if math.IsInf(x, 1) {
		return "any number"
	}
	return fmt.Sprintf("%.3g", x)
}
