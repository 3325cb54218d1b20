// Package steer has the commands that decide which nodes host which partitions: assignments,
// plans of moves, and nodes that come, go and restart. It also has those for what all
// brokers go by: page keys and traced viewers.
package steer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// hosting has the flags of the commands that change which nodes host which partitions.
type hosting struct {
	command.Act
	wait bool
	// The limits of the plan; 0: the coordinator's.
	perNode      int
	perSecond    int
	mibPerSecond int64
}

// planFlags adds the flags of a command that begins a plan.
func (st *hosting) planFlags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&st.wait, "wait", false, "wait until it is done, and show how far it is")
	f.IntVar(&st.perNode, "moves-per-node", 0, "moves to a node at a time (default: the coordinator's)")
	f.IntVar(&st.perSecond, "moves-per-second", 0, "moves that are begun in the whole cluster (default: the coordinator's)")
	f.Int64Var(&st.mibPerSecond, "mib-per-second", 0, "bound on the moves that are begun (default: the coordinator's)")
	st.OverrideFlag(c, "to do what leaves partitions with fewer replicas than are wanted")
	display.Flag(c, &st.Output)
}

// nodeStats is what nodes say of their own disks, memory and partitions.
type nodeStats = map[millrace.NodeID]members.NodeStats

// showing makes c a command that shows something of the cluster. look returns what is shown
// as JSON, and a function that writes the same as text.
func showing(cm *clusters.Flags, c *cobra.Command, look func(context.Context, *cluster.Client, *coordinator.Steered, nodeStats, []string) (any, func(io.Writer) error, error)) *cobra.Command {
	var output display.Form
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := cm.Open(c.Context())
		if err != nil {
			return err
		}
		defer cl.Close()
		s, stats, err := coordinator.Look(c.Context(), cl)
		if err != nil {
			return err
		}
		clusters.WarnLost(c.ErrOrStderr(), s.Map.Lost())
		all, text, err := look(c.Context(), cl, s, stats, args)
		if err != nil {
			return err
		}
		return output.Write(c.OutOrStdout(), all, text)
	}
	display.Flag(c, &output)
	return c
}

// request completes a request with what the flags say: the limits, and whether it may leave
// partitions with fewer replicas. It returns an error if --override names another cluster.
func (st *hosting) request(r coordinator.Request) (coordinator.Request, error) {
	lossy, err := st.Overrides()
	r.By, r.Lossy = clusters.Who(), lossy
	r.Limits = coordinator.Limits{PerNode: st.perNode, PerSecond: st.perSecond, BytesPerSecond: max(-1, min(st.mibPerSecond, math.MaxInt64>>20)) << 20}
	return r, err
}

// propose shows the plan for a request. If --apply is given and the user agrees, it begins
// the plan, and with --wait waits for it.
func (st *hosting) propose(c *cobra.Command, r coordinator.Request) error {
	r, err := st.request(r)
	if err != nil {
		return err
	}
	cl, err := st.Cluster.Open(c.Context())
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, ok, err := cl.Leader(c.Context()); err == nil && !ok {
		fmt.Fprintln(c.ErrOrStderr(), "no coordinator leads: a plan waits until one runs (millrace coordinator)")
	}
	w := c.OutOrStdout()
	leads := coordinator.Done
	id, err := coordinator.Start(c.Context(), cl, r, func(p *coordinator.Proposal) error {
		leads = p.Plan.Status.End()
		if err := showProposal(w, p, &st.Output); err != nil {
			return err
		}
		if err := p.Err(); err != nil {
			return err
		}
		if !p.Changes() {
			fmt.Fprintln(c.ErrOrStderr(), "nothing is to be done: all is as it would be then")
			return command.ErrDry
		}
		if ok, err := st.Meant(c); !ok {
			return cmp.Or(err, command.ErrDry)
		}
		return nil
	})
	switch {
	case errors.Is(err, command.ErrDry):
		return nil
	case err != nil:
		return err
	}
	if !st.wait {
		fmt.Fprintln(c.ErrOrStderr(), "begun: see millrace cluster status")
		return nil
	}
	return follow(c, cl, awaited{id, leads})
}

// follow waits until a plan ends, and shows meanwhile how far it is; see awaitPlan.
func follow(c *cobra.Command, cl *cluster.Client, of awaited) error {
	return awaitPlan(c.Context(), c.ErrOrStderr(), 2*time.Second, of, func(ctx context.Context) (s *coordinator.Steered, leads bool, err error) {
		if s, _, err = coordinator.Look(ctx, cl); err == nil {
			_, leads, err = cl.Leader(ctx)
		}
		return s, leads, err
	})
}

// errStillOn is the error of a wait for a plan that was interrupted. The plan goes on.
var errStillOn = errors.New("interrupted: the plan goes on: see millrace cluster status")

// maxAway is how many looks at a plan in a row may find that etcd cannot be reached. At the
// next one the wait for the plan ends. With a look every two seconds that is after two
// minutes at least.
const maxAway = 60

// awaited is a plan that a command waits for. leads is the final status that the plan leads
// to, and with which it has done what was asked. It is not [coordinator.Done] if the plan is
// being cancelled or rolled back.
type awaited struct {
	id    string
	leads coordinator.Status
}

// awaitPlan shows how far a plan is until it ends. It returns nil once the plan is done or
// has the status that it leads to, and an error if it ended otherwise. While etcd cannot be
// reached it waits on, for maxAway looks. If ctx ends, it returns errStillOn, and the plan
// goes on. If a later plan has begun, it returns an error, since it cannot find out how
// the plan ended.
func awaitPlan(ctx context.Context, w io.Writer, pause time.Duration, of awaited, look func(context.Context) (*coordinator.Steered, bool, error)) error {
	var last string
	tell := func(line string) {
		if line != last {
			last = line
			fmt.Fprintln(w, line)
		}
	}
	for away := 0; ; {
		s, led, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return errStillOn
		case errors.Is(err, cluster.ErrAway) && away < maxAway:
			away++
			tell("etcd is away; the plan goes on when it is back")
		case err != nil:
			return err
		case s.Plan == nil || s.Plan.ID != of.id:
			return fmt.Errorf("plan %s is not the last plan any more: see millrace cluster history", of.id)
		default:
			away = 0
			pr := s.Progress(time.Now())
			line := progressLine(s.Plan, &pr)
			if !led {
				line += "; no coordinator leads: it waits until one runs (millrace coordinator)"
			}
			tell(line)
			if s.Plan.Status == coordinator.Done || s.Plan.Status == of.leads {
				return nil
			}
			if s.Plan.Status.Ended() {
				return fmt.Errorf("plan %s is %s", s.Plan.ID, s.Plan.Status)
			}
		}
		select {
		case <-ctx.Done():
			return errStillOn
		case <-time.After(pause):
		}
	}
}

// maxLeft is the longest remaining time that is shown. While a plan has moved next to
// nothing, the estimate would be meaningless.
const maxLeft = 365 * 24 * time.Hour

// progressLine says in one line how far a plan is, and what its moves wait for.
func progressLine(p *coordinator.Plan, pr *coordinator.Progress) string {
	line := fmt.Sprintf("%s: %d of %d moves done, %d building, %.1f of %.1f MiB", p.Status, pr.Moves[coordinator.Moved]-pr.Before, len(p.Moves)-pr.Before, pr.Moves[coordinator.Building], float64(pr.Done)/(1<<20), float64(pr.Bytes)/(1<<20))
	if pr.Undone > 0 {
		line += fmt.Sprintf(", %d of them took back what was not ready", pr.Undone)
	}
	if pr.Rate > 0 {
		line += fmt.Sprintf(", %.1f MiB/s", pr.Rate/(1<<20))
	}
	var full []millrace.NodeID // the nodes whose disks are full
	waits := 0
	for _, m := range pr.UnderWay {
		if m.Reason == topology.DiskFullReason {
			waits, full = waits+1, append(full, m.To)
		}
	}
	if slices.Sort(full); waits > 0 {
		line += fmt.Sprintf(", %d wait for room on the disks of %s", waits, slices.Compact(full))
	}
	for _, id := range slices.Sorted(maps.Keys(pr.Holding)) {
		line += fmt.Sprintf(", %d wait for %s, which %s", pr.Holding[id].Moves, id, pr.Holding[id].Why)
	}
	for _, id := range slices.Sorted(maps.Keys(pr.Quarantined)) {
		line += fmt.Sprintf(", %d are quarantined on %s (why: millrace cluster show; then millrace partition release)", pr.Quarantined[id], id)
	}
	if pr.Left > 0 && pr.Left < maxLeft.Seconds() {
		line += fmt.Sprintf(", about %s left", (time.Duration(pr.Left) * time.Second).Round(time.Second))
	}
	return line
}

// shownProposal is a plan that would begin, as JSON.
type shownProposal struct {
	Kind   coordinator.Kind         `json:"kind"`
	Why    string                   `json:"why"`
	Wanted int                      `json:"wanted"` // replicas of each partition
	Moves  []coordinator.Move       `json:"moves"`  // those that are not done yet
	Bytes  int64                    `json:"bytes"`  // of all Moves
	Nodes  []coordinator.NodeChange `json:"nodes"`
	Checks []coordinator.Check      `json:"checks"`
}

func showProposal(w io.Writer, p *coordinator.Proposal, output *display.Form) error {
	out := shownProposal{Kind: p.Plan.Kind, Why: p.Why, Wanted: p.Plan.Wanted, Moves: display.List(slices.DeleteFunc(slices.Clone(p.Plan.Moves), func(m coordinator.Move) bool { return m.State == coordinator.Moved })), Nodes: display.List(p.Nodes()), Checks: display.List(p.Checks)}
	for _, m := range out.Moves {
		out.Bytes += m.Bytes
	}
	return output.Write(w, out, out.write)
}

func (out *shownProposal) write(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d moves, %.1f MiB, %d replicas of each partition\n\n", out.Why, len(out.Moves), float64(out.Bytes)/(1<<20), out.Wanted)
	t := display.NewTable(w)
	t.Printf("NODE\tPARTITIONS NOW\tAFTER\tMIB NOW\tAFTER\n")
	for _, n := range out.Nodes {
		t.Printf("%s\t%d\t%d\t%.1f\t%.1f\n", n.ID, n.Before, n.After, float64(n.BytesBefore)/(1<<20), float64(n.BytesAfter)/(1<<20))
	}
	t.Printf("\n")
	for _, c := range out.Checks {
		t.Printf("%s\t%s\n", c.Gravity, c.What)
	}
	return t.Flush()
}

func clusterPlan(cm *clusters.Flags) *cobra.Command {
	st := hosting{Act: command.Act{Cluster: cm, How: "millrace cluster apply"}}
	r := coordinator.Request{Kind: coordinator.Rebalance}
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show how partitions would be spread over all nodes that are there, by the fewest moves",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return st.respread(c, r) },
	}
	replicasFlag(c, &r)
	display.Flag(c, &st.Output)
	return c
}

func clusterApply(cm *clusters.Flags) *cobra.Command {
	st := hosting{Act: command.Act{Cluster: cm, Apply: true}} // it applies without --apply; cluster plan is its dry run
	r := coordinator.Request{Kind: coordinator.Rebalance}
	c := &cobra.Command{
		Use:   "apply",
		Short: "Spread partitions over all nodes that are there, as cluster plan shows it",
		Long: `Spreads partitions over all nodes that are there, as "cluster plan" shows it:
new nodes take their share, and no partition has fewer ready replicas than are
wanted at any moment. A coordinator carries it out; "cluster status" tells how
far it is, and pause, resume, cancel and rollback steer it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return st.respread(c, r) },
	}
	replicasFlag(c, &r)
	c.Flags().BoolVar(&st.Yes, "yes", false, "do not ask; for scripts")
	st.planFlags(c)
	return c
}

func replicasFlag(c *cobra.Command, r *coordinator.Request) {
	c.Flags().Var((*percent)(&r.Gain), "gain", "the least that is moved for, such as 5%: by how much the fullest and the emptiest node come nearer, of the mean")
	c.Flags().IntVar(&r.Replicas, "replicas", 0, "replicas of each partition, 1 or more (default: as many as now)")
}

// percent is a flag that is written in percent, such as 5%; its value is the share, 0.05.
type percent float64

func (p *percent) String() string { return fmt.Sprintf("%g%%", 100*float64(*p)) }
func (p *percent) Type() string   { return "percent" }

func (p *percent) Set(text string) error {
	x, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(x >= 0 && x <= maxGain) {
		return fmt.Errorf("give 0%% to %d%%", maxGain)
	}
	*p = percent(x / 100)
	return nil
}

// maxGain is the most that --gain may be, in percent of the mean load of a node. It is above
// 100, since the fullest and the emptiest node can differ by more than the mean.
const maxGain = 1000

// respread proposes a plan that spreads the partitions anew. If --replicas is given, the plan
// changes the number of replicas, too.
func (st *hosting) respread(c *cobra.Command, r coordinator.Request) error {
	if c.Flags().Changed("replicas") {
		if r.Kind = coordinator.Resize; r.Replicas < 1 {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "replicas", Detail: fmt.Sprintf("%d replicas of each partition answer nothing", r.Replicas), WayOut: "say 1 or more, or leave it out for as many as now"}
		}
	}
	return st.propose(c, r)
}

// clusterOrder returns the command that gives the running plan an order. Pause and resume act
// at once, since each undoes the other. Cancel and rollback need --apply.
func clusterOrder(cm *clusters.Flags, o coordinator.Order, short string) *cobra.Command {
	a, atOnce, wait := command.Act{Cluster: cm}, o == coordinator.Pause || o == coordinator.Resume, false
	c := &cobra.Command{
		Use: string(o), Short: short, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.Open(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			w, shown := c.OutOrStdout(), shownOrder{Order: o}
			p, err := coordinator.Command(c.Context(), cl, o, clusters.Who(), func(s *coordinator.Steered) error {
				pr := s.Progress(time.Now())
				shown.Plan, shown.Kind, shown.Status, shown.Moves, shown.Warnings = s.Plan.ID, s.Plan.Kind, s.Plan.Status, pr.Moves, warnings(o, s)
				if atOnce {
					return nil
				}
				if !a.Output.JSON() {
					fmt.Fprintf(w, "%s\n%s\n", progressLine(s.Plan, &pr), takenBack(o, &pr))
					for _, what := range shown.Warnings {
						fmt.Fprintf(w, "warn: %s\n", what)
					}
				}
				if ok, err := a.Meant(c); !ok {
					return cmp.Or(err, command.ErrDry)
				}
				return nil
			})
			if err == nil {
				shown.Status, shown.Applied = p.Status, true
			} else if !errors.Is(err, command.ErrDry) {
				return err
			}
			if err := a.Output.Write(w, shown, shown.write); err != nil || !wait || !shown.Applied {
				return err
			}
			return follow(c, cl, awaited{p.ID, p.Status.End()})
		},
	}
	if !atOnce {
		a.Flags(c)
		c.Flags().BoolVar(&wait, "wait", false, "wait until it is done, and show how far it is")
	}
	display.Flag(c, &a.Output)
	return c
}

// shownOrder is an order to a plan as JSON.
type shownOrder struct {
	Order    coordinator.Order             `json:"order"`
	Plan     string                        `json:"plan_id"`
	Kind     coordinator.Kind              `json:"kind"`
	Status   coordinator.Status            `json:"status"` // the plan's, after the order if Applied, else before
	Moves    map[coordinator.MoveState]int `json:"moves"`  // how many of the plan's moves were in each state before the order
	Warnings []string                      `json:"warnings"`
	Applied  bool                          `json:"applied"`
}

// warnings returns what may surprise in a rollback, such as replicas that it cannot bring
// back at once. Other orders have no warnings: it returns an empty list.
func warnings(o coordinator.Order, s *coordinator.Steered) []string {
	out := []string{}
	if o == coordinator.Rollback {
		if fewer := s.Fewer(); fewer.Len() > 0 {
			out = append(out, fmt.Sprintf("%d partitions had fewer replicas before the plan than the %d that are wanted, and have fewer again: %s", fewer.Len(), s.Plan.BaseWanted, &fewer))
		}
		for _, id := range s.Missing() {
			out = append(out, fmt.Sprintf("%s hosted partitions before the plan and is not there: it gets them when it is back, and others get them if it is given up", id))
		}
		for _, n := range s.Map.Nodes() {
			if why := s.Map.Halted(n.ID); why != "" {
				out = append(out, fmt.Sprintf("%s takes in nothing new (%s): what goes back to it waits until it does", n.ID, why))
			}
		}
	}
	return out
}

func (s *shownOrder) write(w io.Writer) (err error) {
	if s.Applied {
		_, err = fmt.Fprintf(w, "plan %s (%s) is %s\n", s.Plan, s.Kind, s.Status)
	}
	return err
}

// takenBack says in a line which moves of a plan a cancel or a rollback takes back.
func takenBack(o coordinator.Order, pr *coordinator.Progress) string {
	done := "stay"
	if o == coordinator.Rollback {
		done = "are taken back"
	}
	return fmt.Sprintf("%s: %d moves that are done %s, %d that build are taken back, %d are not begun", o, pr.Moves[coordinator.Moved], done, pr.Moves[coordinator.Building], pr.Moves[coordinator.Waiting])
}

func clusterStatus(cm *clusters.Flags) *cobra.Command {
	return showing(cm, &cobra.Command{
		Use:   "status",
		Short: "How far the last plan is, which nodes are gone, and what a person has to see to",
		Args:  cobra.NoArgs,
	}, func(ctx context.Context, cl *cluster.Client, s *coordinator.Steered, stats nodeStats, _ []string) (any, func(io.Writer) error, error) {
		leader, leads, err := cl.Leader(ctx)
		if err != nil {
			return nil, nil, err
		}
		seen, err := members.Seen(ctx, cl)
		if err != nil {
			return nil, nil, err
		}
		out := statusOf(s, stats, seen)
		if leads {
			out.Leader = &leader
		}
		return out, func(w io.Writer) error { return writeStatus(w, s, stats, seen, leader, leads) }, nil
	})
}

// shownStatus is what cluster status writes as JSON.
type shownStatus struct {
	Leader     *cluster.Leader      `json:"leader"`               // nil: no coordinator leads
	Plan       *coordinator.Plan    `json:"plan"`                 // the last one, ended or not; nil: there has been none
	Standstill string               `json:"standstill,omitempty"` // why the plan does not go on
	Progress   coordinator.Progress `json:"progress"`
	Waits      []coordinator.Wait   `json:"waits"` // what those moves wait for that cannot begin
	Notes      coordinator.Notes    `json:"notes"`
	Gone       []shownGone          `json:"gone"`
	Intent     coordinator.Intent   `json:"intent"`
}

// statusOf returns what cluster status shows, without the leader.
func statusOf(s *coordinator.Steered, stats nodeStats, seen map[millrace.NodeID]time.Time) shownStatus {
	out := shownStatus{Plan: s.Plan, Standstill: s.Plan.Standstill(), Progress: s.Progress(time.Now()), Waits: display.List(s.Waits(stats, time.Now())), Notes: s.Notes, Gone: display.List(goneOf(s, seen)), Intent: s.Intent}
	out.Progress.UnderWay, out.Progress.Nodes = display.List(out.Progress.UnderWay), display.List(out.Progress.Nodes)
	if out.Progress.Moves == nil {
		out.Progress.Moves = map[coordinator.MoveState]int{}
	}
	return out
}

// shownGone is a node that is gone, although it hosts something or is to host something.
type shownGone struct {
	Node        millrace.NodeID `json:"node"`
	Since       time.Time       `json:"since"`              // see goneSince
	WaitedSince time.Time       `json:"waited_since"`       // when a coordinator began to wait for it
	GivenUp     bool            `json:"given_up,omitempty"` // the coordinator no longer waits for the node
}

// goneOf returns the nodes that are gone, by their ids.
func goneOf(s *coordinator.Steered, seen map[millrace.NodeID]time.Time) (out []shownGone) {
	for _, id := range slices.Sorted(maps.Keys(s.Notes.Gone)) {
		if s.Map.Alive(id) { // the node is back, and no coordinator has removed the note yet
			continue
		}
		waited := s.Notes.Gone[id]
		out = append(out, shownGone{id, goneSince(waited, seen[id]), waited, slices.Contains(s.Notes.GivenUp, id)})
	}
	return out
}

// goneSince returns since when a node is gone: the earlier of the time when it was last
// heard, if that is known (not zero), and the time when a coordinator first missed it. A
// coordinator may miss it much later, for example when a plan gives partitions to a node
// that was gone already.
func goneSince(missed, heard time.Time) time.Time {
	if heard.IsZero() || missed.Before(heard) {
		return missed
	}
	return heard
}

func writeStatus(w io.Writer, s *coordinator.Steered, stats nodeStats, seen map[millrace.NodeID]time.Time, leader cluster.Leader, leads bool) error {
	t := display.NewTable(w)
	now := time.Now()
	if leads {
		t.Printf("coordinator %s leads since %s\n", leader.Name, leader.Since.Format(time.RFC3339))
	} else {
		t.Printf("NO coordinator leads: nothing is carried out or repaired until one runs\n")
	}
	for _, a := range s.Notes.Alarms {
		t.Printf("ALARM %s since %s: %s\n", a.What, a.Since.Format(time.RFC3339), a.Detail)
	}
	for _, g := range goneOf(s, seen) {
		waited := "waited for since " + g.WaitedSince.Format(time.RFC3339)
		switch {
		case g.GivenUp && s.Plan.Standstill() != "":
			waited = "given up: its replicas are made elsewhere once the plan is resumed"
		case g.GivenUp:
			waited = "given up: its replicas are made elsewhere"
		}
		t.Printf("%s is gone, last heard %s, and %s\n", g.Node, g.Since.Format(time.RFC3339), waited)
	}
	if s.Plan == nil {
		t.Printf("there has been no plan yet: see millrace cluster plan\n")
		return t.Flush()
	}
	pr := s.Progress(now)
	t.Printf("\nplan %s (%s) by %s: %s\n%s\n", s.Plan.ID, s.Plan.Kind, s.Plan.By, s.Plan.Why, progressLine(s.Plan, &pr))
	if still := s.Plan.Standstill(); still != "" {
		t.Printf("%s\n", still)
	}
	waits := s.Waits(stats, now)
	for _, wait := range waits[:min(len(waits), maxShownWaits)] {
		t.Printf("%d moves wait: %s\n", wait.Moves, wait.For)
	}
	t.Printf("\nNODE\tBEFORE\tNOW\tAFTER\n")
	for _, n := range pr.Nodes {
		t.Printf("%s\t%d\t%d\t%d\n", n.ID, n.Before, n.Now, n.After)
	}
	if len(pr.UnderWay) > 0 {
		t.Printf("\nUNDER WAY\tMIB\tREPLICA\tFOR\t\n")
		writeMoves(t, pr.UnderWay)
	}
	t.Printf("\n")
	for _, e := range s.Plan.Log[max(0, len(s.Plan.Log)-5):] {
		t.Printf("%s\t%s\n", e.When.Format(time.RFC3339), e.What)
	}
	return t.Flush()
}

// maxShownMoves and maxShownWaits bound how many moves and reasons to wait are shown as text;
// JSON has all.
const (
	maxShownMoves = 20
	maxShownWaits = 3
)

func writeMoves(t *display.Table, moves []coordinator.MoveProgress) {
	for _, m := range moves[:min(len(moves), maxShownMoves)] {
		t.Printf("%s\t%.1f\t%s\t%.0f s\t%s\n", m.Move, float64(m.Bytes)/(1<<20), m.Replica, m.Seconds, m.Detail)
	}
	if more := len(moves) - maxShownMoves; more > 0 {
		t.Printf("and %d more\n", more)
	}
}

func clusterExplain(cm *clusters.Flags) *cobra.Command {
	return showing(cm, &cobra.Command{
		Use:   "explain PARTITION [NODE]",
		Short: "Why a partition is where it is, since when, and by which rule not elsewhere",
		Args:  cobra.RangeArgs(1, 2),
	}, func(_ context.Context, _ *cluster.Client, s *coordinator.Steered, stats nodeStats, args []string) (any, func(io.Writer) error, error) {
		p, err := command.Partition(args[0])
		if err != nil {
			return nil, nil, err
		}
		var only millrace.NodeID
		if len(args) > 1 {
			only = millrace.NodeID(args[1])
		}
		x, err := s.Explain(stats, p, only, time.Now())
		x.Replicas, x.Elsewhere = display.List(x.Replicas), display.List(x.Elsewhere)
		return x, func(w io.Writer) error { return writeExplanation(w, x) }, err
	})
}

func writeExplanation(w io.Writer, x coordinator.Explanation) error {
	t := display.NewTable(w)
	t.Printf("partition %d, %d replicas wanted\n\n", x.Partition, x.Wanted)
	for _, r := range x.Replicas {
		since := ""
		if !r.Since.IsZero() {
			since = " since " + r.Since.Format(time.RFC3339)
		}
		t.Printf("%s\tis here: %s%s\t%s\n", r.Node, r.State, since, r.Why)
		if r.Reason != "" || r.Detail != "" {
			t.Printf("\t%s: %s\n", r.Reason, r.Detail)
		}
	}
	for _, v := range x.Elsewhere {
		if v.OK {
			t.Printf("%s\tmay host it\t%s\n", v.Node, v.Detail)
		} else {
			t.Printf("%s\tmay not host it: %s\t%s\n", v.Node, v.Rule, v.Detail)
		}
	}
	if len(x.Moves) > 0 {
		t.Printf("\nmoves of the last plan:\n")
		writeMoves(t, x.Moves)
	}
	return t.Flush()
}
