package topics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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

// replaying has the flags of the command that replays dead letters.
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

--all takes the newest, as many as --limit says. A node is given 250 letters at a
time, the oldest first, each time as long as --wait says. Where it fails, the command
stops and says which are done; --after goes on behind them.

A letter may be replayed twice: of two equal versions of a record the first stays.`,
		Example: `  millrace deadletters replay 17 18
  millrace deadletters replay --all --reason unknown-schema --topic posts --since 24h --limit 5000 --apply`,
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

// offsets returns the offsets of the letters that are meant, the oldest first, each once.
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
			if offset > r.q.after {
				all = append(all, offset)
			}
		}
		slices.Sort(all)
		return slices.Compact(all), nil
	}
	ctx, cancel := r.log.Bound(ctx)
	defer cancel()
	letters, err := r.q.find(ctx, r.log)
	for _, d := range slices.Backward(letters) { // the oldest first
		all = append(all, int64(d.Offset))
	}
	return all, err
}

// replayedLine is what becomes of a letter, as JSON.
type replayedLine struct {
	Offset   int64  `json:"offset"`
	Source   string `json:"source"`
	Reason   string `json:"reason"`
	Topic    string `json:"topic,omitempty"`   // where it goes; empty: it is left out
	Refused  string `json:"refused,omitempty"` // why it is left out
	ID       string `json:"id,omitempty"`
	Entity   string `json:"entity,omitempty"`
	Unjudged bool   `json:"unjudged,omitempty"` // the node could not judge it: only a partitioner can
	Applied  bool   `json:"applied"`            // it was written
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
	ask := func(apply bool, doing string) (all []*nodev1.ReplayedLetter, err error) {
		told := display.StartTeller(c.Context(), c.ErrOrStderr())
		defer told.Close()
		err = inCalls(offsets, func(next []int64) error {
			told.Say(fmt.Sprintf("%d of %d dead letters are %s", len(all), len(offsets), doing))
			resp, err := clusters.Act(c.Context(), r.log.Wait(), node.ReplayDeadLetters, &nodev1.ReplayDeadLettersRequest{Offsets: next, Topic: r.to, Apply: apply})
			all = append(all, resp.GetLetters()...)
			if e, ok := errors.AsType[*millrace.Error](err); ok && apply && e.Field == "node" {
				e.WayOut = "do it again: a record that is there already stays as it is; the node's audit log says which were written"
			}
			return err
		})
		return all, err
	}
	letters, err := ask(false, "judged")
	if err != nil {
		return err
	}
	if !asJSON {
		writeReplay(w, letters)
		fmt.Fprintf(w, "%d of %d dead letters would be written again\n", taken(letters), len(letters))
	}
	ok := taken(letters) > 0
	if ok {
		ok, err = r.Meant(c)
	}
	if ok {
		if letters, err = ask(true, "done"); !asJSON && len(letters) > 0 {
			fmt.Fprintf(w, "%d are written again\n", taken(letters))
		}
	}
	if !asJSON || err != nil && !ok {
		return err
	}
	return errors.Join(encodeReplay(w, letters, ok), err)
}

// perCall is how many letters a node is given in a call. It is a quarter of what a node
// accepts, so that the call ends within the default --wait even if the log is busy.
const perCall = 250

// inCalls calls call with the offsets, in their order, at most perCall at a time. If the
// node says that the letters have too many bytes, inCalls tries half as many offsets. It
// stops at the first call that fails otherwise, and the error says how to go on.
func inCalls(offsets []int64, call func([]int64) error) error {
	for done, most := 0, perCall; done < len(offsets); {
		next := offsets[done:min(done+most, len(offsets))]
		err := call(next)
		if e := (*millrace.Error)(nil); errors.As(err, &e) && e.Reason == millrace.ReasonTooLarge && len(next) > 1 {
			most = len(next) / 2
			continue
		}
		if err != nil && done > 0 {
			last := offsets[done-1]
			return fmt.Errorf("%d dead letters, those up to offset %d, are done, and the others are not, or not all; the same command with --after %d goes on behind them: %w", done, last, last, err)
		}
		if err != nil {
			return err
		}
		done += len(next)
	}
	return nil
}

// taken returns how many letters are written again, or would be.
func taken(letters []*nodev1.ReplayedLetter) (n int) {
	for _, l := range letters {
		if l.Topic != "" {
			n++
		}
	}
	return n
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
