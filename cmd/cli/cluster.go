package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

func clusterCommand() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Show the cluster, change who hosts what, or restore what etcd lost"}
	cm := clusterFlagsOf(c.PersistentFlags())
	c.AddCommand(clusterShow(cm), clusterAssign(cm), clusterRestore(cm), clusterPlan(cm), clusterApply(cm), clusterStatus(cm), clusterExplain(cm), clusterHistory(cm), clusterRoll(cm), clusterPageKeys(cm))
	for o, short := range map[coordinator.Order]string{
		coordinator.Pause:    "Begin nothing further of the plan that is under way, and take no replica away",
		coordinator.Resume:   "Go on with a plan that is paused",
		coordinator.Cancel:   "Stop the plan where it is: what is ready stays, what is not is taken back",
		coordinator.Rollback: "Go back to who hosted what before the last plan",
	} {
		c.AddCommand(clusterOrder(cm, o, short))
	}
	return c
}

// clusterFlagsOf adds the flags that name a cluster.
func clusterFlagsOf(f *pflag.FlagSet) *Common {
	var cm Common
	f.StringSliceVar(&cm.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&cm.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	return &cm
}

// look is a cluster as it is at one moment.
type look struct {
	m      *cluster.Map
	health cluster.Health
	fault  error // why the map may not be what etcd should hold
}

// clusterLook looks at a cluster once, and writes nothing to it.
func (c *Common) clusterLook(ctx context.Context) (look, error) {
	cl, err := c.lookAtCluster(ctx)
	if err != nil {
		return look{}, err
	}
	defer cl.Close()
	w, err := cl.Watch(ctx)
	if err != nil {
		return look{}, err
	}
	seen, err := cl.Seen(ctx)
	if err != nil {
		return look{}, err
	}
	m := w.Current()
	return look{m, m.Health(seen), errors.Join(w.Fault(), cl.Full(ctx))}, nil
}

// read reports whether nodes have hosted partitions, and so have read the log.
func (l look) read() bool {
	return l.health.Lost || l.health.Epoch > 0 && slices.ContainsFunc(l.health.Nodes, func(n cluster.NodeHealth) bool { return n.State != cluster.NodeNever })
}

// takenOut reports whether operators have quarantined replicas.
func (l look) takenOut() bool {
	return slices.ContainsFunc(l.health.Nodes, func(n cluster.NodeHealth) bool {
		return slices.ContainsFunc(n.Reports, func(r cluster.Report) bool { return r.Reason == cluster.ByOperatorReason })
	})
}

// faults is everything that is wrong with the cluster.
func (l look) faults() []string {
	faults := l.health.Faults()
	switch {
	case errors.Is(l.fault, cluster.ErrNothing) && !l.health.Lost:
		return []string{l.fault.Error()} // so it has no assignment either
	case l.fault != nil:
		faults = append(strings.Split(l.fault.Error(), "\n"), faults...)
	}
	return faults
}

// wayOut is what to do about faults of the whole cluster; "" if there are none.
func (l look) wayOut() string {
	switch {
	case errors.Is(l.fault, cluster.ErrFull):
		return cluster.FullWayOut
	case l.health.Lost:
		return restoreWayOut
	case errors.Is(l.fault, cluster.ErrNothing):
		return "of a new cluster start the nodes, then millrace cluster assign --nodes ..; if it was at work, etcd has lost all of it: millrace cluster restore --data .."
	case l.health.Epoch == 0:
		return assignWayOut
	case l.fault != nil:
		return mendWayOut
	}
	return ""
}

func clusterShow(cm *Common) *cobra.Command {
	var output form
	c := &cobra.Command{
		Use:   "show",
		Short: "Nodes, what they host, what is ready, and what is wrong; fails unless all is well",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := cm.clusterLook(c.Context())
			if err != nil {
				return err
			}
			err = output.write(c.OutOrStdout(), l.shown(), l.write)
			if n := len(l.faults()); err == nil && n > 0 {
				err = fmt.Errorf("cluster %s is not well: %s", cm.clusterName(), faults(n))
			}
			return err
		},
	}
	outputFlag(c, &output)
	return c
}

func (l look) write(w io.Writer) error {
	h := l.health
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "assignment epoch %d, %d partitions, %d replicas each\n\nNODE\tADDRESS\tZONE\tSTATE\tHOSTS\tREADY\tBEHIND\tLAG\n", h.Epoch, partition.Count, h.Replicas)
	for _, n := range h.Nodes {
		state := n.State
		if state != cluster.NodeAlive {
			state = strings.ToUpper(state)
		}
		if !n.Seen.IsZero() {
			state += " since " + n.Seen.Format(time.RFC3339)
		}
		if n.Keeps != "" {
			state += ", backs up " + n.Keeps
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%.0f s\n", n.ID, n.Addr, n.Zone, state, n.Hosts.Len(), n.Ready.Len(), n.Lag.Behind.Len(), n.Lag.Seconds)
	}
	if faults := l.faults(); len(faults) > 0 {
		fmt.Fprintf(t, "\nnot well:\n  %s\n", strings.Join(faults, "\n  "))
		if way := l.wayOut(); way != "" {
			fmt.Fprintf(t, "  way out: %s\n", way)
		}
	} else {
		fmt.Fprintln(t, "\nall is well")
	}
	if warnings := h.Warnings(); len(warnings) > 0 {
		fmt.Fprintf(t, "\nto be looked after:\n  %s\n", strings.Join(warnings, "\n  "))
	}
	return t.Flush()
}

// shown is a look as JSON.
type shown struct {
	OK         bool               `json:"ok"`
	Faults     []string           `json:"faults"`
	WayOut     string             `json:"way_out,omitempty"`  // of what is wrong with the whole cluster
	Warnings   []string           `json:"warnings,omitempty"` // what is not wrong yet
	Epoch      int64              `json:"epoch"`
	Replicas   int                `json:"replicas"`
	Unserved   []int              `json:"unserved"` // partitions without a ready replica
	Below      []int              `json:"below"`    // with fewer than replicas
	Nodes      []shownNode        `json:"nodes"`
	Assignment cluster.Assignment `json:"assignment"` // for assign --from
}

type shownNode struct {
	ID         millrace.NodeID `json:"id"`
	Addr       string          `json:"addr,omitempty"`
	Zone       string          `json:"zone,omitempty"`
	State      string          `json:"state"`
	Seen       *time.Time      `json:"seen,omitempty"` // when it last lived
	Hosts      []int           `json:"hosts"`
	BacksUp    string          `json:"backs_up,omitempty"` // of a backup node: partitions, such as 0-719
	Ready      []int           `json:"ready"`
	Behind     []int           `json:"behind,omitempty"`
	LagSeconds float64         `json:"lag_seconds,omitempty"`
	Reports    []shownReport   `json:"reports,omitempty"`
}

type shownReport struct {
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	Partitions []int     `json:"partitions"`
	Since      time.Time `json:"since"`
	Seconds    float64   `json:"seconds,omitempty"`
	Warning    bool      `json:"warning,omitempty"`
}

func (l look) shown() shown {
	h, faults := l.health, l.faults()
	out := shown{OK: len(faults) == 0, Faults: list(faults), Nodes: []shownNode{}, WayOut: l.wayOut(), Warnings: h.Warnings(), Epoch: h.Epoch, Replicas: h.Replicas, Unserved: numbers(h.Unserved), Below: numbers(h.Below), Assignment: l.m.Assignment()}
	for _, n := range h.Nodes {
		node := shownNode{ID: n.ID, Addr: n.Addr, Zone: n.Zone, State: n.State, Hosts: numbers(n.Hosts), BacksUp: n.Keeps, Ready: numbers(n.Ready), Behind: numbers(n.Lag.Behind), LagSeconds: n.Lag.Seconds}
		if !n.Seen.IsZero() {
			node.Seen = &n.Seen
		}
		for _, r := range n.Reports {
			node.Reports = append(node.Reports, shownReport{r.State, r.Reason, r.Detail, numbers(r.Partitions), r.Since, r.Seconds, r.Warning})
		}
		out.Nodes = append(out.Nodes, node)
	}
	return out
}

func numbers(s cluster.Set) []int {
	out := []int{}
	for p := range s.All() {
		out = append(out, int(p))
	}
	return out
}

func clusterHistory(cm *Common) *cobra.Command {
	var output form
	c := &cobra.Command{
		Use:   "history",
		Short: "Who had what done to the cluster, and when",
		Long: `Shows what commands did to who hosts what, to page keys, and to the running of
nodes: who, what, and how it was before and after, the oldest first, a thousand at
most. Feeds, models and documents of experiments have histories of their own
("feed history"), what nodes do by request is in their audit logs, what becomes of
backups is in their bucket ("backup acts"), and what partitioners are told in the
topic progress ("topics history").`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.reachCluster(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			all, err := cl.History(c.Context())
			if err != nil {
				return err
			}
			return output.write(c.OutOrStdout(), list(all), func(w io.Writer) error { return writeActs(w, all) })
		},
	}
	outputFlag(c, &output)
	return c
}

// writeActs prints what was done, an act a line.
func writeActs(w io.Writer, all []audit.Entry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHEN\tWHO\tACT\tON\tBEFORE\tAFTER")
	for _, e := range all {
		after := e.After
		if e.Fault != "" {
			after = "FAILED: " + e.Fault
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", shortTime(e.Time), printable(e.Who), e.Act, printable(e.On), printable(e.Before), printable(after))
	}
	return t.Flush()
}

// assigning is what cluster assign is told.
type assigning struct {
	act
	nodes    []string
	replicas int
	from     string
	replace  bool
	shrink   bool
	force    bool
	epoch    int64
	wait     time.Duration
}

func clusterAssign(cm *Common) *cobra.Command {
	as := assigning{act: act{cm: cm}}
	c := &cobra.Command{
		Use:   "assign --nodes a,b,c --replicas 2 | --from FILE",
		Short: "Spread all partitions over nodes, or go back to an assignment that there was",
		Long: `Spreads all partitions over nodes, in a cluster that has no assignment yet.

With --from it assigns what a file holds, under the next epoch: the output of
"cluster show -o json", or map.json of a data directory's cluster directory. So
it goes back from an assignment that was a mistake.

Where nodes remember an assignment that etcd has lost --nodes is refused:
"cluster restore" brings that back, and moves nothing.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.reachCluster(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			a, err := as.run(c.Context(), cl)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "assignment epoch %d: %d partitions on %d nodes\n", a.Epoch, partition.Count, len(a.Nodes()))
			return nil
		},
	}
	f := c.Flags()
	f.StringSliceVar(&as.nodes, "nodes", nil, "ids of the index nodes")
	f.IntVar(&as.replicas, "replicas", 2, "replicas of each partition")
	f.StringVar(&as.from, "from", "", "a file with the assignment to go back to")
	f.BoolVar(&as.replace, "replace", false, "with --nodes: replace the present assignment, though nearly every partition moves")
	f.BoolVar(&as.shrink, "allow-shrink", false, "let the map lose more than a fifth of its nodes or replicas")
	f.BoolVar(&as.force, "force", false, "assign nodes that have never registered, too")
	as.overrideFlag(c, "to assign anew what nodes remember otherwise, and etcd has lost")
	f.DurationVar(&as.wait, "wait", 10*time.Second, "for how long nodes that have just been started may be on their way to register")
	f.Int64Var(&as.epoch, "epoch", 0, "the epoch, above the present one by at most 1000 (default: the next)")
	c.MarkFlagsMutuallyExclusive("nodes", "from")
	c.MarkFlagsOneRequired("nodes", "from")
	return c
}

func (as *assigning) run(ctx context.Context, cl *cluster.Client) (a cluster.Assignment, err error) {
	over, err := as.overrides()
	if err != nil {
		return a, err
	}
	now, ok, err := cl.Assigned(ctx)
	if err != nil {
		return a, err
	}
	if ok && as.from == "" && !as.replace {
		return a, fmt.Errorf("%w: it has epoch %d; change it by millrace cluster plan, go back to an earlier one with --from, or move everything with --replace", cluster.ErrEpoch, now.Epoch)
	}
	limited, cancel := context.WithTimeout(ctx, as.wait)
	defer cancel()
	for {
		if a, err = as.make(ctx, cl, over); err != nil {
			return a, err
		}
		a.Epoch = cmp.Or(as.epoch, now.Epoch+1)
		a.AllowShrink, a.AllowUnknown = as.shrink, as.force
		err = cl.Assign(ctx, a)
		if !errors.Is(err, cluster.ErrUnknownOwner) {
			return a, err
		}
		select { // nodes may be on their way
		case <-limited.Done():
			return a, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// make reads an assignment to go back to, or spreads partitions over the nodes
// as they are now.
func (as *assigning) make(ctx context.Context, cl *cluster.Client, over bool) (cluster.Assignment, error) {
	s, stats, err := coordinator.Look(ctx, cl)
	if err != nil {
		return cluster.Assignment{}, err
	}
	if lost := s.Map.Lost(); lost != "" && as.from == "" && !over {
		return cluster.Assignment{}, &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: "etcd has lost state: " + lost,
			WayOut: restoreWayOut + "; if that is meant, say --override with the cluster's name",
		}
	}
	if p := s.Plan; p != nil && !p.Status.Ended() {
		return cluster.Assignment{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "plan", Detail: fmt.Sprintf("plan %s (%s) is %s, and would go on from another assignment", p.ID, p.Kind, p.Status), WayOut: "cancel it first: millrace cluster cancel"}
	}
	if as.from != "" {
		return cluster.ReadAssignment(as.from)
	}
	ids := make([]millrace.NodeID, len(as.nodes))
	for i, n := range as.nodes {
		ids[i] = millrace.NodeID(strings.TrimSpace(n))
	}
	return coordinator.First(s, stats, ids, as.replicas)
}

func clusterRestore(cm *Common) *cobra.Command {
	var data []string
	c := &cobra.Command{
		Use:   "restore --data DIR,DIR",
		Short: "Bring back what etcd lost, from what brokers and index nodes kept of it",
		Long: `Brings back what etcd lost, from what brokers and index nodes kept of it in
their data directories, the newest of each thing. Brokers keep the definitions of
feeds and experiments and the key of page tokens, index nodes the list of models;
so name one of each. A directory in which nothing is kept, as of a node that has
lost its disk, is left out and told.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.reachCluster(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			dirs := make([]string, len(data))
			for i, d := range data {
				if _, err := os.Stat(d); err != nil { // mistyped, as an empty one is not
					return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "data", Detail: err.Error(), WayOut: "name data directories as the roles' configuration has them (data)"}
				}
				dirs[i] = lastGood(d)
			}
			r, err := cl.Restore(c.Context(), dirs...)
			if err != nil {
				return err
			}
			for _, dir := range r.Empty {
				fmt.Fprintf(c.ErrOrStderr(), "nothing is kept in %s: it is left out\n", dir)
			}
			for _, doc := range r.Stays {
				fmt.Fprintf(c.ErrOrStderr(), "%s stays as etcd has it, which somebody has written since: what was kept of it is not restored; look at it, and push or define again what it lacks\n", doc)
			}
			fmt.Fprintf(c.OutOrStdout(), "assignment epoch %d, %d documents, %d secrets\n", r.Epoch, r.Documents, r.Secrets)
			return nil
		},
	}
	c.Flags().StringSliceVar(&data, "data", nil, "data directories (data) of a broker and an index node")
	return c
}
