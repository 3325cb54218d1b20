// Package export writes what answers showed, and what viewers did with it, to files for other
// tools.
package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/schemas/registry"
)

// Command returns the command export.
func Command() *cobra.Command {
	c := &cobra.Command{Use: "export", Short: "Write what was shown to files, to train and to analyse by"}
	c.AddCommand(exportExposures())
	return c
}

// exporting is an export of exposures: its flags, and what it has counted. An exposure is
// the record of what one answer showed.
type exporting struct {
	log                  *reach.LogFlags
	topic, experiment    string
	since, until         string
	outcomes, answer     string
	named                bool // --answer-field is given
	windowed             bool // --window is given
	window               time.Duration
	to, out              string
	from, before         millrace.Time
	progress             *display.Teller
	stdout               io.Writer
	answers, items, none int             // answers and items that were written, and answers that showed nothing
	did                  int64           // outcomes (what viewers did) that were written, each counted once
	read, others         int             // exposures that were read, and entries of their topic that are none
	hidden               []*kafka.Hidden // for each topic read, what an open transaction hides; an element is nil if none does
	bad                  outcome.Faults  // entries of the topic of outcomes that are no outcomes
	has                  map[string]bool // the experiments of all answers between from and before
}

func exportExposures() *cobra.Command {
	e := exporting{has: map[string]bool{}}
	c := &cobra.Command{
		Use:   "exposures",
		Short: "Write what viewers were shown, and what they did with it, as Parquet or NDJSON",
		Long: `Reads the topic of exposures and writes a row for each item that was shown, with
its answer's columns beside it; an answer that showed nothing has one row without
an item. --outcomes names the topic of what viewers did: each row then says by
which actions, how often, and when first.

Outcomes are Avro records of your own schema, which the cluster's schemas topic
has: the role entity is the viewer, object the record that was acted on, type the
action (click, like, hide), time when. If a field, answer_id unless
--answer-field names another, holds the receipt's answer_id, the outcome belongs
to that answer. Any other belongs to the latest answer that showed the viewer the
record, at most --window before; where none did, to the first up to a minute
after, since clocks may differ by that. One that comes again counts once: under its
id, by the same viewer, on the same record, by the same action, and with the same
answer. One with a record that is on a page several times (copy_of) stands beside
each of these rows. Entries that are no outcomes are counted and left out, and so are
those that are no exposures; a topic that has nothing else is refused.

NOT ALL says that an open transaction in a topic hides entries, which are missing.`,
		Example: `  millrace export exposures --since 24h --outcomes clicks --out shown.parquet
  millrace export exposures --experiment fresher --to ndjson --out - | jq .`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	e.log = reach.LogFlagsOf(f)
	f.Lookup("wait").Usage = "give up after this long if Kafka does not answer"
	f.StringVar(&e.topic, "topic", "exposures", "the topic that brokers write what they showed to")
	f.StringVar(&e.experiment, "experiment", "", "only answers that it had a part in")
	f.StringVar(&e.since, "since", "", "only answers since then: 90m, or a time as of RFC 3339 (default: all that the topic has)")
	f.StringVar(&e.until, "until", "", "only answers before then, likewise")
	f.StringVar(&e.outcomes, "outcomes", "", "the topic of what viewers did; left out: rows have no outcomes")
	f.StringVar(&e.answer, "answer-field", "answer_id", "the field of outcomes that holds the answer_id of a receipt")
	f.DurationVar(&e.window, "window", 24*time.Hour, "for how long after an answer outcomes may be its own that do not name theirs")
	f.StringVar(&e.to, "to", "parquet", "parquet or ndjson")
	f.StringVar(&e.out, "out", "", "the file; - is standard output")
	_ = c.MarkFlagRequired("out")
	c.RunE = func(c *cobra.Command, _ []string) error {
		e.stdout, e.named, e.windowed = c.OutOrStdout(), c.Flags().Changed("answer-field"), c.Flags().Changed("window")
		e.progress = display.StartTeller(c.Context(), c.ErrOrStderr())
		defer e.progress.Close()
		return e.run(c.Context(), c.ErrOrStderr())
	}
	return c
}

// validate checks the flags, and reads the times that they give.
func (e *exporting) validate() (err error) {
	if e.to != "parquet" && e.to != "ndjson" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "to", Detail: fmt.Sprintf("%.40q is no form of file", e.to), WayOut: "say parquet or ndjson"}
	}
	if e.window < 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "window", Detail: fmt.Sprintf("%v is before the answer", e.window), WayOut: "say how long after an answer an outcome may come, such as 24h"}
	}
	if e.outcomes == "" && (e.named || e.windowed) {
		about := "answer-field"
		if !e.named {
			about = "window"
		}
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: about, Detail: "it is about outcomes, and rows have none", WayOut: "name the topic of what viewers did by --outcomes, or leave it out"}
	}
	now := time.Now()
	if e.before = millrace.TimeOf(now.AddDate(1, 0, 0)); e.until != "" { // without --until, later than any answer
		if e.before, err = command.Until("until", e.until, now); err != nil {
			return err
		}
	}
	if e.since != "" {
		if e.from, err = command.Since("since", e.since, now); err != nil {
			return err
		}
	}
	if e.from >= e.before {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "until", Detail: fmt.Sprintf("there is no time from %s to %s", e.from, e.before), WayOut: "let --until come after --since"}
	}
	return nil
}

func (e *exporting) run(ctx context.Context, told io.Writer) (err error) {
	if err := e.validate(); err != nil {
		return err
	}
	// The topic is opened before a file is made: most mistakes are found by then.
	from := e.from
	if e.outcomes != "" { // an outcome may belong to an answer before that time
		from = max(0, from-millrace.Time(e.window.Milliseconds()))
	}
	span, err := e.open(ctx, e.topic, from)
	if err != nil {
		return err
	}
	e.hidden = append(e.hidden, span.Hidden())
	w := e.stdout
	if e.out != "-" {
		var f *os.File // declared apart, so that err stays the named result: it decides below whether the file is kept
		f, err = os.OpenFile(e.out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "out", Detail: e.out + " is there already", WayOut: "name another file"}
		}
		if err != nil {
			return err
		}
		w = f
		defer func() {
			if err = errors.Join(err, f.Close()); err != nil {
				err = errors.Join(err, os.Remove(e.out))
			}
		}()
	}
	done, report, err := e.attribute(ctx, span)
	if err != nil {
		return err
	}
	rows := RowsTo(w, e.to)
	if err := e.write(ctx, span, done, rows); err != nil {
		return err
	}
	if e.read == 0 && e.others > 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "topic", Detail: fmt.Sprintf("%d entries of %s are no exposures, and nothing else is in it%s", e.others, e.topic, e.sinceText()), WayOut: "name the topic that brokers write what they showed to"}
	}
	if e.answers == 0 && e.experiment != "" {
		return command.UnknownAmong("experiment", e.experiment, e.topic+" has no answer", e.sinceText(), e.has)
	}
	if err := rows.Close(); err != nil {
		return err
	}
	e.tell(told, report)
	return nil
}

// sinceText says in words which times --since and --until give; "" if neither does.
func (e *exporting) sinceText() (text string) {
	if e.since != "" {
		text = fmt.Sprintf(" since %s", e.from)
	}
	if e.until != "" {
		text += fmt.Sprintf(" until %s", e.before)
	}
	return text
}

// open finds the offsets of a topic from a time on, for reading.
func (e *exporting) open(ctx context.Context, topic string, from millrace.Time) (*kafka.TopicSpan, error) {
	ctx, cancel := e.log.Bound(ctx)
	defer cancel()
	return kafka.OpenTopic(ctx, e.log.At(ctx), topic, from)
}

// wanted reports whether an answer is to be written, and notes its experiments in e.has.
func (e *exporting) wanted(r *exposure.Record) bool {
	if r.Time < e.from || r.Time >= e.before {
		return false
	}
	part := e.experiment == ""
	for i := range r.Experiments {
		e.has[r.Experiments[i].Experiment] = true
		part = part || r.Experiments[i].Experiment == e.experiment
	}
	return part
}

// attribute finds the item that each outcome belongs to, whether the item is written or
// not. It returns the outcomes by the place of their item, and a report that counts them.
// Without a topic of outcomes it returns nil, nil, nil.
func (e *exporting) attribute(ctx context.Context, span *kafka.TopicSpan) (map[outcome.Place][]outcome.Done, *outcome.Report, error) {
	if e.outcomes == "" {
		return nil, nil, nil
	}
	var known *registry.Snapshot
	bound, cancel := e.log.Bound(ctx)
	defer cancel()
	if err := e.log.WithSchemas(bound, func(_ *schemalog.Log, s *registry.Snapshot) error {
		known = s
		return nil
	}); err != nil {
		return nil, nil, err
	}
	did, err := e.open(ctx, e.outcomes, max(0, e.from-millrace.Time(outcome.Skew.Milliseconds())))
	if err != nil {
		return nil, nil, err
	}
	ledger, strange, seen := outcome.NewLedger(e.window), outcome.Faults{}, outcome.Seen{}
	e.hidden = append(e.hidden, did.Hidden())
	if err := did.Read(ctx, func(value []byte, closed error) error {
		e.saying("outcomes", did)
		if closed != nil {
			e.bad.Add(closed)
			return nil
		}
		seen.Add(known, value)
		o, err := outcome.Decode(known, value, e.answer)
		if err != nil {
			e.bad.Add(err)
			strange.Add(err)
			return nil
		}
		return ledger.Add(o)
	}); err != nil {
		return nil, nil, err
	}
	if ledger.Len() == 0 {
		if err := strange.Err(e.outcomes); err != nil {
			return nil, nil, err
		}
	}
	if e.named {
		if err := seen.Lacks(e.outcomes, nil, e.answer); err != nil {
			return nil, nil, err
		}
	}
	if _, err := exposures.ReadSpan(ctx, span, func(r *exposure.Record) {
		e.saying("exposures, for outcomes", span)
		ledger.Offer(r)
	}); err != nil {
		return nil, nil, err
	}
	done, report := ledger.Settle()
	return done, &report, nil
}

// saying tells the user how much of a topic has been read.
func (e *exporting) saying(what string, span *kafka.TopicSpan) {
	e.progress.Say(fmt.Sprintf("%s: %.0f %% of the topic", what, 100*span.Done()))
}

// write writes the rows of all answers that are wanted, and counts them in e. It ends at the
// first row that cannot be written.
func (e *exporting) write(ctx context.Context, span *kafka.TopicSpan, done map[outcome.Place][]outcome.Done, rows RowWriter) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var row []Item
	var fault error
	others, err := exposures.ReadSpan(ctx, span, func(r *exposure.Record) {
		e.saying("exposures", span)
		e.read++
		if fault != nil || !e.wanted(r) {
			return
		}
		row = appendShown(row[:0], r, done)
		if fault = rows.Write(row); fault != nil {
			stop()
			return
		}
		e.answers++
		e.items += len(r.Items)
		if len(r.Items) == 0 {
			e.none++
		}
		for i := range row {
			if row[i].CopyOf != nil { // its outcomes are counted with the row that it copies
				continue
			}
			for _, o := range row[i].Outcomes {
				e.did += o.Count
			}
		}
	})
	e.others = others
	if fault != nil {
		return fault
	}
	if err == nil {
		e.saying("exposures", span)
	}
	return err
}

// tell says what was written, and what was left out. r is nil if there are no outcomes.
func (e *exporting) tell(w io.Writer, r *outcome.Report) {
	where := e.out
	if where == "-" {
		where = "standard output"
	}
	with := ""
	if r != nil {
		with = fmt.Sprintf(", with %d outcomes", e.did)
	}
	fmt.Fprintf(w, "%d items of %d answers are in %s%s; %d answers showed nothing\n", e.items, e.answers, where, with, e.none)
	if e.others > 0 {
		fmt.Fprintf(w, "%d entries of %s are no exposures that this version reads, of a time that has not come, or batches that cannot be opened\n", e.others, e.topic)
	}
	if e.bad.N > 0 {
		fmt.Fprintf(w, "%d entries of %s are no outcomes, and are not counted; the first: %v\n", e.bad.N, e.outcomes, e.bad.First)
	}
	for _, h := range e.hidden {
		if h != nil {
			fmt.Fprintf(w, "NOT ALL: %d entries of %s are not in it: %v\n", h.Entries, h.Topic, h)
		}
	}
	if r != nil {
		fmt.Fprintf(w, "of all outcomes in the topic, %s\n", r)
	}
}
