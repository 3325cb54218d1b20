package topics

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// replaying is a replay of dead letters.
type replaying struct {
	command.Act
	log *reach.LogFlags
	q   letterQuery
	to  string
	all bool
}

func deadlettersReplay(l *reach.LogFlags) *cobra.Command {
	r := replaying{log: l}
	c := &cobra.Command{
		Use:   "replay OFFSET... | --all [--reason REASON --topic TOPIC --since 1h]",
		Short: "Have dead letters judged anew, and those that would be taken now brought in",
		Long: `Judges dead letters again, those of the offsets named or --all that the flags of
"deadletters list" choose: with the schemas that are known now, and as if they
arrived now. It shows what would become of each. --apply writes those that would
be taken to the topic they came from, byte for byte and without their headers,
from where they come in like all others. What would be refused again is left out.

A letter may be replayed twice: of two equal versions of a record the first stays.`,
		Example: `  millrace deadletters replay 17 18
  millrace deadletters replay --all --reason unknown-schema --topic posts --since 24h --apply`,
		RunE: func(c *cobra.Command, args []string) error { return r.run(c, args) },
	}
	f := c.Flags()
	r.Cluster = clusters.FlagsOf(f)
	r.q.flags(f)
	f.BoolVar(&r.all, "all", false, "all that the flags choose, at most --limit, the newest")
	f.StringVar(&r.to, "to", "", "the topic to write them to (default: where each came from)")
	r.Flags(c)
	display.Flag(c, &r.Output)
	return c
}

// offsets returns which letters are meant.
func (r *replaying) offsets(ctx context.Context, args []string) (all []int64, err error) {
	if r.all == (len(args) > 0) {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "OFFSET", Detail: "it is not clear which dead letters are meant", WayOut: "name their offsets (millrace deadletters list), or say --all with what chooses them"}
	}
	if !r.all {
		for _, text := range args {
			offset, err := strconv.ParseInt(text, 10, 64)
			if err != nil || offset < 0 {
				return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "OFFSET", Detail: fmt.Sprintf("%.40q is no offset", text), WayOut: "millrace deadletters list names the offsets"}
			}
			all = append(all, offset)
		}
		return all, nil
	}
	ctx, cancel := r.log.Bound(ctx)
	defer cancel()
	letters, err := r.q.find(ctx, r.log)
	for _, d := range letters {
		all = append(all, int64(d.Offset))
	}
	return all, err
}

// replayedLine is what becomes of a letter, as JSON.
type replayedLine struct {
	Offset   int64  `json:"offset"`
	Source   string `json:"source"`
	Reason   string `json:"reason"`
	Topic    string `json:"topic,omitempty"`
	Refused  string `json:"refused,omitempty"`
	ID       string `json:"id,omitempty"`
	Entity   string `json:"entity,omitempty"`
	Unjudged bool   `json:"unjudged,omitempty"`
	Applied  bool   `json:"applied"`
}

func (r *replaying) run(c *cobra.Command, args []string) error {
	asJSON := r.Output.JSON()
	offsets, err := r.offsets(c.Context(), args)
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	if len(offsets) == 0 {
		fmt.Fprintln(c.ErrOrStderr(), "no dead letters")
		return nil
	}
	o, err := r.Cluster.Operate(c.Context())
	if err != nil {
		return err
	}
	defer o.Close()
	nodes, err := o.Concerned("", func(*clusters.Operating, topology.Node) bool { return true })
	if err != nil {
		return err
	}
	node, err := o.Conns.Admin(nodes[0])
	if err != nil {
		return err
	}
	req := &nodev1.ReplayDeadLettersRequest{Offsets: offsets, Topic: r.to}
	resp, err := clusters.Act(c.Context(), r.log.Wait(), node.ReplayDeadLetters, req)
	if err != nil {
		return err
	}
	taken := 0
	for _, l := range resp.Letters {
		if l.Topic != "" {
			taken++
		}
	}
	if !asJSON {
		writeReplay(w, resp.Letters)
		fmt.Fprintf(w, "%d of %d dead letters would be written again\n", taken, len(resp.Letters))
	}
	ok := taken > 0
	if ok {
		ok, err = r.Meant(c)
	}
	if ok {
		req.Apply = true
		if resp, err = clusters.Act(c.Context(), r.log.Wait(), node.ReplayDeadLetters, req); err == nil && !asJSON {
			fmt.Fprintf(w, "%d are written again\n", taken)
		}
	}
	if err != nil || !asJSON {
		return err
	}
	return encodeReplay(w, resp.Letters, req.Apply)
}

func encodeReplay(w io.Writer, letters []*nodev1.ReplayedLetter, applied bool) error {
	for _, l := range letters {
		if err := display.WriteJSON(w, replayedLine{l.Offset, l.Source, l.Reason, l.Topic, l.Refused, l.Id, l.Entity, l.Unjudged, applied && l.Topic != ""}); err != nil {
			return err
		}
	}
	return nil
}

func writeReplay(w io.Writer, letters []*nodev1.ReplayedLetter) {
	t := display.NewTable(w)
	t.Printf("OFFSET\tFROM\tWAS REFUSED FOR\tRECORD\tNOW\n")
	for _, l := range letters {
		now := "goes to " + l.Topic
		switch {
		case l.Refused != "":
			now = "left out: " + display.Printable(l.Refused)
		case l.Unjudged:
			now += ", where only a partitioner can judge it"
		}
		t.Printf("%d\t%s\t%s\t%s\t%s\n", l.Offset, display.Printable(l.Source), display.Printable(l.Reason), display.Printable(l.Id), now)
	}
	t.Flush()
}
