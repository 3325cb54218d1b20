package topics

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// DeadLetters returns the command deadletters, which shows the records that partitioners and
// index nodes refused (dead letters), and has them judged again.
func DeadLetters() *cobra.Command {
	c := &cobra.Command{Use: "deadletters", Short: "Show the records that were refused, and why; have them judged again"}
	l := reach.LogFlagsOf(c.PersistentFlags())
	c.AddCommand(deadlettersList(l), deadlettersShow(l), deadlettersReplay(l))
	return c
}

// letterQuery says which dead letters are meant.
type letterQuery struct {
	reason, topic, containing, since string
	limit                            int
	after                            int64 // only those with a higher offset in the topic of dead letters; -1: all
}

func deadlettersList(l *reach.LogFlags) *cobra.Command {
	var q letterQuery
	var output display.Form
	c := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Long: `Lists the records that partitioners and index nodes refused, newest first: why,
and from where. Without --since it looks through all that the topic of dead
letters has, until it has found as many as --limit says.`,
		Example: `  millrace deadletters list --topic posts --since 1h
  millrace deadletters list --containing post:17`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.Bound(c.Context())
			defer cancel()
			letters, err := q.find(ctx, l)
			if err != nil {
				return err
			}
			return output.Write(c.OutOrStdout(), letters, func(w io.Writer) error { return writeLetters(w, letters, q.limit) })
		},
	}
	q.flags(c.Flags())
	display.Flag(c, &output)
	return c
}

func (q *letterQuery) flags(f *pflag.FlagSet) {
	f.StringVar(&q.reason, "reason", "", "only those refused for this reason, such as time-in-the-future")
	f.StringVar(&q.topic, "topic", "", "only those read from this topic")
	f.StringVar(&q.containing, "containing", "", "only those with this text in their key or value, such as a record's id")
	f.StringVar(&q.since, "since", "", "only those refused since then: 90m, or a time as of RFC 3339")
	f.Int64Var(&q.after, "after", -1, "only those behind this offset of the dead letters")
	f.IntVar(&q.limit, "limit", 50, "at most so many")
}

// letterRow is a dead letter in a list.
type letterRow struct {
	Offset millrace.Offset `json:"offset"`
	Time   string          `json:"time"`
	Reason string          `json:"reason"`
	Detail string          `json:"detail"`
	Source string          `json:"source"`          // where it was read from: topic/partition/offset
	Batch  string          `json:"batch,omitempty"` // the batch that it is a piece of, if a whole batch was kept aside; empty: it is one record
	Piece  string          `json:"piece,omitempty"` // which piece of the batch
	Key    string          `json:"key,omitempty"`   // its beginning, as far as it can be printed
	Bytes  int             `json:"bytes"`           // of the value
}

func rowOf(d kafka.DeadLetter) letterRow {
	return letterRow{
		Offset: d.Offset, Time: d.Time.String(), Reason: display.Printable(d.Reason), Detail: display.Printable(d.Detail), Source: display.Printable(d.Source),
		Batch: display.Printable(d.Batch), Piece: display.Printable(d.Piece), Key: display.Printable(string(d.Key)), Bytes: len(d.Value),
	}
}

// The topic of dead letters is read backwards, a span of offsets at a time, so that the
// newest are found first. Each span is twice as long as the one before, up to maxSpan
// offsets.
const (
	firstSpan = 256
	maxSpan   = 64 << 10
)

// find returns the letters that fit the query, newest first, at most q.limit.
func (q letterQuery) find(ctx context.Context, l *reach.LogFlags) ([]letterRow, error) {
	if q.limit < 1 {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "limit", Detail: fmt.Sprintf("%d letters are none", q.limit), WayOut: "give a positive number"}
	}
	log, err := kafka.OpenDeadLetters(ctx, l.At(ctx), l.Topics().DeadLetters)
	if err != nil {
		return nil, err
	}
	first := log.First
	if q.since != "" {
		t, err := command.Since("since", q.since, time.Now())
		if err != nil {
			return nil, err
		}
		if first, err = log.Since(ctx, t); err != nil {
			return nil, err
		}
	}
	first = max(first, millrace.Offset(q.after)+1)
	found := []letterRow{}
	for to, span := log.End, millrace.Offset(firstSpan); to > first && len(found) < q.limit; span = min(2*span, maxSpan) {
		from := max(first, to-span)
		var rows []letterRow
		if err := log.Read(ctx, from, to, func(d kafka.DeadLetter) {
			if !q.fits(d) {
				return
			}
			if rows = append(rows, rowOf(d)); len(rows) >= 2*q.limit { // keep only the newest, since Read goes from old to new
				rows = append(rows[:0], rows[len(rows)-q.limit:]...)
			}
		}); err != nil {
			return nil, err
		}
		slices.Reverse(rows)
		found, to = append(found, rows...), from
	}
	return found[:min(len(found), q.limit)], nil
}

// fits reports whether a letter is one that the flags choose, apart from its offset and time.
func (q letterQuery) fits(d kafka.DeadLetter) bool {
	return (q.reason == "" || d.Reason == q.reason) &&
		(q.topic == "" || strings.HasPrefix(d.Source, q.topic+"/")) &&
		(bytes.Contains(d.Value, []byte(q.containing)) || bytes.Contains(d.Key, []byte(q.containing)))
}

func writeLetters(w io.Writer, letters []letterRow, limit int) error {
	if len(letters) == 0 {
		fmt.Fprintln(w, "no dead letters")
		return nil
	}
	table := display.NewTable(w)
	table.Printf("OFFSET\tTIME\tFROM\tREASON\tDETAIL\n")
	for _, d := range letters {
		table.Printf("%d\t%s\t%s\t%s\t%s\n", d.Offset, d.Time, d.Source, d.Reason, d.Detail)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(letters) == limit {
		fmt.Fprintf(w, "These are the newest %d; --limit shows more.\n", limit)
	}
	fmt.Fprintln(w, "To see more of a letter: millrace deadletters show OFFSET")
	return nil
}

func deadlettersShow(l *reach.LogFlags) *cobra.Command {
	var output display.Form
	var raw bool
	c := &cobra.Command{
		Use:   "show OFFSET",
		Short: "Show one dead letter with its contents",
		Long: `Shows a dead letter by the offset that "millrace deadletters list" names: why it
was refused, and its record in JSON, if its schema is known and it can be read.
With --raw it writes the value alone, byte for byte.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			offset, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "OFFSET", Detail: fmt.Sprintf("%q is no offset", args[0]),
					WayOut: "millrace deadletters list names the offsets"}
			}
			ctx, cancel := l.Bound(c.Context())
			defer cancel()
			d, err := letterAt(ctx, l, millrace.Offset(offset))
			if err != nil {
				return err
			}
			if raw {
				_, err := c.OutOrStdout().Write(d.Value)
				return err
			}
			full, err := readLetter(ctx, l, d)
			if err != nil {
				return err
			}
			return output.Write(c.OutOrStdout(), full, full.write)
		},
	}
	display.Flag(c, &output)
	c.Flags().BoolVar(&raw, "raw", false, "write the value alone, as it is")
	return c
}

// letterAt returns the dead letter at an offset. If there is none, it returns an error that
// says which offsets there are.
func letterAt(ctx context.Context, l *reach.LogFlags, offset millrace.Offset) (found kafka.DeadLetter, err error) {
	log, err := kafka.OpenDeadLetters(ctx, l.At(ctx), l.Topics().DeadLetters)
	if err != nil {
		return found, err
	}
	there := false
	if offset >= log.First && offset < log.End {
		err = log.Read(ctx, offset, offset+1, func(d kafka.DeadLetter) { found, there = d, true })
	}
	if err == nil && !there {
		err = &millrace.Error{Reason: millrace.ReasonUnknown, Field: "OFFSET", Detail: fmt.Sprintf("no dead letter has the offset %d", offset),
			WayOut: fmt.Sprintf("millrace deadletters list names those that there are, from %d to %d", log.First, log.End-1)}
	}
	return found, err
}

// letterShown is a dead letter with its contents.
type letterShown struct {
	letterRow
	Schema string         `json:"schema,omitempty"`
	Record map[string]any `json:"record,omitempty"` // if the schema is known and the body fits
	Value  []byte         `json:"value"`            // base64; null is a null value
}

// readLetter returns a letter with its contents. If its schema is not known or its body does
// not fit, Record is nil, and that is no error.
func readLetter(ctx context.Context, l *reach.LogFlags, d kafka.DeadLetter) (letterShown, error) {
	shown := letterShown{letterRow: rowOf(d), Value: d.Value}
	framed, err := schemas.Unframe(d.Value)
	if err != nil || framed.Confluent {
		return shown, nil
	}
	return shown, l.WithSchemas(ctx, func(_ *schemalog.Log, known *registry.Snapshot) error {
		if s := known.ByFingerprint(framed.Fingerprint); s != nil {
			shown.Schema = fmt.Sprintf("%s (%s)", s.Name(), s.Fingerprint())
			shown.Record, _ = s.JSONValue(framed.Body) // if it cannot be decoded, the letter's reason says why
		}
		return nil
	})
}

// write prints a letter for people.
func (d letterShown) write(w io.Writer) error {
	line := func(name, value string) {
		if value != "" {
			display.Printf(w, "%s: %s\n", name, value)
		}
	}
	line("offset", fmt.Sprint(d.Offset))
	line("time", d.Time)
	line("from", d.Source)
	line("reason", d.Reason)
	line("detail", d.Detail)
	if d.Batch != "" {
		line("batch", d.Batch+", piece "+d.Piece)
	}
	line("key", d.Key)
	line("schema", d.Schema)
	switch {
	case d.Record != nil:
		text, err := json.MarshalIndent(d.Record, "", "  ")
		if err != nil {
			return err
		}
		for l := range strings.Lines("record: " + string(text)) {
			display.Printf(w, "%s\n", strings.TrimSuffix(l, "\n"))
		}
	case d.Value == nil:
		line("value", "null")
	default:
		const most = 3 << 10
		text := base64.StdEncoding.EncodeToString(d.Value[:min(len(d.Value), most)])
		if len(d.Value) > most {
			text += "... (all of it: --raw)"
		}
		line("value", fmt.Sprintf("%d bytes, in base64: %s", len(d.Value), text))
	}
	return nil
}
