// Package topics has the commands for the log: its topics, schemas and dead letters, and
// loading records into it.
package topics

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// Command returns the command topics, which shows the topics and the partitioners that read
// them, and gets partitioners past what they cannot read.
func Command() *cobra.Command {
	c := &cobra.Command{Use: "topics", Short: "Show the log and how far it is partitioned, and get past what cannot be read"}
	l := reach.LogFlagsOf(c.PersistentFlags())
	c.AddCommand(topicsShow(l), topicsHistory(l), topicsSkip(l), topicsAdopt(l), topicsForget(l))
	return c
}

func topicsShow(l *reach.LogFlags) *cobra.Command {
	return display.Looking(&cobra.Command{
		Use:   "show",
		Short: "Show Millrace's own topics and the progress of the partitioners",
		Long: `Shows Millrace's own topics, the progress of the partitioners, and of each topic
that they read where it ends and up to where committed reads get (LAST STABLE).
What lies between waits for a transaction that is open (WAITING): the oldest is
shown by its transactional id and how long it has been open, as far as Kafka tells.
BEHIND is how many records, or offsets, the group that is furthest behind had not
committed at its last heartbeat, for whatever reason, such as a stuck partition.`,
		Args: cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		ctx, cancel := l.Bound(c.Context())
		defer cancel()
		shown, err := topicsOf(ctx, l)
		if err != nil {
			return err
		}
		return output.Write(c.OutOrStdout(), shown, shown.write)
	})
}

// topicsShown is what topics show shows.
type topicsShown struct {
	Kafka    string       `json:"kafka_cluster"`
	Topics   []topicShown `json:"topics"`
	Warnings []string     `json:"warnings"` // about Millrace's topics that delete records
	Groups   []groupShown `json:"groups"`   // the groups of partitioners
	Inputs   []inputShown `json:"inputs"`   // the topics that groups read (carry)
}

// inputShown is how much there is in a topic that partitioners read. Offsets are summed
// over its partitions.
type inputShown struct {
	Name    string     `json:"name"`
	End     int64      `json:"end"`               // the high watermarks, where the topic ends
	Stable  int64      `json:"last_stable"`       // how far readers get that read only committed transactions
	Waiting int64      `json:"waiting"`           // offsets between Stable and End: they wait until an open transaction has ended
	Behind  *int64     `json:"behind,omitempty"`  // offsets that the group that is furthest behind had not committed at its last heartbeat; left out: no heartbeat says
	Open    *openShown `json:"open,omitempty"`    // the transaction that has been open for the longest
	Unknown string     `json:"unknown,omitempty"` // why some of this entry is not known
}

// openShown is a transaction that is open.
type openShown struct {
	ID         string     `json:"transactional_id,omitempty"` // left out: not known
	ProducerID int64      `json:"producer_id"`
	Partition  int32      `json:"partition"`
	Offset     int64      `json:"offset"`
	Since      *time.Time `json:"since,omitempty"` // left out: not known
}

// topicShown is one of Millrace's own topics.
type topicShown struct {
	Name       string   `json:"name"`
	Partitions int      `json:"partitions"` // 0: there is no such topic
	Cleanup    string   `json:"cleanup_policy"`
	Kept       *float64 `json:"kept_seconds,omitempty"` // left out: for ever
	kept       string   // Kept in words
}

// groupShown is a group of partitioners, as its last heartbeat described it.
type groupShown struct {
	Group    string                        `json:"group"`
	Instance string                        `json:"instance"` // the partitioner that was heard last
	At       time.Time                     `json:"heard_at"`
	Through  *time.Time                    `json:"partitioned_through,omitempty"` // all input from before then is partitioned; left out: that is not proven of any time yet
	Silent   string                        `json:"silent,omitempty"`              // what Silence returns
	Carries  map[string]progress.TopicKind `json:"carries"`                       // the topics that it reads, and what is in each: content or features
	OtherLog string                        `json:"other_log,omitempty"`           // why it has stopped: the topics that it writes to are not those that it has written to before
	Stuck    []stuckShown                  `json:"stuck"`                         // the places where it cannot go on
	behind   map[string]int64              // by topic, how many offsets it had not committed
}

// stuckShown is a place where a group cannot go on.
type stuckShown struct {
	progress.Stuck
	Says string `json:"says"` // what is the matter in words, with the way out
}

// topicsOf returns what topics show shows. If there is no topic progress, it lacks groups and
// inputs.
func topicsOf(ctx context.Context, l *reach.LogFlags) (*topicsShown, error) {
	if err := kafka.Answers(ctx, l.At(ctx)); err != nil {
		return nil, err
	}
	log, err := kafka.InspectTopics(ctx, l.At(ctx), l.Topics())
	if err != nil {
		return nil, err
	}
	shown := &topicsShown{Kafka: log.Cluster, Topics: []topicShown{}, Warnings: []string{}, Groups: []groupShown{}, Inputs: []inputShown{}}
	for _, t := range log.Topics() {
		of := topicShown{Name: t.Name, Partitions: t.Partitions, Cleanup: t.CleanupPolicy, kept: "for ever"}
		if t.Retention >= 0 {
			seconds := t.Retention.Seconds()
			of.Kept, of.kept = &seconds, t.Retention.String()
		}
		shown.Topics = append(shown.Topics, of)
	}
	for _, d := range log.Deletes() {
		shown.Warnings = append(shown.Warnings, d+"; an index node cannot be rebuilt from the log alone")
	}
	if log.Progress.Partitions == 0 {
		return shown, nil
	}
	err = withProgress(ctx, l, func(said *progress.Log) error {
		for _, p := range said.Groups() {
			g := groupShown{Group: p.Group, Instance: p.Instance, At: p.At().UTC(), Silent: Silence(p, time.Now()), Carries: p.Kinds, OtherLog: p.OtherLog, Stuck: []stuckShown{}, behind: map[string]int64{}}
			for topic, t := range p.Topics {
				g.behind[topic] = t.Waiting
			}
			if p.ThroughMillis != 0 {
				through := p.Through().UTC()
				g.Through = &through
			}
			if g.Carries == nil {
				g.Carries = map[string]progress.TopicKind{}
			}
			for _, s := range p.Stuck {
				g.Stuck = append(g.Stuck, stuckShown{s, s.Says(p.Group)})
			}
			shown.Groups = append(shown.Groups, g)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	shown.Inputs, err = inputsOf(ctx, l, shown.Groups)
	return shown, err
}

// inputsOf looks at the topics that groups read. If Kafka does not tell about a topic, which
// may be gone or in another Kafka cluster, the topic's entry says so, and that is no error.
func inputsOf(ctx context.Context, l *reach.LogFlags, of []groupShown) ([]inputShown, error) {
	names := map[string]bool{}
	for _, g := range of {
		for topic := range g.Carries {
			names[topic] = true
		}
	}
	look, err := kafka.NewInspector(l.At(ctx))
	if err != nil {
		return nil, err
	}
	defer look.Close()
	all := []inputShown{}
	for _, topic := range slices.Sorted(maps.Keys(names)) {
		in := inputOf(ctx, look, topic)
		in.Behind = behindIn(of, topic)
		all = append(all, in)
	}
	return all, nil
}

// behindIn returns how many offsets of a topic the group that is furthest behind had not
// committed; nil if no heartbeat says it.
func behindIn(of []groupShown, topic string) (most *int64) {
	for _, g := range of {
		if n, ok := g.behind[topic]; ok && (most == nil || n > *most) {
			most = &n
		}
	}
	return most
}

func inputOf(ctx context.Context, look *kafka.Inspector, topic string) inputShown {
	in := inputShown{Name: topic}
	at, err := look.Extent(ctx, topic)
	if err != nil {
		in.Unknown = err.Error()
		return in
	}
	for p, end := range at.All {
		in.End += end
		in.Stable += min(at.Stable[p], end)
	}
	in.Waiting = in.End - in.Stable
	hidden := at.Hidden(nil)
	if hidden == nil {
		return in
	}
	open, err := look.OldestOpen(ctx, hidden)
	if err != nil {
		in.Unknown = err.Error()
	}
	if open != nil {
		in.Open = &openShown{ID: open.ID, ProducerID: open.ProducerID, Partition: open.Partition, Offset: int64(open.Offset)}
		if !open.Since.IsZero() {
			since := open.Since.UTC()
			in.Open.Since = &since
		}
	}
	return in
}

// write says what waits in a topic, and for which open transaction. It writes nothing if
// nothing waits and all is known.
func (in inputShown) write(w io.Writer, now time.Time) {
	if in.Waiting > 0 {
		display.Printf(w, "%s: %d entries wait behind a transaction that is open, and are read once it has ended\n", in.Name, in.Waiting)
	}
	if o := in.Open; o != nil {
		who, since := fmt.Sprintf("producer %d", o.ProducerID), "since when is not known"
		if o.ID != "" {
			who = fmt.Sprintf("transactional id %q", o.ID)
		}
		if o.Since != nil {
			since = fmt.Sprintf("open for %s", now.Sub(*o.Since).Round(time.Second))
		}
		display.Printf(w, "  the oldest is of %s, %s, from offset %d of partition %d\n", who, since, o.Offset, o.Partition)
	}
	if in.Unknown != "" {
		display.Printf(w, "  %s: not all is known: %s\n", in.Name, in.Unknown)
	}
}

// writeInputs writes how much there is in the topics that groups carry.
func (s *topicsShown) writeInputs(w io.Writer) error {
	if len(s.Inputs) == 0 {
		return nil
	}
	table := display.NewTable(w)
	table.Printf("INPUT\tEND\tLAST STABLE\tWAITING\tBEHIND\n")
	for _, in := range s.Inputs {
		behind := "-"
		if in.Behind != nil {
			behind = fmt.Sprint(*in.Behind)
		}
		table.Printf("%s\t%d\t%d\t%d\t%s\n", in.Name, in.End, in.Stable, in.Waiting, behind)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, in := range s.Inputs {
		in.write(w, time.Now())
	}
	return nil
}

func (s *topicsShown) write(w io.Writer) error {
	display.Printf(w, "Kafka cluster %s\n", s.Kafka)
	table := display.NewTable(w)
	table.Printf("TOPIC\tPARTITIONS\tCLEANUP\tKEPT\n")
	for _, t := range s.Topics {
		table.Printf("%s\t%d\t%s\t%s\n", t.Name, t.Partitions, t.Cleanup, t.kept)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, warning := range s.Warnings {
		display.Printf(w, "WARNING: %s\n", warning)
	}
	for _, g := range s.Groups {
		now := time.Now()
		done := "nothing is proven to be partitioned yet"
		if g.Through != nil {
			done = fmt.Sprintf("everything from before %s ago is partitioned", now.Sub(*g.Through).Round(time.Millisecond))
		}
		display.Printf(w, "group %s: heartbeat of %s %s ago; %s\n", g.Group, g.Instance, now.Sub(g.At).Round(time.Millisecond), done)
		if g.Silent != "" {
			display.Printf(w, "  %s\n", g.Silent)
		}
		for _, topic := range slices.Sorted(maps.Keys(g.Carries)) {
			display.Printf(w, "  %s carries %s\n", topic, g.Carries[topic])
		}
		if g.OtherLog != "" {
			display.Printf(w, "  %s\n", g.OtherLog)
		}
		for _, at := range g.Stuck {
			display.Printf(w, "  %s\n", at.Says)
		}
	}
	return s.writeInputs(w)
}

// withProgress reads the topic progress, to which partitioners write their heartbeats, to its
// end, and calls use with what it says.
func withProgress(ctx context.Context, l *reach.LogFlags, use func(*progress.Log) error) error {
	said, err := progress.Open(progress.Config{Brokers: l.At(ctx), Topic: l.Topics().Progress})
	if err != nil {
		return err
	}
	defer said.Close()
	if err := said.Refresh(ctx); err != nil {
		return err
	}
	return use(said)
}

func topicsHistory(l *reach.LogFlags) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:   "history",
		Short: "Who had partitioners skip, adopt or be forgotten, and when",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.Bound(c.Context())
			defer cancel()
			return withProgress(ctx, l, func(said *progress.Log) error {
				all := said.History()
				return output.Write(c.OutOrStdout(), display.List(all), func(w io.Writer) error { return display.WriteActs(w, all) })
			})
		},
	}
	display.Flag(c, &output)
	return c
}

// noteOf returns a function that writes into the topic progress what is done to a group.
func noteOf(ctx context.Context, l *reach.LogFlags) func(audit.Entry) error {
	return func(e audit.Entry) error { return progress.NoteAct(ctx, l.At(ctx), l.Topics().Progress, e) }
}

// skipFlags name what is to be skipped.
type skipFlags struct {
	command.Act
	group, topic string
	partition    int32 // -1: all places of the topic where the next offset to read is gone
	offset       int64 // where the batch to skip begins; -1 if partition is -1
}

func topicsSkip(l *reach.LogFlags) *cobra.Command {
	var s skipFlags
	c := &cobra.Command{
		Use:   "skip --topic TOPIC [--partition P --offset O]",
		Short: "Have the partitioners go on where they are stuck in a topic",
		Long: `A batch that cannot be opened stops its partition; so does a topic that was
trimmed before it was read, lost its end, or was deleted and created again.
"millrace topics show" and a partitioner's /readyz name the places and say what
is the matter. This has the partitioners go on behind them, while they run.

A batch is named by partition and offset; it is kept aside in the dead letters,
byte for byte. Without them it is about all places of the topic where what was
to be read next is gone: there is nothing to keep. It says what is lost.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.Bound(c.Context())
			defer cancel()
			return withProgress(ctx, l, func(said *progress.Log) error { return skipPlaces(c, l, said, s) })
		},
	}
	f := c.Flags()
	f.StringVar(&s.group, "group", progress.DefaultGroup, "the partitioners' consumer group")
	f.StringVar(&s.topic, "topic", "", "the content or feature topic")
	f.Int32Var(&s.partition, "partition", -1, "of a batch: its partition")
	f.Int64Var(&s.offset, "offset", -1, "of a batch: where it begins")
	s.Flags(c)
	c.MarkFlagsRequiredTogether("partition", "offset")
	if err := c.MarkFlagRequired("topic"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// skipPlaces shows the places that f names and, if --apply is given and the user agrees, asks
// the partitioners to skip them and waits until they have.
func skipPlaces(c *cobra.Command, l *reach.LogFlags, said *progress.Log, f skipFlags) error {
	w, places := c.OutOrStdout(), f.places(said)
	if len(places) == 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "topic",
			Detail: fmt.Sprintf("group %s does not say that it is stuck %s", f.group, f.where()),
			WayOut: "millrace topics show names what is stuck, and how to go on; a partitioner must be running"}
	}
	lost := int64(0)
	for _, at := range places {
		fmt.Fprintf(w, "%s/%d: %s\n", at.Topic, at.Partition, at.What())
		lost += at.Lost()
	}
	group, _ := said.Group(f.group)
	if places[0].Kind == progress.Recreated {
		fmt.Fprintf(w, "when the former %s was seen last, %d of its records had not been read\n", f.topic, group.Topics[f.topic].Waiting)
	}
	if lost > 0 {
		fmt.Fprintf(w, "%d records of %s are lost, at most\n", lost, f.topic)
	}
	if ok, err := f.Meant(c); !ok {
		return err
	}
	ctx, cancel := l.Bound(c.Context()) // a new one, since the user may have taken long to agree
	defer cancel()
	var asked []progress.Skip
	for _, at := range places {
		s := at.Skip(f.group)
		e := audit.Entry{Act: "skip", On: "group " + f.group, Before: fmt.Sprintf("stuck at %s/%d, offset %d", at.Topic, at.Partition, at.Offset), After: fmt.Sprintf("goes on at %d", at.Next)}
		if err := command.Noted(noteOf(ctx, l), e, func() error { return progress.RequestSkip(ctx, l.At(ctx), l.Topics().Progress, s) }); err != nil {
			return err
		}
		asked = append(asked, s)
	}
	if err := said.Refresh(ctx); err != nil {
		return err
	}
	if err := awaitSkips(ctx, said, f.group, asked); err != nil {
		return err
	}
	for _, at := range places {
		fmt.Fprintf(w, "%s/%d goes on at %d\n", at.Topic, at.Partition, at.Next)
	}
	return nil
}

// awaitSkips waits until the partitioners have carried out the skips that were asked for. If
// ctx ends before that, it returns an error; partitioners carry the skips out later.
func awaitSkips(ctx context.Context, said *progress.Log, group string, asked []progress.Skip) error {
	for {
		moved := said.Moved()
		left := said.Skips(group)
		if !slices.ContainsFunc(asked, func(s progress.Skip) bool { return slices.Contains(left, s) }) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("the partitioners have not carried it out yet; they will as soon as one runs that is stuck there: %w", ctx.Err())
		}
	}
}

// places returns the places where the group says that it is stuck, as far as the flags name
// them.
func (f skipFlags) places(said *progress.Log) (all []progress.Stuck) {
	p, _ := said.Group(f.group)
	for _, at := range p.Stuck {
		one := at.Partition == f.partition && int64(at.Offset) == f.offset
		if at.Topic == f.topic && (one || f.partition < 0 && at.Kind != progress.Closed) {
			all = append(all, at)
		}
	}
	return all
}

// where says in words which places the flags name.
func (f skipFlags) where() string {
	if f.partition < 0 {
		return fmt.Sprintf("in %s for want of what is gone", f.topic)
	}
	return fmt.Sprintf("at %s/%d at %d", f.topic, f.partition, f.offset)
}

func topicsAdopt(l *reach.LogFlags) *cobra.Command {
	var a command.Act
	var group string
	var fromBeginning bool
	c := &cobra.Command{
		Use:   "adopt --group GROUP [--from-beginning]",
		Short: "Have the partitioners go on with timeline and features topics that are not those they have written to",
		Long: `Partitioners that find another timeline or features topic than they have written
to stop, since what they brought before is not in it: it is only in backups, and
in the content topics as far as those still have it. This has them go on with
the topics that are there now.

With --from-beginning they read the content and feature topics anew, from what
those still have. Without it they go on where they were: index nodes whose data
directories are empty then lack what came before.

Index nodes stay quarantined that have read the former topics. They serve the
present ones once their data directories are empty.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return adopt(c, &a, l, group, fromBeginning)
		},
	}
	f := c.Flags()
	f.StringVar(&group, "group", progress.DefaultGroup, "the partitioners' consumer group")
	f.BoolVar(&fromBeginning, "from-beginning", false, "set the group back to the beginning of its topics")
	a.Flags(c)
	return c
}

// adopt shows what it means that a group goes on with the topics that are there now. If
// --apply is given and the user agrees, it has the group do so.
func adopt(c *cobra.Command, a *command.Act, l *reach.LogFlags, group string, fromBeginning bool) error {
	ctx, cancel := l.Bound(c.Context())
	defer cancel()
	w := c.OutOrStdout()
	brokers := l.At(ctx)
	plan, err := groups.PlanAdoption(ctx, brokers, group, l.Topics().Logs())
	if err != nil {
		return err
	}
	if plan.Other == nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "group", Detail: fmt.Sprintf("group %s has written to no other topics than those that are there", group),
			WayOut: "millrace topics show names the groups, and says which of them have stopped"}
	}
	fmt.Fprintf(w, "%s\n", strings.Join(plan.Other.Changes, "\n"))
	fmt.Fprintf(w, "what the group brought before is not in the present topics: %d records at most of its topics as they are now, which still have %d of them; how many came from topics that were deleted since, or created again, or are no longer the group's, is not known\n", plan.Brought, plan.Kept)
	if fromBeginning {
		fmt.Fprintln(w, "the group reads its topics anew from what they still have; the rest is only in backups")
	} else {
		fmt.Fprintln(w, "the group goes on where it is: feeds lack what came before unless a backup is restored; --from-beginning brings what the topics still have")
	}
	if ok, err := a.Meant(c); !ok {
		return err
	}
	ctx, again := l.Bound(c.Context()) // a new one, since the user may have taken long to agree
	defer again()
	from := "from where it is"
	if fromBeginning {
		from = "from the beginning"
	}
	e := audit.Entry{Act: "adopt", On: "group " + group, Before: strings.Join(plan.Other.Changes, "; "), After: "writes to the topics that are there, and reads " + from}
	if err := command.Noted(noteOf(ctx, l), e, func() error { return groups.Adopt(ctx, brokers, plan, fromBeginning) }); err != nil {
		return err
	}
	fmt.Fprintf(w, "group %s goes on; index nodes that are quarantined by other_log need empty data directories\n", group)
	return nil
}

func topicsForget(l *reach.LogFlags) *cobra.Command {
	var a command.Act
	var group string
	c := &cobra.Command{
		Use:   "forget --group GROUP",
		Short: "Forget a group of partitioners that was retired, so that nobody waits for its heartbeat",
		Long: `Forgets a group of partitioners that was retired, so that nobody waits for its
heartbeat: one that was not heard for a minute. One of which a partitioner
still runs comes back with the next.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := l.Bound(c.Context())
			defer cancel()
			return withProgress(ctx, l, func(said *progress.Log) error {
				p, ok := said.Group(group)
				if !ok {
					return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "group", Detail: fmt.Sprintf("no partitioner of the group %q ever wrote", group),
						WayOut: "millrace topics show names the groups"}
				}
				if heard := time.Since(p.At()); heard.Abs() < forgetAfter { // a heartbeat from far in the future is from a clock that was wrong, and may be forgotten
					return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "group", Detail: fmt.Sprintf("a partitioner of the group %q runs: %s told of itself %s ago", group, p.Instance, heard.Round(time.Second)),
						WayOut: fmt.Sprintf("stop the group's partitioners, and forget it when it was not heard for %s", forgetAfter)}
				}
				last := fmt.Sprintf("heartbeat of %s at %s", p.Instance, display.ShortTime(p.At()))
				display.Printf(c.OutOrStdout(), "nobody would wait for group %s any more: its last was a %s\n", group, last)
				if ok, err := a.Meant(c); !ok {
					return err
				}
				ctx, again := l.Bound(c.Context()) // a new one, since the user may have taken long to agree
				defer again()
				return command.Noted(noteOf(ctx, l), audit.Entry{Act: "forget", On: "group " + group, Before: last, After: "forgotten"}, func() error {
					return progress.ForgetGroup(ctx, l.At(ctx), l.Topics().Progress, group)
				})
			})
		},
	}
	c.Flags().StringVar(&group, "group", "", "the partitioners' consumer group")
	a.Flags(c)
	if err := c.MarkFlagRequired("group"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// HeartbeatLimit is how old the newest heartbeat of a group of partitioners may be, and how
// far the group may be behind, before that is a fault.
const HeartbeatLimit = 10 * time.Second

// forgetAfter is how long a group must be silent before it can be forgotten. Once it has
// been, Silence also names the command that forgets it.
const forgetAfter = time.Minute

// Silence says for how long a group of partitioners has not been heard, and what follows; ""
// if it was heard within HeartbeatLimit.
func Silence(g progress.Progress, now time.Time) string {
	silent := now.Sub(g.At())
	if silent <= HeartbeatLimit {
		return ""
	}
	says := fmt.Sprintf("group %s has not been heard for %s", g.Group, silent.Round(time.Second))
	if silent < forgetAfter {
		return says + ": its partitioners have ended or are cut off from Kafka, or Kafka is only just back; all answers count as behind until one is heard"
	}
	return says + fmt.Sprintf(": its partitioners are dead, frozen or cut off from Kafka, and all answers count as behind until one is heard; if it was retired, or its name was a slip, then by: millrace topics forget --group %q --apply", g.Group)
}
