package steer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Node returns the command node, with the commands for single index nodes.
func Node() *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "List, add, drain, replace, remove and restart index nodes"}
	cm := clusters.FlagsOf(c.PersistentFlags())
	c.AddCommand(
		nodeList(cm), changing(cm, coordinator.Add, nodeAdd()), changing(cm, coordinator.Drain, nodeDrain()),
		changing(cm, coordinator.Replace, nodeReplace()), changing(cm, coordinator.Repair, nodeRemove()), nodeRestart(cm),
	)
	return c
}

func nodeIDs(args []string) []millrace.NodeID {
	ids := make([]millrace.NodeID, len(args))
	for i, a := range args {
		ids[i] = millrace.NodeID(a)
	}
	return ids
}

// shownMember is a node as node list shows it.
type shownMember struct {
	ID       millrace.NodeID  `json:"id"`
	Addr     string           `json:"addr,omitempty"`
	Zone     string           `json:"zone,omitempty"`
	Weight   float64          `json:"weight"`
	State    string           `json:"state"`
	Hosts    int              `json:"hosts"`
	Ready    int              `json:"ready"`
	Held     int              `json:"held"`  // partitions on its disk that it no longer hosts
	Bytes    int64            `json:"bytes"` // of all its partitions
	Free     int64            `json:"free_bytes"`
	Disk     int64            `json:"disk_bytes"` // the size of the disk that Free is of
	Memory   int64            `json:"memory_bytes"`
	Marks    coordinator.Mark `json:"marks"`                // what operators want of it
	BacksUp  bool             `json:"backs_up,omitempty"`   // it is a backup node, which answers no requests
	GoneFrom *time.Time       `json:"gone_since,omitempty"` // see goneSince; nil: it is alive, or no coordinator has missed it
}

func nodeList(cm *clusters.Flags) *cobra.Command {
	return showing(cm, &cobra.Command{
		Use:   "list",
		Short: "All nodes: what they host, their room on disk, and what is wanted of them",
		Args:  cobra.NoArgs,
	}, func(ctx context.Context, cl *cluster.Client, s *coordinator.Steered, stats nodeStats, _ []string) (any, func(io.Writer) error, error) {
		seen, err := members.Seen(ctx, cl)
		if err != nil {
			return nil, nil, err
		}
		all := display.List(membersOf(s, stats, seen))
		return all, func(w io.Writer) error { return writeMembers(w, all) }, nil
	})
}

func membersOf(s *coordinator.Steered, stats nodeStats, seen map[millrace.NodeID]time.Time) (out []shownMember) {
	ids := s.Assignment.Nodes()
	for _, n := range s.Map.Nodes() {
		if !slices.Contains(ids, n.ID) {
			ids = append(ids, n.ID)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		n, _ := s.Map.Node(id)
		hosted, ready, st := s.Assignment.Hosted(id), s.Map.Ready(id), stats[id]
		ready = ready.And(hosted)
		m := shownMember{ID: id, Addr: n.Addr, Zone: n.Zone, Weight: cmp.Or(n.Weight, 1), State: "alive", Hosts: hosted.Len(), Ready: ready.Len(), Held: st.Held.Len(), Free: st.FreeBytes, Disk: st.DiskBytes, Memory: st.MemoryBytes, Marks: s.Intent.Nodes[id], BacksUp: n.Keeps != ""}
		for _, p := range st.Partitions {
			m.Bytes += p.Bytes
		}
		if !s.Map.Alive(id) {
			m.State, m.Ready = "gone", 0
			if since, ok := s.Notes.Gone[id]; ok {
				since = goneSince(since, seen[id])
				m.GoneFrom = &since
			}
		}
		out = append(out, m)
	}
	return out
}

func writeMembers(w io.Writer, members []shownMember) error {
	t := display.NewTable(w)
	t.Printf("NODE\tADDRESS\tZONE\tWEIGHT\tSTATE\tHOSTS\tREADY\tKEPT\tMIB\tFREE MIB\tMEMORY MIB\t\n")
	for _, m := range members {
		var marks []string
		for word, is := range map[string]bool{"draining": m.Marks.Draining, "added": m.Marks.Added, "given up": m.Marks.Lost, "backs up": m.BacksUp} {
			if is {
				marks = append(marks, word)
			}
		}
		slices.Sort(marks)
		state := m.State
		if m.GoneFrom != nil {
			state += " since " + m.GoneFrom.Format(time.RFC3339)
		}
		t.Printf("%s\t%s\t%s\t%v\t%s\t%d\t%d\t%d\t%.1f\t%d\t%d\t%s\n", m.ID, m.Addr, m.Zone, m.Weight, state, m.Hosts, m.Ready, m.Held, float64(m.Bytes)/(1<<20), m.Free>>20, m.Memory>>20, strings.Join(marks, ", "))
	}
	return t.Flush()
}

func nodeAdd() *cobra.Command {
	return &cobra.Command{
		Use:   "add NODE...",
		Short: "Let nodes take their share of the partitions, and what nodes that are gone leave behind",
		Long: `Lets nodes take their share of the partitions, and what nodes that are gone
leave behind: those that were given up, or that have been away for longer than the
coordinator's grace. Start them first; a node that was to be drained hosts again.`,
		Args: cobra.MinimumNArgs(1),
	}
}

func nodeDrain() *cobra.Command {
	return &cobra.Command{
		Use:   "drain NODE...",
		Short: "Move everything that nodes host to others, so that they can be stopped",
		Args:  cobra.MinimumNArgs(1),
	}
}

func nodeReplace() *cobra.Command {
	return &cobra.Command{
		Use:   "replace OLD NEW",
		Short: "Move exactly what one node hosts to another",
		Args:  cobra.ExactArgs(2),
	}
}

func nodeRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "remove NODE...",
		Short: "Give nodes up that are gone for good: their replicas are made elsewhere at once",
		Long: `Gives nodes up that are gone for good: their replicas are made elsewhere at
once, without waiting for the grace, also when many are gone. Name all of them in
one line: while another one is gone it is refused. It is refused, too, if fewer nodes
would be left than replicas are wanted; with --override the nodes are given up all
the same, and their replicas are made once nodes are added ("node add"). A node
that is there is drained first ("node drain") and then simply stopped.`,
		Args: cobra.MinimumNArgs(1),
	}
}

// changing makes c a command that begins a plan of a kind for the nodes that are its
// arguments.
func changing(cm *clusters.Flags, kind coordinator.Kind, c *cobra.Command) *cobra.Command {
	st := hosting{Act: command.Act{Cluster: cm}}
	c.RunE = func(c *cobra.Command, args []string) error {
		return st.propose(c, coordinator.Request{Kind: kind, Nodes: nodeIDs(args)})
	}
	st.Flags(c)
	st.planFlags(c)
	return c
}

// restarting has the flags of node restart and cluster roll.
type restarting struct {
	command.Act
	exec    string        // the command that restarts a node, for sh
	timeout time.Duration // for each step of a restart
}

func (r *restarting) restartFlags(c *cobra.Command) {
	r.Flags(c)
	display.Flag(c, &r.Output)
	c.Flags().StringVar(&r.exec, "exec", "", `the command that restarts a node, by sh; NODE, ADDR and ZONE are in its environment, as in: ssh ${ADDR%:*} systemctl restart millrace-indexnode`)
	c.Flags().DurationVar(&r.timeout, "timeout", 10*time.Minute, "how long each step may take: until others serve what a node hosts, the command, and until the node is whole again")
	r.OverrideFlag(c, "to go on though partitions have no second ready replica")
	if err := c.MarkFlagRequired("exec"); err != nil {
		panic(err) // the flag above exists
	}
}

func nodeRestart(cm *clusters.Flags) *cobra.Command {
	r := restarting{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "restart NODE --exec COMMAND",
		Short: "Restart a node once everything it hosts is served elsewhere, and wait until it is whole again",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return r.run(c, func(s *coordinator.Steered) ([]millrace.NodeID, error) {
				if _, ok := s.Map.Node(millrace.NodeID(args[0])); !ok {
					return nil, &millrace.Error{Reason: millrace.ReasonNotFound, Field: "node", Detail: fmt.Sprintf("no node %q is registered", args[0]), WayOut: "see: millrace node list"}
				}
				return nodeIDs(args), nil
			})
		},
	}
	r.restartFlags(c)
	return c
}

func clusterRoll(cm *clusters.Flags) *cobra.Command {
	r := restarting{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "roll --exec COMMAND",
		Short: "Restart all nodes, one after the other and zone by zone, as for an upgrade",
		Long: `Restarts all nodes, one after the other and zone by zone, as for an upgrade.
Before each, everything that it hosts must be served by another node; after it,
the node must be whole again. It stops at the first that is not, and goes on
from there when it is run again with --after. A node that has left before its turn,
and hosts nothing, is left out.

The command runs by sh with NODE, ADDR and ZONE in its environment, and returns
when the node is stopped and started. A node that is told to stop (SIGTERM)
leaves the routing first.`,
		Args: cobra.NoArgs,
	}
	var after string
	c.Flags().StringVar(&after, "after", "", "begin after this node")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return r.run(c, func(s *coordinator.Steered) ([]millrace.NodeID, error) { return rollOrder(s, after) })
	}
	r.restartFlags(c)
	return c
}

// rollOrder returns the nodes that are alive, sorted by zone and then by id. If after is not
// "", it returns only those that come after that node, which itself need not be alive.
func rollOrder(s *coordinator.Steered, after string) (ids []millrace.NodeID, err error) {
	nodes, from := slices.Clone(s.Map.Nodes()), millrace.NodeID(after)
	if n, ok := s.Map.Past(from); ok && !slices.ContainsFunc(nodes, func(n topology.Node) bool { return n.ID == from }) {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b topology.Node) int { return cmp.Or(cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.ID, b.ID)) })
	i := slices.IndexFunc(nodes, func(n topology.Node) bool { return n.ID == from })
	if i < 0 && after != "" {
		return nil, &millrace.Error{Reason: millrace.ReasonNotFound, Field: "after", Detail: fmt.Sprintf("no node %q is registered", after), WayOut: "see: millrace node list"}
	}
	for _, n := range nodes[i+1:] {
		if s.Map.Alive(n.ID) {
			ids = append(ids, n.ID)
		}
	}
	return ids, nil
}

// run shows the nodes that the function which returns. If --apply is given and the user
// agrees, it restarts them one after the other.
func (r *restarting) run(c *cobra.Command, which func(*coordinator.Steered) ([]millrace.NodeID, error)) error {
	if _, err := r.Overrides(); err != nil {
		return err
	}
	cl, err := r.Cluster.Open(c.Context())
	if err != nil {
		return err
	}
	defer cl.Close()
	s, _, err := coordinator.Look(c.Context(), cl)
	if err != nil {
		return err
	}
	ids, err := which(s)
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	for i, id := range ids {
		n, _ := s.Map.Node(id)
		hosted := s.Map.Hosted(id)
		out := s.Map.Quarantined(id)
		step := shownRestart{Node: id, Addr: n.Addr, Zone: n.Zone, Partitions: hosted.Len(), NotAwaited: out.Len(), State: "planned"}
		if err := r.Output.Write(w, step, step.text("%d. %s (%s, zone %q): %d partitions%s\n", i+1, id, n.Addr, n.Zone, hosted.Len(), notAwaited(out))); err != nil {
			return err
		}
	}
	if ok, err := r.Meant(c); !ok {
		return err
	}
	for i, id := range ids {
		restarted, err := r.restart(c.Context(), w, cl, id)
		if errors.Is(err, errLeft) && len(ids) > 1 {
			step := shownRestart{Node: id, State: "left_out"}
			err = r.Output.Write(w, step, step.text("%v\n", err))
		}
		if err == nil {
			continue
		}
		done := i
		if restarted {
			done++
		}
		return goOn(err, ids, done)
	}
	return nil
}

// goOn adds to err how to go on once the fault is mended. The first done nodes of ids are
// restarted.
func goOn(err error, ids []millrace.NodeID, done int) error {
	switch {
	case len(ids) == 1 || done == len(ids):
		return err
	case done == 0:
		return fmt.Errorf("%w; run it again once that is mended", err)
	}
	return fmt.Errorf("%w; go on with --after %s once that is mended", err, ids[done-1])
}

// stopsWithin is how long the command that restarts a node may still run after SIGTERM. It
// gets SIGTERM when r.timeout is over.
const stopsWithin = 10 * time.Second

// restart restarts a node once all that it hosts is served by others, and waits until it is
// whole: until it serves all that it hosts again. If the user interrupts this process, the
// command that restarts the node still runs to its end, since else the node would stay down;
// only the wait after it ends. restarted may be true although err is not nil: then the node
// need not be restarted again.
func (r *restarting) restart(told context.Context, w io.Writer, cl *cluster.Client, id millrace.NodeID) (restarted bool, err error) {
	err = cl.Alone(told, "restart "+string(id), func(told context.Context) (err error) {
		restarted, err = r.restartAlone(told, w, cl, id)
		return err
	})
	return restarted, err
}

// restartAlone is restart while cl.Alone keeps others from taking replicas out.
func (r *restarting) restartAlone(told context.Context, w io.Writer, cl *cluster.Client, id millrace.NodeID) (restarted bool, err error) {
	watching, stop := context.WithCancel(told)
	defer stop()
	watch, err := cl.Watch(watching)
	if err == nil && r.Override == "" {
		err = r.await(told, watch, func(m *topology.Map) error { return spared(m, id) })
	}
	if err == nil && r.Override == "" {
		err = r.answered(told, watch.Current(), id)
	}
	if told.Err() != nil {
		return false, fmt.Errorf("%w: %s is not restarted", overBy(told), id)
	}
	if err != nil {
		return false, fmt.Errorf("%s is not restarted: %w", id, err)
	}
	m := watch.Current()
	hosted, out := m.Hosted(id), m.Quarantined(id)
	n, ok := m.Node(id)
	if !ok { // a node that is gone but hosts something may be brought back by a restart
		n, ok = m.Past(id)
	}
	if !ok || !m.Alive(id) && hosted.Len() == 0 {
		return false, fmt.Errorf("%s is left out: %w", id, errLeft)
	}
	step := shownRestart{Node: id, Addr: n.Addr, Zone: n.Zone, Partitions: hosted.Len(), NotAwaited: out.Len(), State: "restarts"}
	if err := r.Output.Write(w, step, step.text("%s restarts\n", id)); err != nil {
		return false, err
	}
	note := func(e audit.Entry) error { return cl.Note(context.WithoutCancel(told), e) }
	err = command.Noted(note, audit.Entry{Act: "restart", On: string(id), Before: fmt.Sprintf("start %d", n.Start), After: "restarted by: " + r.exec}, func() error {
		if err := r.command(told, w, n); err != nil {
			return fmt.Errorf("the command that restarts %s: %w", id, err)
		}
		begun := time.Now()
		step.State = "waits"
		if err := r.Output.Write(w, step, step.text("%s: the command has ended; waiting until it is whole again\n", id)); err != nil {
			return err
		}
		err := r.await(told, watch, func(m *topology.Map) error { return whole(m, n, out) })
		if err != nil && told.Err() != nil {
			restarted, err = interrupted(told, id, err)
			return err
		}
		if err != nil {
			return fmt.Errorf("%s is not whole again after %s: %w", id, time.Since(begun).Round(time.Second), err)
		}
		took := time.Since(begun).Round(100 * time.Millisecond)
		step.State, step.Seconds = "whole", took.Seconds()
		return r.Output.Write(w, step, step.text("%s is whole again after %s\n", id, took))
	})
	return restarted, err
}

// errLeft is why a node is left out: it has left the cluster since the nodes were listed.
var errLeft = errors.New("it is not there any more, and hosts nothing")

// await waits until fault returns nil for the cluster's map, for r.timeout at most. After
// that it returns an error.
func (r *restarting) await(told context.Context, watch *cluster.Watcher, fault func(*topology.Map) error) error {
	ctx, cancel := context.WithTimeout(told, r.timeout)
	defer cancel()
	return clusters.Await(ctx, watch, fault)
}

// errByHand says that a person has stopped this process, as by Ctrl-C.
var errByHand = errors.New("interrupted")

// overBy returns why the context told has ended. Either a person has stopped this process, or
// etcd could not be reached for so long that the lock of cl.Alone has lapsed, so that others
// may take replicas out by now.
func overBy(told context.Context) error {
	if why := context.Cause(told); errors.Is(why, cluster.ErrAway) {
		return why
	}
	return errByHand
}

// interrupted returns the error for a node whose command has ended well, if told ended before
// the node was whole. fault is why it was not yet whole. restarted is true if the node need
// not be restarted again: the new process is registered, or etcd is away and cannot tell.
func interrupted(told context.Context, id millrace.NodeID, fault error) (restarted bool, err error) {
	by := overBy(told)
	switch {
	case errors.Is(by, cluster.ErrAway): // without etcd it cannot be seen whether the new process runs
		return true, fmt.Errorf("%w: the command that restarts %s has ended, and whether it is whole is not known: %w", by, id, fault)
	case errors.Is(fault, errBefore):
		return false, fmt.Errorf("%w: the command has ended, and %s may not be restarted: %w", by, id, fault)
	}
	return true, fmt.Errorf("%w: %s is restarted, and not whole yet: %w", by, id, fault)
}

// shownRestart is a step of a restart as JSON: each is a line.
type shownRestart struct {
	Node       millrace.NodeID `json:"node"`
	Addr       string          `json:"addr"`
	Zone       string          `json:"zone"`
	Partitions int             `json:"partitions"`
	NotAwaited int             `json:"not_awaited,omitempty"` // how many of Partitions were quarantined before, so that the restart does not wait for them
	State      string          `json:"state"`                 // planned, restarts, waits, whole; or left_out
	Seconds    float64         `json:"seconds"`               // from the command's end until the node was whole
}

// text returns a function that writes a step for people, by a format as of [fmt.Fprintf]. It
// does not use its receiver.
func (shownRestart) text(format string, args ...any) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintf(w, format, args...)
		return err
	}
}

// command runs the command that restarts a node, for r.timeout at most. It goes on when told
// ends. A terminal that interrupts this process interrupts the command as well, which may
// then end or go on.
func (r *restarting) command(told context.Context, w io.Writer, n topology.Node) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(told), r.timeout)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-c", r.exec)
	c.Env = append(os.Environ(), "NODE="+string(n.ID), "ADDR="+n.Addr, "ZONE="+n.Zone)
	c.Stdout, c.Stderr = w, os.Stderr
	if r.Output.JSON() {
		c.Stdout = os.Stderr
	}
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, stopsWithin
	err := c.Run()
	if err != nil && told.Err() != nil {
		err = fmt.Errorf("%w: %w: see whether the node runs", overBy(told), err)
	}
	return err
}

// spared returns an error that names the partitions that no other node can be relied on to
// serve (see clusters.Alone); nil if there are none, so that the node can be spared.
func spared(m *topology.Map, id millrace.NodeID) error {
	alone := clusters.Alone(m, id)
	if k := alone.Len(); k > 0 {
		return fmt.Errorf("%d partitions that it hosts are served by nobody else%s: %s", k, clusters.Others(m, id, alone), &alone)
	}
	return nil
}

// answered asks the other nodes that host what a node hosts. It returns an error if
// partitions are served only by nodes that do not answer, even if etcd says that they are
// ready.
func (r *restarting) answered(ctx context.Context, m *topology.Map, id millrace.NodeID) error {
	conns, err := clusters.ConnsOf(ctx)
	if err != nil {
		return err
	}
	defer conns.Close()
	hosted := m.Hosted(id)
	others := slices.DeleteFunc(slices.Clone(m.Nodes()), func(n topology.Node) bool {
		shared := hosted.And(m.Hosted(n.ID))
		return n.ID == id || !m.Alive(n.ID) || shared.Len() == 0
	})
	silent := conns.Silent(ctx, others)
	alone := clusters.Alone(m, id, silent...)
	if k := alone.Len(); k > 0 {
		return fmt.Errorf("%v do not answer, and %d partitions that it hosts are served by nobody else: %s; see to them, or %s", silent, k, &alone, r.OverrideWay())
	}
	return nil
}

// notAwaited says which partitions a restart does not wait for.
func notAwaited(out topology.Set) string {
	if out.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of them are quarantined and are not waited for: %s", out.Len(), &out)
}

// errBefore is the fault of a node that seems not to have been restarted yet.
var errBefore = errors.New("the process that ran before is still registered")

// whole returns why a node does not serve all that it hosts; nil if it does. The process that
// serves must have started after the one that was registered as before. out are the
// partitions that were quarantined before the restart: no restart brings those back, so whole
// does not demand them.
func whole(m *topology.Map, before topology.Node, out topology.Set) error {
	id := before.ID
	n, _ := m.Node(id)
	ready := m.Ready(id)
	missing := m.Hosted(id)
	missing = missing.Minus(ready)
	missing = missing.Or(m.Lag(id).Behind)
	missing = missing.Minus(out)
	switch {
	case !m.Alive(id):
		return errors.New("it is not registered")
	case n.Instance == before.Instance && n.Start <= before.Start && before.Start > 0: // Start counts the starts with one data directory, which Instance names
		return errBefore
	case n.Keeps == "" && missing.Len() > 0:
		return fmt.Errorf("%d partitions are not ready", missing.Len())
	}
	return nil
}
