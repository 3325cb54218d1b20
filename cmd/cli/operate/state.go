package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// stating has the flags of the command state.
type stating struct {
	cm              *clusters.Flags
	kind, partition string
	by              string
	output          display.Form
	since           string
	watch           time.Duration
	asked           *int32 // the partition that check has read from the flag; nil: all partitions
}

// State returns the command state, which shows how much a cluster holds, and where.
func State() *cobra.Command {
	s := &stating{}
	c := &cobra.Command{
		Use:   "state",
		Short: "Show how much a cluster has of each content type, and how much comes and goes",
		Long: `Asks every index node how much it has, and shows it by content type: live records,
timelines, bytes before compression, records a second that come and go over the
last minute, how old the newest is by its time (or "in 22h", of the future),
tombstones (DELETED), what retention has dropped since the replica began
(EXPIRED), and which part of the records of all replicas is in their caches. Each
partition counts once, by its ready replica that is furthest. Under it are the
dead letters of late, by topic and reason, unless to count them takes longer than ten seconds.

--by partition shows a line for each partition and type. --watch draws it again
every two seconds, or as often as it says, until it is stopped by Ctrl-C; with
-o json it writes a line each time. What did not answer is named, and the command
fails; what it shows then is the rest.`,
		Example: `  millrace state
  millrace state --type post --by partition
  millrace state --watch=5s
  millrace state --partition 17 -o json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c) },
	}
	s.cm = clusters.FlagsOf(c.Flags())
	f := c.Flags()
	f.StringVar(&s.kind, "type", "", "of this content type (default: of all)")
	f.StringVar(&s.partition, "partition", "", "of this partition (default: of all)")
	f.StringVar(&s.by, "by", "type", "a line for each type, or for each partition and type: type or partition")
	f.StringVar(&s.since, "since", "24h", "count the dead letters from then on: how long ago, or a time as of RFC 3339")
	f.DurationVar(&s.watch, "watch", 0, "draw it again, each time after so long")
	f.Lookup("watch").NoOptDefVal = "2s"
	display.Flag(c, &s.output)
	return c
}

// check refuses flags that are wrong, and sets s.asked.
func (s *stating) check(c *cobra.Command) error {
	wrong := func(field, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut}
	}
	switch {
	case s.by != "type" && s.by != "partition":
		return wrong("by", fmt.Sprintf("%.40q is nothing to show by", s.by), "say type or partition")
	case len(s.kind) > millrace.MaxTypeBytes:
		return wrong("type", fmt.Sprintf("%.70q has %d bytes; a content type has %d at most", s.kind, len(s.kind), millrace.MaxTypeBytes), "name a content type, or none for all")
	case c.Flags().Changed("watch") && s.watch < 100*time.Millisecond:
		return wrong("watch", fmt.Sprintf("nodes cannot be asked every %s", s.watch), "say a time such as 2s")
	}
	if s.partition != "" {
		p, err := command.Partition(s.partition)
		if err != nil {
			return err
		}
		i := int32(p)
		s.asked = &i
	}
	_, err := command.Since("since", s.since, time.Now())
	return err
}

func (s *stating) run(c *cobra.Command) error {
	if err := s.check(c); err != nil {
		return err
	}
	if s.watch == 0 {
		all, err := s.look(c.Context())
		if err != nil {
			return err
		}
		return errors.Join(s.show(c.OutOrStdout(), all), all.fault())
	}
	tick := time.NewTicker(s.watch)
	defer tick.Stop()
	for {
		all, err := s.look(c.Context())
		if c.Context().Err() != nil {
			return nil // --watch ends by Ctrl-C
		}
		if err := s.draw(c.OutOrStdout(), all, err); err != nil {
			return err
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// draw shows what one look found or, if the look failed, err. On a terminal it clears the
// screen first.
func (s *stating) draw(w io.Writer, all *stateShown, err error) error {
	if s.output.JSON() {
		if err != nil {
			return display.WriteJSON(w, map[string]string{"error": err.Error()})
		}
		return s.show(w, all)
	}
	if s, ok := w.(display.Screen); ok {
		fmt.Fprint(s.File, "\x1b[H\x1b[2J")
	}
	if err != nil {
		fmt.Fprintln(w, err)
		return nil
	}
	fmt.Fprintln(w, all.Time)
	if err := s.show(w, all); err != nil {
		return err
	}
	if fault := all.fault(); fault != nil {
		fmt.Fprintln(w, fault)
	}
	_, err = fmt.Fprintln(w)
	return err
}

// stateShown is how much a cluster has. A dead letter is a record that a partitioner or an
// index node refused; it is kept in a topic of dead letters.
type stateShown struct {
	Time       string               `json:"time"`
	Nodes      []millrace.NodeID    `json:"nodes"`                // those that answered
	Unanswered []unanswered         `json:"unanswered,omitempty"` // the nodes that did not
	Missing    []millrace.Partition `json:"missing,omitempty"`    // partitions that no node which answered has a replica of
	Uncounted  []millrace.Partition `json:"uncounted,omitempty"`  // partitions whose replicas do not know yet what they have
	Types      []typeShown          `json:"types"`
	Total      typeShown            `json:"total"`
	Partitions []partitionShown     `json:"partitions,omitempty"` // with --by partition

	DeadLetters []letterShownCount `json:"dead_letters"`
	LettersFrom string             `json:"dead_letters_since"`           // the time of --since
	LettersBad  string             `json:"dead_letters_fault,omitempty"` // why they could not be counted
}

// unanswered is a node that did not answer, and why.
type unanswered struct {
	Node millrace.NodeID `json:"node"`
	Why  string          `json:"why"`
}

// letterShownCount is how many dead letters came from a topic for a reason.
type letterShownCount struct {
	Topic   string `json:"topic"`
	Reason  string `json:"reason"`
	Letters int64  `json:"letters"`
}

// typeShown is how much there is of a content type.
type typeShown struct {
	Type      string  `json:"type"`    // empty: of types beyond those that are counted by name
	Records   int64   `json:"records"` // live ones
	Timelines int64   `json:"timelines"`
	Bytes     int64   `json:"bytes"`            // before compression
	In        float64 `json:"in_per_second"`    // records that come, over the last minute
	Out       float64 `json:"out_per_second"`   // records that go, over the last minute
	Newest    string  `json:"newest,omitempty"` // the latest time of a record
	Deleted   int64   `json:"deleted"`          // tombstones
	Expired   int64   `json:"expired"`          // records that retention has dropped since the replica began
	Cached    int64   `json:"cached_records"`   // records in the caches of all replicas
	Stored    int64   `json:"replica_records"`  // records in the stores of all replicas

	newest millrace.Time // Newest before it is written as text; 0: none
}

func typeShownOf(t *nodev1.TypeState) typeShown {
	return typeShown{
		Type: t.Type, Records: t.Records, Timelines: t.Timelines, Bytes: t.Bytes, In: t.InRate, Out: t.OutRate, newest: millrace.Time(t.NewestMs),
		Deleted: t.Deleted, Expired: t.Expired,
	}
}

// add adds what another partition has, and sets t.Newest.
func (t *typeShown) add(o typeShown) {
	t.Records, t.Timelines, t.Bytes = t.Records+o.Records, t.Timelines+o.Timelines, t.Bytes+o.Bytes
	t.In, t.Out, t.newest = t.In+o.In, t.Out+o.Out, max(t.newest, o.newest)
	t.Deleted, t.Expired, t.Cached, t.Stored = t.Deleted+o.Deleted, t.Expired+o.Expired, t.Cached+o.Cached, t.Stored+o.Stored
	if t.Newest = ""; t.newest > 0 {
		t.Newest = t.newest.String()
	}
}

// partitionShown is how much there is of a partition, as its best replica has it (see
// [toldState.better]).
type partitionShown struct {
	Partition millrace.Partition `json:"partition"`
	Node      millrace.NodeID    `json:"node"`
	State     string             `json:"state"`
	Applied   int64              `json:"content"` // the offset of the log of records up to which it is applied
	DiskBytes int64              `json:"disk_bytes"`
	Types     []typeShown        `json:"types"`
}

// toldState is what a node says of a partition.
type toldState struct {
	node millrace.NodeID
	*nodev1.ReadStateResponse
}

// stateWait is how long all nodes, which are asked at once, have to answer.
const stateWait = 10 * time.Second

// look asks all nodes at once what they have, and then one node for the dead letters.
func (s *stating) look(ctx context.Context) (*stateShown, error) {
	o, err := s.cm.Operate(ctx)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	all := &stateShown{Time: time.Now().UTC().Format(time.RFC3339), Types: []typeShown{}, DeadLetters: []letterShownCount{}}
	told := s.ask(ctx, o, all)
	s.merge(o.Map, told, all)
	s.countLetters(ctx, o, all)
	return all, nil
}

// ask asks every node at once what it has, and returns that by partition. It notes in all
// which nodes answered, and which did not.
func (s *stating) ask(ctx context.Context, o *clusters.Operating, all *stateShown) map[millrace.Partition][]toldState {
	var mu sync.Mutex
	told := map[millrace.Partition][]toldState{}
	ctx, cancel := context.WithTimeout(ctx, stateWait)
	defer cancel()
	var asking sync.WaitGroup
	for _, id := range s.nodes(o.Map) {
		asking.Go(func() {
			answer, err := s.askOne(ctx, o, id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				all.Unanswered = append(all.Unanswered, unanswered{id, err.Error()})
				return // the node's answer may be cut off, so none of it is used
			}
			all.Nodes = append(all.Nodes, id)
			for _, m := range answer {
				p := millrace.Partition(m.At.Partition)
				told[p] = append(told[p], toldState{id, m})
			}
		})
	}
	asking.Wait()
	slices.Sort(all.Nodes)
	slices.SortFunc(all.Unanswered, func(a, b unanswered) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return told
}

// nodes returns the nodes that are assigned a partition that is asked for, alive or not.
func (s *stating) nodes(m *topology.Map) []millrace.NodeID {
	ids := map[millrace.NodeID]bool{}
	for p := range partition.All() {
		if s.asked == nil || *s.asked == int32(p) {
			for _, id := range m.Replicas(p) {
				ids[id] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

func (s *stating) askOne(ctx context.Context, o *clusters.Operating, id millrace.NodeID) (answer []*nodev1.ReadStateResponse, err error) {
	n, err := o.Node(string(id))
	if err != nil {
		return nil, err
	}
	node, err := o.Conns.Admin(n)
	if err != nil {
		return nil, err
	}
	stream, err := node.ReadState(ctx, &nodev1.ReadStateRequest{Partition: s.asked, Type: s.kind})
	err = clusters.Receive(stream, err, func(m *nodev1.ReadStateResponse) error {
		answer = append(answer, m)
		return nil
	})
	return answer, err
}

// better reports whether a partition is to be counted by replica a and not by b. A replica
// that has counted its records goes first, then one that is ready, then the one that has
// applied most of the log of records.
func (a toldState) better(b toldState) bool {
	ready := func(t toldState) bool { return t.At.State == "ready" }
	switch {
	case a.Counted != b.Counted:
		return a.Counted
	case ready(a) != ready(b):
		return ready(a)
	case a.At.Content != b.At.Content:
		return a.At.Content > b.At.Content
	}
	return a.node < b.node
}

// merge adds what nodes told to all. Each partition counts once, by its best replica; only
// Cached and Stored are of all replicas.
func (s *stating) merge(m *topology.Map, told map[millrace.Partition][]toldState, all *stateShown) {
	byType := map[string]*typeShown{}
	for p := range partition.All() {
		if s.asked != nil && *s.asked != int32(p) || len(m.Replicas(p)) == 0 {
			continue
		}
		replicas := told[p]
		if len(replicas) == 0 {
			all.Missing = append(all.Missing, p)
			continue
		}
		best := replicas[0]
		for _, r := range replicas[1:] {
			if r.better(best) {
				best = r
			}
		}
		if !best.Counted {
			all.Uncounted = append(all.Uncounted, p)
			continue
		}
		shown := partitionShown{Partition: p, Node: best.node, State: best.At.State, Applied: best.At.Content, DiskBytes: best.DiskBytes, Types: []typeShown{}}
		for _, t := range best.Types {
			x := typeShownOf(t)
			for _, r := range replicas {
				if i := slices.IndexFunc(r.Types, func(o *nodev1.TypeState) bool { return o.Type == t.Type }); i >= 0 {
					x.Cached, x.Stored = x.Cached+r.Types[i].CachedRecords, x.Stored+r.Types[i].Records
				}
			}
			sum := byType[t.Type]
			if sum == nil {
				sum = &typeShown{Type: t.Type}
				byType[t.Type] = sum
			}
			sum.add(x)
			all.Total.add(x)
			x.add(typeShown{}) // sets Newest
			shown.Types = append(shown.Types, x)
		}
		if s.by == "partition" {
			all.Partitions = append(all.Partitions, shown)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byType)) {
		all.Types = append(all.Types, *byType[name])
	}
}

// countLetters has one node count the dead letters: the first of those that answered which
// can. If none can within lettersWait, it notes why.
func (s *stating) countLetters(ctx context.Context, o *clusters.Operating, all *stateShown) {
	since, err := command.Since("since", s.since, time.Now())
	if err != nil {
		all.LettersBad = err.Error()
		return
	}
	all.LettersFrom = since.String()
	ctx, cancel := context.WithTimeout(ctx, lettersWait)
	defer cancel()
	err = errors.New("no node answers")
	for _, id := range all.Nodes {
		var resp *nodev1.CountDeadLettersResponse
		if resp, err = s.lettersOf(ctx, o, id, since); err == nil {
			for _, l := range resp.Counts {
				all.DeadLetters = append(all.DeadLetters, letterShownCount{l.Topic, l.Reason, l.Letters})
			}
			return
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("no node could within %s: Kafka does not answer, or there are many; --since 1h counts fewer", lettersWait)
			break
		}
	}
	all.LettersBad = err.Error()
}

// lettersWait bounds the count of dead letters, which takes longest: a node reads them from
// Kafka, while it has all else that is shown itself.
const lettersWait = 10 * time.Second

func (s *stating) lettersOf(ctx context.Context, o *clusters.Operating, id millrace.NodeID, since millrace.Time) (*nodev1.CountDeadLettersResponse, error) {
	n, err := o.Node(string(id))
	if err != nil {
		return nil, err
	}
	node, err := o.Conns.Admin(n)
	if err != nil {
		return nil, err
	}
	return clusters.Ask(ctx, node.CountDeadLetters, &nodev1.CountDeadLettersRequest{SinceMs: int64(since)})
}

// fault returns an error that says what is missing from all; nil if nothing is.
func (all *stateShown) fault() error {
	var errs []error
	for _, u := range all.Unanswered {
		errs = append(errs, fmt.Errorf("%s did not answer: %s", u.Node, u.Why))
	}
	if n := len(all.Missing); n > 0 {
		errs = append(errs, fmt.Errorf("no replica of %d partitions was told of: %s", n, setOf(all.Missing)))
	}
	if n := len(all.Uncounted); n > 0 {
		errs = append(errs, fmt.Errorf("%d partitions are not counted yet: %s", n, setOf(all.Uncounted)))
	}
	if all.LettersBad != "" {
		errs = append(errs, fmt.Errorf("dead letters were not counted: %s", all.LettersBad))
	}
	if len(errs) == 0 {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "node", Detail: "the answer is not whole: " + errors.Join(errs...).Error(), WayOut: "millrace cluster show says what is wrong"}
}

func setOf(all []millrace.Partition) string {
	var set topology.Set
	for _, p := range all {
		set.Add(p)
	}
	return set.String()
}

func (s *stating) show(w io.Writer, all *stateShown) error {
	return s.output.Write(w, all, func(w io.Writer) error { return s.write(w, all) })
}

func (s *stating) write(w io.Writer, all *stateShown) error {
	t := display.NewTable(w)
	const columns = "TYPE\tRECORDS\tTIMELINES\tBYTES\tIN/S\tOUT/S\tNEWEST\tDELETED\tEXPIRED\tCACHED"
	now := time.Now()
	if s.by == "partition" {
		t.Printf("PARTITION\tNODE\tSTATE\t" + columns + "\n")
		for _, p := range all.Partitions {
			for _, x := range p.Types {
				t.Printf("%d\t%s\t%s\t%s\n", p.Partition, p.Node, p.State, x.line(now))
			}
		}
		all.Total.Type = "all"
		t.Printf("all\t\t\t%s\n", all.Total.line(now))
	} else {
		t.Printf(columns + "\n")
		for _, x := range all.Types {
			t.Printf("%s\n", x.line(now))
		}
		all.Total.Type = "all"
		t.Printf("%s\n", all.Total.line(now))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if all.LettersBad != "" {
		return nil
	}
	if len(all.DeadLetters) == 0 {
		display.Printf(w, "no dead letters since %s\n", all.LettersFrom)
		return nil
	}
	display.Printf(w, "dead letters since %s:\n", all.LettersFrom)
	t = display.NewTable(w)
	t.Printf("TOPIC\tREASON\tLETTERS\n")
	for _, l := range all.DeadLetters {
		t.Printf("%s\t%s\t%d\n", display.Printable(l.Topic), display.Printable(l.Reason), l.Letters)
	}
	return t.Flush()
}

// line returns the cells of a table that say how much there is.
func (t typeShown) line(now time.Time) display.Cells {
	name, newest, cached := display.Printable(t.Type), "-", "-"
	if name == "" {
		name = "(others)"
	}
	if t.newest > 0 {
		age := now.Sub(time.UnixMilli(int64(t.newest))).Round(time.Second)
		if newest = age.String(); age < 0 {
			newest = "in " + (-age).String()
		}
	}
	if t.Stored > 0 {
		cached = fmt.Sprintf("%.1f%%", 100*float64(t.Cached)/float64(t.Stored))
	}
	return display.Cells(fmt.Sprintf("%s\t%d\t%d\t%d\t%.1f\t%.1f\t%s\t%d\t%d\t%s", name, t.Records, t.Timelines, t.Bytes, t.In, t.Out, newest, t.Deleted, t.Expired, cached))
}
