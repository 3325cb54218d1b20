package experiments

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/shadows"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
	"github.com/millrace/millrace/relevance/interleave"
	"github.com/millrace/millrace/relevance/shadow"
)

// statusQuery has the flags of `experiment status`.
type statusQuery struct {
	brokers      []string
	prefix       string
	topic, since string
	alpha        float64
}

func experimentStatus() *cobra.Command {
	var q statusQuery
	c := experimentLook(&cobra.Command{
		Use: "status NAME", Short: "How the variants of an experiment do, by what its viewers were shown", Args: cobra.ExactArgs(1),
		Long: `Reads the topic of exposures and compares each variant with the control: the one
that sets nothing, or is named control. Each viewer counts once, by their first
page that has come, the earliest by time; who was forced into a variant does not
count, nor what was shown before the experiment had its name. Which versions of
models ranked a variant's answers is told, and that it has CHANGED where there are
several of one model, or a feed changed what a variant leaves to it.

It may be asked as often as you like: the chance that any interval is ever wrong,
over all the times together, is at most --alpha. "no difference seen" is no proof
that there is none: the interval says what there may be.

If the definition has outcomes, such as {topic: clicks, actions: [click]}, it also
compares how many viewers did each with something that they were shown, and, of
two models that draft pages together, whose items they did it with: how many
answers (impressions) each wins by more of them, how many viewers by more answers,
with Δ of both, from -0.5 to 0.5 (the second wins all), and how many viewers by
their first item, of which the interval is. Impressions of one viewer depend on
each other and have none; what a viewer prefers in all may change.

An experiment with guards is looked at by the coordinator that leads: what it
waits for, and how old its evidence is, comes first, out of etcd; NOT WATCHED says
that no guard sees what is shown, or what viewers do, and why. Each step that it
took, with what it was decided by, comes behind the comparison. Last comes a line
for each shadow of its feeds; "feed shadows" says all of it. A Kafka that does not
answer for ten seconds ends the command with an error, and what is known is told.
NOT ALL says that an open transaction in the topic hides answers from it.`,
		Example: `  millrace experiment status fresher --since 24h`,
	}, func(ctx context.Context, t *opened, output *display.Form, args []string) error {
		return t.status(ctx, output, args[0], &q)
	})
	f := c.Flags()
	f.StringSliceVar(&q.brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka, host:port each")
	f.StringVar(&q.prefix, "topic-prefix", "", "before Millrace's own topics")
	f.StringVar(&q.topic, "topic", "exposures", "the topic that brokers write what they showed to")
	f.StringVar(&q.since, "since", "", "only answers since then: 90m, or a time as of RFC 3339 (default: all that the topic has)")
	f.Float64Var(&q.alpha, "alpha", 0.05, "the chance of being wrong, over all intervals and looks together")
	return c
}

// placed returns when an experiment's document was last changed; zero: its history does
// not tell.
func (t *opened) placed(ctx context.Context, of *experiment.Defined) (at time.Time, err error) {
	events, err := t.Documents.History(ctx, of.Document)
	for _, e := range events {
		if e.What == ledger.Served || e.What == ledger.RolledBack {
			at = e.When
		}
	}
	return at, err
}

func (t *opened) status(ctx context.Context, output *display.Form, name string, q *statusQuery) error {
	s := status{opened: t, q: q}
	if err := s.find(ctx, name); err != nil {
		return err
	}
	// What coordinators know is in etcd: it is told before Kafka is asked, which may not
	// answer.
	if !output.JSON() {
		s.printKnown(t.out)
	}
	unread, err := s.readExposures(ctx)
	if err != nil {
		return err
	}
	if unread != nil { // what was read is not all
		return errors.Join(output.Write(t.out, s.shown, func(w io.Writer) error {
			printDecisions(w, s.shown.Trail)
			return nil
		}), fmt.Errorf("how the variants do is not known: %w", unread))
	}
	if s.of.Experiment.Outcomes != nil {
		unread = s.readOutcomes(ctx)
	}
	if err := s.judge(ctx); err != nil {
		return err
	}
	if err := output.Write(t.out, s.shown, s.print); err != nil {
		return err
	}
	if _, hides := errors.AsType[*kafka.Hidden](unread); unread != nil && !hides {
		return fmt.Errorf("the report is without outcomes, or some of them: %w", unread)
	}
	return nil
}

// status is one run of `experiment status`. Its methods are called in the order in which
// they stand here.
type status struct {
	*opened
	q *statusQuery

	of    experiment.Defined
	since millrace.Time // exposures from then on are read; 0: all
	own   millrace.Time // exposures from then on are compared; older ones may be of an earlier experiment of the same name
	watch watch
	shown statusShown

	tally    *compare.Tally    // what the exposures and outcomes say, by variant
	outdated *compare.Outdated // answers by an older definition
	compared shadow.Tally      // what shadows of its feeds ranked
	hidden   *kafka.Hidden     // exposures that an open transaction hides; nil: none
	strange  outcome.Faults    // entries that are no outcomes
	report   compare.Report    // of tally
}

// find checks the query, and reads what etcd has of the experiment.
func (s *status) find(ctx context.Context, name string) error {
	if err := command.CheckChance("--alpha", s.q.alpha); err != nil {
		return err
	}
	if s.q.since != "" {
		var err error
		if s.since, err = command.Since("since", s.q.since, time.Now()); err != nil {
			return err
		}
	}
	st, err := s.Read(ctx)
	if err != nil {
		return err
	}
	if s.of, err = st.Find(name); err != nil {
		return err
	}
	if s.of.Rule.Unit == "entity" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: fmt.Sprintf("%s divides entities, and this compares viewers", name), WayOut: "compare items: export exposures, whose rows have the entity, and its variant among experiments"}
	}
	begun, err := s.Begun(ctx, &s.of)
	if err != nil {
		return err
	}
	s.own = s.since
	if !begun.IsZero() {
		s.own = max(s.own, millrace.TimeOf(begun))
	}
	as, err := s.opened.shown(ctx, st, &s.of)
	if err != nil {
		return err
	}
	if s.watch, err = s.watching(ctx, &s.of); err != nil {
		return err
	}
	trail := s.watch.Trail
	trail.Decisions = slices.DeleteFunc(trail.Decisions, func(d experiments.Decision) bool { return d.When.Before(begun) })
	s.shown = statusShown{Unwatched: s.watch.unwatched, experimentShown: as, Trail: trail}
	return nil
}

// printKnown writes what etcd has of the experiment.
func (s *status) printKnown(w io.Writer) {
	display.Printf(w, "experiment %s is %s, with %g%% of its slots; document %s, version %s\n", s.shown.Name, s.shown.State, s.shown.Share, s.shown.Document, s.shown.Version)
	if s.of.Unfit != "" {
		fmt.Fprintln(w, leans.UnfitLine(&s.of))
	}
	if s.shown.Unapplied != "" {
		fmt.Fprintln(w, leans.UnappliedLine(&s.of.Experiment, s.shown.Unapplied))
	}
	for _, line := range s.shown.Unreadable {
		fmt.Fprintln(w, line)
	}
	printWatch(w, &s.of.Experiment, &s.watch, time.Now())
}

// readExposures counts what viewers were shown. If not all of it could be read, unread
// says why, and s.shown says that nothing is compared.
func (s *status) readExposures(ctx context.Context) (unread, err error) {
	placed, err := s.placed(ctx, &s.of)
	if err != nil {
		return nil, err
	}
	s.tally, s.outdated = compare.New(s.of), compare.NewOutdated(s.of, placed)
	s.tally.CreditDrafts()
	s.shown.Foreign, s.hidden, unread = exposures.Read(ctx, reach.Kafka(ctx, s.q.brokers), s.q.topic, s.since, func(r *exposure.Record) {
		if r.Time >= s.own {
			s.tally.Add(r)
			s.outdated.Add(r)
		}
		if slices.Contains(s.of.Experiment.Feeds, r.Feed) {
			s.compared.Add(r)
		}
	})
	if unread == nil {
		return nil, nil
	}
	none, err := compare.New(s.of).Report(s.q.alpha)
	s.shown.reportShown, s.shown.Shadows, s.shown.Unshown, s.shown.Foreign = reportOf(&none, s.q.alpha), []shadow.Report{}, display.FaultText(unread), 0
	return unread, err
}

// readOutcomes counts what viewers did. It returns why that is not all; nil: it is.
func (s *status) readOutcomes(ctx context.Context) (unread error) {
	acts := Acts(&s.of.Experiment, exposures.ActReaderConfig{Brokers: reach.Kafka(ctx, s.q.brokers), Exposures: s.q.topic, Schemas: kafka.Prefixed(s.q.prefix).Schemas, From: s.own})
	unread = acts.Read(ctx, s.tally.Did)
	s.strange = acts.Faults
	told := acts.Told()
	s.shown.Told, s.shown.Unread = &told, display.FaultText(unread)
	s.shown.Broken, s.shown.Mended = brokenOutcomes(acts.Course())
	return unread
}

// judge compares the variants by the exposures and outcomes that were read.
func (s *status) judge(ctx context.Context) (err error) {
	if s.report, err = s.tally.Report(s.q.alpha); err != nil {
		return err
	}
	shown := &s.shown
	shown.reportShown, shown.Shadows, shown.Strange, shown.Outdated = reportOf(&s.report, s.q.alpha), shadows.Of(&s.compared), s.strange.N, s.outdated.Says(s.own)
	if s.q.since != "" {
		shown.Since = s.since.String()
	}
	if s.hidden != nil {
		shown.Hidden = s.hidden.Error()
	}
	if s.strange.N > 0 {
		shown.FirstStrange = fmt.Sprint(s.strange.First)
	}
	rolled, err := s.Serving(ctx)
	if err != nil {
		return err
	}
	basis, err := rolled.Basis(ctx, &s.of.Experiment)
	if err != nil {
		return err
	}
	if at := millrace.TimeOf(basis.Since); !basis.Since.IsZero() && s.report.First < at && at <= s.report.Last {
		shown.Changed = fmt.Sprintf("at %s %s", basis.Since.Format(time.RFC3339), basis.Why)
	}
	return nil
}

// print writes, for people, everything that printKnown does not write.
func (s *status) print(w io.Writer) error {
	shown := &s.shown
	if shown.Changed != "" {
		display.Printf(w, "CHANGED: %s; what is compared pools what was shown before and after, and --since tells the last apart\n", shown.Changed)
	}
	if shown.Outdated != "" {
		display.Printf(w, "NOT ON EVERY BROKER: %s\n", shown.Outdated)
	}
	if s.hidden != nil {
		display.Printf(w, "NOT ALL: %d entries of %s are not compared: %v\n", s.hidden.Entries, s.q.topic, s.hidden)
	}
	if shown.Unread != "" {
		display.Printf(w, "NO OUTCOMES, or not all: %s\n", shown.Unread)
	}
	if shown.Broken != "" {
		display.Printf(w, "BROKEN OUTCOMES: of %s %s; believe nothing below that viewers did before you know why\n", s.of.Experiment.Outcomes.Topic, shown.Broken)
	}
	if shown.Mended != "" {
		display.Printf(w, "outcomes were broken: of %s %s\n", s.of.Experiment.Outcomes.Topic, shown.Mended)
	}
	if err := printReport(w, &s.report, s.q.alpha, shown.Since); err != nil {
		return err
	}
	if shown.Told != nil && shown.Unread == "" {
		display.Printf(w, "of all outcomes in %s, by what %s showed, %s\n", s.of.Experiment.Outcomes.Topic, shown.Name, shown.Told)
	}
	printDecisions(w, shown.Trail)
	if len(shown.Shadows) > 0 {
		fmt.Fprintln(w)
		if err := shadows.Summarize(w, shown.Shadows, s.compared.Beyond()); err != nil {
			return err
		}
	}
	if shown.Foreign > 0 {
		display.Printf(w, "%d entries of %s are no exposures that this version reads, of a time that has not come, or batches that cannot be opened\n", shown.Foreign, s.q.topic)
	}
	if s.strange.N > 0 {
		display.Printf(w, "%d entries of %s are no outcomes, and are not counted; the first: %v\n", s.strange.N, s.of.Experiment.Outcomes.Topic, s.strange.First)
	}
	return nil
}

// statusShown is what experiment status shows, as JSON.
type statusShown struct {
	experimentShown
	reportShown
	experiments.Trail
	Since        string          `json:"since,omitempty"`            // only answers since then are compared
	Unwatched    string          `json:"unwatched,omitempty"`        // why no guard sees what is shown, or what viewers do
	Unshown      string          `json:"exposures_unread,omitempty"` // why there is no report
	Changed      string          `json:"changed,omitempty"`          // which feed or model changed in the time that is compared
	Shadows      []shadow.Report `json:"shadows"`                    // how the shadows of its feeds rank
	Outdated     string          `json:"outdated,omitempty"`         // brokers that go by an older definition
	Hidden       string          `json:"exposures_hidden,omitempty"` // exposures that are not compared, since an open transaction hides them
	Foreign      int             `json:"no_exposures"`               // entries of the topic that this version does not read, of a time that has not come, or batches that cannot be opened
	Strange      int             `json:"no_outcomes"`                // entries of the topic of outcomes that are none
	FirstStrange string          `json:"first_no_outcome,omitempty"`
	Unread       string          `json:"outcomes_unread,omitempty"`      // why the report is without outcomes
	Told         *outcome.Report `json:"outcomes,omitempty"`             // how many outcomes belong to answers of this experiment; nil: its definition has no outcomes
	Broken       string          `json:"outcomes_broken,omitempty"`      // why the outcomes say nothing now, and since when
	Mended       string          `json:"outcomes_were_broken,omitempty"` // why and when the outcomes said nothing earlier
}

// maxStretches is how many of the times in which outcomes were broken are told: the last.
const maxStretches = 5

// brokenOutcomes returns why outcomes are broken now, and since when; and why they were
// broken earlier, from when to when. Each is "" if they are not, or were not.
func brokenOutcomes(course *outcome.Course) (broken, mended string) {
	var over []string
	until := ""
	for _, s := range course.Broken() {
		if s.Until == 0 {
			broken = s.String()
			continue
		}
		over, until = append(over, s.String()), s.Until.String()
	}
	more := len(over) - maxStretches
	if more > 0 {
		over = over[more:]
	}
	mended = strings.Join(over, "; ")
	if more > 0 {
		mended += fmt.Sprintf("; and %d times before", more)
	}
	if broken == "" && mended != "" {
		mended += fmt.Sprintf("; since then they are whole, and --since %s tells that apart", until)
	}
	return broken, mended
}

// reportShown is a report as JSON. A number that is not known is null.
type reportShown struct {
	First   string        `json:"first_answer,omitempty"` // the time; "": nothing was shown in the time asked for
	Last    string        `json:"last_answer,omitempty"`
	Control string        `json:"control"`
	Units   string        `json:"units"` // what is counted as a viewer: viewers, or values of an attribute
	Arms    []shownArm    `json:"compared"`
	Effects []effectShown `json:"effects"`
	Drafts  []draftShown  `json:"drafts"`
	SplitP  *float64      `json:"split_p"`                 // p value of whether viewers fit the weights; null: only one variant is dealt
	Fits    bool          `json:"viewers_fit_the_weights"` // split_p is at least a tenth of --alpha, or null
	Crossed int64         `json:"met_two_variants"`        // viewers
	Unknown int64         `json:"of_unknown_variants"`     // answers
	// Answers of viewers whom the hash deals another variant, which do not count.
	Misdealt int64 `json:"of_misdealt_viewers"`
	// Answers whose variants were dealt with other probabilities than now, which do not
	// count.
	Otherwise int64 `json:"of_other_chances"`
	// Answers that claim a time that no answer takes; their time counts as not known.
	Implausible int64 `json:"of_implausible_times"`
	// Answers of viewers beyond the most that the report keeps apart.
	Beyond int64 `json:"beyond_those_told_apart"`
	// Acts of viewers, or with items of drafts, beyond the most that the report keeps
	// apart.
	BeyondActs int64 `json:"acts_beyond_those_told_apart"`
	// Acts with drafts of other models than the definition's.
	OtherTeams int64 `json:"acts_with_other_drafts"`
}

// shownArm is what was counted of a variant, as JSON.
type shownArm struct {
	Variant   string           `json:"variant"`
	Weight    float64          `json:"weight_percent"`
	Viewers   int64            `json:"viewers"`
	Answers   int64            `json:"answers"`
	Forced    int64            `json:"forced"`
	Refused   int64            `json:"refused"`             // viewers whose request was refused
	Empty     int64            `json:"empty"`               // viewers who got no item, and no refusal
	Partial   int64            `json:"partial"`             // viewers whose answer lacked timelines
	NaN       int64            `json:"nan"`                 // viewers who got an item whose score is not a finite number
	Did       map[string]int64 `json:"did,omitempty"`       // viewers who took an action, by action
	Items     *float64         `json:"items"`               // mean of an answer
	Millis    [3]*float64      `json:"millis"`              // quantiles 0.5, 0.95 and 0.99
	Undrafted int64            `json:"undrafted,omitempty"` // answers that only the first of two models ranked
	Ranked    []rankedShown    `json:"ranked_by"`           // all answers, by version
}

// rankedShown is a version of a model that ranked answers of a variant. The comparison
// pools all versions of one model.
type rankedShown struct {
	Model   string `json:"model"`
	Version string `json:"version"`
	Answers int64  `json:"answers"`
	First   string `json:"first_answer"`
	Last    string `json:"last_answer"`
}

// effectShown is how a variant differs from the control in one figure, What.
type effectShown struct {
	Variant string       `json:"variant"`
	What    compare.What `json:"what"`
	estimate
	Same bool `json:"same_for_all"` // every viewer has the same value, so that there is no interval
}

// estimate is what is known of a difference.
type estimate struct {
	Says  string   `json:"says"`  // unknown, no difference, more or less
	Times bool     `json:"times"` // Value, Low and High are multiples, and not differences
	Value *float64 `json:"value"`
	Low   *float64 `json:"low"`
	High  *float64 `json:"high"`
	P     *float64 `json:"p"`
}

// draftShown is how two models that draft pages compare, by one action of viewers.
type draftShown struct {
	Variant     string     `json:"variant"`
	Action      string     `json:"action"`
	Teams       []string   `json:"teams"`
	Impressions tallyShown `json:"impressions"`
	Viewers     tallyShown `json:"viewers"`
	FirstItem   wonShown   `json:"first_item"` // viewers, by the team of the first item that they did it with
	estimate               // what is known of the difference in FirstItem
}

// wonShown counts what the second of two teams won and lost, where no tie is possible.
type wonShown struct {
	Wins   int64 `json:"wins"`
	Losses int64 `json:"losses"`
}

// tallyShown counts what the second of two teams won and lost, with Δ from -0.5 to 0.5
// (the second wins all).
type tallyShown struct {
	Wins   int      `json:"wins"`
	Losses int      `json:"losses"`
	Ties   int      `json:"ties"`
	Delta  *float64 `json:"delta"`
}

func tallyOf(t interleave.Tally) tallyShown {
	return tallyShown{t.Wins, t.Losses, t.Ties, display.Known(t.Delta())}
}

func estimateOf(e *compare.Effect) estimate {
	return estimate{judged(e), e.What.Rate(), display.Known(e.Value), display.Known(e.Low), display.Known(e.High), display.Known(e.P)}
}

func reportOf(r *compare.Report, alpha float64) reportShown {
	out := reportShown{Control: r.Control, Units: r.Units, Arms: []shownArm{}, Effects: []effectShown{}, Drafts: []draftShown{}, Fits: r.Fits(alpha / 10), Crossed: r.Crossed, Unknown: r.Unknown, Misdealt: r.Misdealt, Implausible: r.Implausible, Otherwise: r.Otherwise, Beyond: r.Beyond, BeyondActs: r.BeyondActs, OtherTeams: r.OtherTeams}
	if r.Split != nil {
		out.SplitP = display.Known(r.Split.P)
	}
	if r.First != 0 {
		out.First, out.Last = r.First.String(), r.Last.String()
	}
	for _, a := range r.Arms {
		arm := shownArm{
			Variant: a.Variant, Weight: inPercent(a.Weight), Viewers: a.Units, Answers: a.Answers, Forced: a.Forced, Refused: a.Refused, Empty: a.Empty, Partial: a.Partial, NaN: a.NaN,
			Items: display.Known(a.Items), Millis: [3]*float64{display.Known(a.Millis[0]), display.Known(a.Millis[1]), display.Known(a.Millis[2])}, Undrafted: a.Undrafted, Did: map[string]int64{}, Ranked: []rankedShown{},
		}
		for _, x := range a.Ranked {
			arm.Ranked = append(arm.Ranked, rankedShown{x.Model, x.Version, x.Answers, x.First.String(), x.Last.String()})
		}
		for i, n := range a.Did {
			arm.Did[r.Actions[i]] = n
		}
		out.Arms = append(out.Arms, arm)
	}
	for _, e := range r.Effects {
		out.Effects = append(out.Effects, effectShown{e.Variant, e.What, estimateOf(&e), e.Same})
	}
	for _, d := range r.Drafts {
		out.Drafts = append(out.Drafts, draftShown{d.Variant, d.Action, display.List(d.Teams), tallyOf(d.Impressions), tallyOf(d.Units), wonShown{d.First[1], d.First[0]}, estimateOf(&compare.Effect{What: compare.Did(d.Action), Effect: d.Effect})})
	}
	return out
}

// printReport prints a report of answers since a time, as text; empty: of all.
func printReport(w io.Writer, r *compare.Report, alpha float64, since string) error {
	if r.First == 0 {
		switch {
		case r.Unknown+r.Misdealt+r.Otherwise > 0:
			fmt.Fprintln(w, "no answer counts")
		case since != "":
			display.Printf(w, "nothing was shown since %s; without --since all that the topic has is compared\n", since)
		default:
			fmt.Fprintln(w, "nothing was shown yet: brokers write what they show if their configuration has exposures")
		}
		printApart(w, r)
		return nil
	}
	display.Printf(w, "answers from %s to %s\n\n", r.First, r.Last)
	t := display.NewTable(w)
	t.Printf("VARIANT\tWEIGHT\t%s\tANSWERS\tFORCED\tREFUSED\tEMPTY\tPARTIAL\tNAN\tITEMS\tP50 MS\tP95\tP99", strings.ToUpper(r.Units))
	for _, action := range r.Actions {
		t.Printf("\tDID %s", strings.ToUpper(action))
	}
	t.Printf("\n")
	for _, a := range r.Arms {
		part := func(n int64) string { return text(100*float64(n)/float64(a.Units), "%.3g%%") }
		t.Printf("%s\t%g%%\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%.3g\t%s\t%s\t%s", a.Variant, inPercent(a.Weight), a.Units, a.Answers, a.Forced,
			part(a.Refused), part(a.Empty), part(a.Partial), part(a.NaN), a.Items, text(a.Millis[0], "%.3g"), text(a.Millis[1], "%.3g"), text(a.Millis[2], "%.3g"))
		for _, n := range a.Did {
			t.Printf("\t%s", part(n))
		}
		t.Printf("\n")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, a := range r.Arms {
		var by []string
		for _, x := range a.Ranked {
			by = append(by, fmt.Sprintf("%s %s in %d answers", x.Model, x.Version, x.Answers))
		}
		if len(by) > 0 {
			display.Printf(w, "%s is ranked by %s\n", a.Variant, strings.Join(by, ", "))
		}
	}
	for _, a := range r.Arms {
		for _, says := range a.Changed() {
			display.Printf(w, "CHANGED: %s; what is compared pools them, and --since tells the last apart\n", says)
		}
	}
	for _, a := range r.Arms {
		if a.Undrafted > 0 {
			display.Printf(w, "%d answers of %s were not drafted: only the first model ranked them; their receipts say why\n", a.Undrafted, a.Variant)
		}
	}
	last := ""
	for _, e := range r.Effects {
		if e.Variant != last {
			last = e.Variant
			if err := t.Flush(); err != nil { // the table of the variant before
				return err
			}
			display.Printf(w, "\n%s beside %s:\n", e.Variant, r.Control)
		}
		t.Printf("  %s\t%s\n", e.What, effect(&e))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := printDrafts(w, r); err != nil {
		return err
	}
	fmt.Fprintln(w)
	switch {
	case r.Split == nil:
		display.Printf(w, "all %s are dealt one variant: there are no weights that they could not fit\n", r.Units)
	case !r.Fits(alpha / 10):
		display.Printf(w, "%s DO NOT FIT THE WEIGHTS (p %.2g): something but the hash decides who is in; believe nothing above before you know what\n", strings.ToUpper(r.Units), r.Split.P)
	default:
		display.Printf(w, "%s fit the weights (p %.2g)\n", r.Units, r.Split.P)
	}
	printApart(w, r)
	return nil
}

// printApart prints how many answers and acts are not compared, and why.
func printApart(w io.Writer, r *compare.Report) {
	for i := range r.Named {
		display.Printf(w, "%s\n", &r.Named[i])
	}
	for _, n := range []struct {
		count int64
		what  string
	}{
		{r.Crossed, r.Units + " met two variants, and stay with their first"},
		{r.Unknown, "answers are of variants that the definition does not have"},
		{r.Misdealt, "answers " + compare.Misdealt},
		{r.Implausible, "answers " + compare.Implausible},
		{r.Otherwise, "answers are of a time in which variants were dealt by other chances, as while monitored, and do not count"},
		{r.Beyond, "answers are of " + r.Units + " beyond those that are told apart"},
		{r.BeyondActs, "acts are of " + r.Units + ", or with items of drafts, beyond those that are told apart"},
		{r.OtherTeams, "acts are with drafts of other models than the definition's, and credit nobody"},
	} {
		if n.count > 0 {
			display.Printf(w, "%d %s\n", n.count, n.what)
		}
	}
}

// printDrafts prints what viewers prefer of two models that draft pages.
func printDrafts(w io.Writer, r *compare.Report) error {
	t := display.NewTable(w)
	last := ""
	for _, d := range r.Drafts {
		if d.Variant != last {
			last = d.Variant
			t.Printf("\n%s, drafted by %s and %s; %s wins by more of its items:\n", d.Variant, d.Teams[0], d.Teams[1], d.Teams[1])
			t.Printf("ACTION\tBY\tWINS\tLOSSES\tTIES\tΔ\n")
		}
		row := func(by string, x interleave.Tally) {
			t.Printf("%s\t%s\t%d\t%d\t%d\t%s\n", d.Action, by, x.Wins, x.Losses, x.Ties, text(x.Delta(), "%+.3g"))
		}
		row("impression", d.Impressions)
		row("viewer", d.Units)
		t.Printf("%s\tfirst item\t%d\t%d\t\t%s\n", d.Action, d.First[1], d.First[0], effect(&compare.Effect{What: compare.Did(d.Action), Effect: d.Effect}))
	}
	return t.Flush()
}

// inPercent returns a weight, from 0 to 1, in percent with two decimals, so that rounding
// errors of floats do not show.
func inPercent(weight float64) float64 { return math.Round(weight*slot.Count) / (slot.Count / 100) }

// text renders a number by a format, and NaN as "-".
func text(x float64, format string) string {
	if math.IsNaN(x) {
		return "-"
	}
	return fmt.Sprintf(format, x)
}

// judged says in one word what is known of a difference: unknown, no difference, less or
// more. A rate is compared with 1, and anything else with 0.
func judged(e *compare.Effect) string {
	none := 0.
	if e.What.Rate() {
		none = 1
	}
	switch {
	case e.Unknown():
		return "unknown"
	case e.Contains(none):
		return "no difference"
	case e.Below(none):
		return "less"
	}
	return "more"
}

// effect says what is known of a difference, with its numbers.
func effect(e *compare.Effect) string {
	times := ""
	if e.What.Rate() {
		times = " times"
	}
	switch says := judged(e); says {
	case "unknown":
		if e.Same && e.Value == 0 {
			return "none, for every viewer"
		}
		if e.Same {
			return fmt.Sprintf("%+.3g, for every viewer", e.Value)
		}
		return "too little is known"
	case "no difference":
		return fmt.Sprintf("no difference seen: %s to %s%s", number(e.Low), number(e.High), times)
	default:
		return strings.ToUpper(says) + fmt.Sprintf(": %s%s (%s to %s)", number(e.Value), times, number(e.Low), number(e.High))
	}
}

func number(x float64) string {
	if math.IsInf(x, 1) {
		return "any number"
	}
	return fmt.Sprintf("%.3g", x)
}

// Acts returns a reader of the outcomes of an experiment, whose definition must have some.
// It fills in what the definition says; cfg has the rest.
func Acts(e *experiment.Experiment, cfg exposures.ActReaderConfig) *exposures.ActReader {
	o := e.Outcomes
	cfg.Experiment, cfg.Outcomes, cfg.AnswerField, cfg.Window, cfg.Actions, cfg.Named = e.Name, o.Topic, o.Field(), o.For(), o.Actions, o.AnswerField != ""
	return exposures.NewActReader(cfg)
}
