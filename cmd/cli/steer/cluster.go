package steer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/partition"
)

// Cluster returns the command cluster, which shows the cluster and changes which nodes host
// which partitions.
func Cluster() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Show the cluster, change who hosts what, or restore what etcd lost"}
	cm := clusters.FlagsOf(c.PersistentFlags())
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

func clusterShow(cm *clusters.Flags) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:   "show",
		Short: "Nodes, what they host, what is ready, and what is wrong; fails unless all is well",
		Long: `Shows the index nodes, what they host and what of it is ready, which brokers are
registered and whether they go by all that etcd has, and what is wrong. It fails
unless all is well; a broker that is only silent is shown, and is no fault, since
it may have ended. One that has not heard of something is given 12 s, in which all processes read etcd
anew, and one that has heard of it and does not go by it 3 s, before that is a fault.

A broker that stops takes its registration back. One that ends otherwise, or has
lost etcd, is named as silent for ten minutes at most. Brokers older
than registration are not shown.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := cm.Look(c.Context())
			if err != nil {
				return err
			}
			brokers, err := cm.Brokers(c.Context())
			if err != nil {
				return err
			}
			err = output.Write(c.OutOrStdout(), shownOf(l, brokers), func(w io.Writer) error { return writeLook(w, l, brokers) })
			if n := len(faultsOf(l, brokers)); err == nil && n > 0 {
				err = fmt.Errorf("cluster %s is not well: %s", cm.Name(), display.Faults(n))
			}
			return err
		},
	}
	display.Flag(c, &output)
	return c
}

func faultsOf(l clusters.Look, brokers []clusters.Broker) []string {
	return append(l.Faults(), clusters.BrokerFaults(brokers)...)
}

func writeLook(w io.Writer, l clusters.Look, brokers []clusters.Broker) error {
	h := l.Health
	t := display.NewTable(w)
	t.Printf("assignment epoch %d, %d partitions, %d replicas each\n\nNODE\tADDRESS\tZONE\tSTATE\tHOSTS\tREADY\tBEHIND\tLAG\n", h.Epoch, partition.Count, h.Replicas)
	for _, n := range h.Nodes {
		state := n.State
		if state != topology.NodeAlive {
			state = strings.ToUpper(state)
		}
		if !n.Seen.IsZero() {
			state += ", last heard " + n.Seen.Format(time.RFC3339)
		}
		if n.Keeps != "" {
			state += ", backs up " + n.Keeps
		}
		t.Printf("%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", n.ID, n.Addr, n.Zone, state, n.Hosts.Len(), n.Ready.Len(), n.Lag.Behind.Len(), n.Lag.Far())
	}
	if len(brokers) > 0 {
		t.Printf("\nBROKER\tADDRESS\tADMIN\tVERSION\tSTATE\n")
	} else {
		t.Printf("\nno broker is registered\n")
	}
	for _, b := range brokers {
		t.Printf("%s\t%s\t%s\t%s\t%s\n", b.Name, b.Addr, cmp.Or(b.Admin, "-"), b.Version, b.State())
	}
	if faults := faultsOf(l, brokers); len(faults) > 0 {
		t.Printf("\nnot well:\n")
		for _, f := range faults {
			t.Printf("  %s\n", f)
		}
		if way := l.WayOut(); way != "" {
			t.Printf("  way out: %s\n", way)
		}
	} else if slices.ContainsFunc(brokers, func(b clusters.Broker) bool { return b.Silent > 0 }) {
		t.Printf("\nall is well, but for what is SILENT above and may have ended\n")
	} else {
		t.Printf("\nall is well\n")
	}
	if warnings := l.Warnings(); len(warnings) > 0 {
		t.Printf("\nto be looked after:\n")
		for _, x := range warnings {
			t.Printf("  %s\n", x)
		}
	}
	return t.Flush()
}

// shown is what cluster show writes as JSON.
type shown struct {
	OK         bool                `json:"ok"`
	Faults     []string            `json:"faults"`
	WayOut     string              `json:"way_out,omitempty"`  // what to do if something is wrong with the whole cluster
	Warnings   []string            `json:"warnings,omitempty"` // what is to be looked after, and is no fault yet
	Epoch      int64               `json:"epoch"`
	Replicas   int                 `json:"replicas"`
	Unserved   []int               `json:"unserved"` // partitions without a ready replica
	Below      []int               `json:"below"`    // partitions with a ready replica, but fewer than Replicas
	Nodes      []shownNode         `json:"nodes"`
	Brokers    []clusters.Broker   `json:"brokers"`    // those that are registered
	Assignment topology.Assignment `json:"assignment"` // which cluster assign --from can read
}

// shownNode is an index node as cluster show writes it as JSON.
type shownNode struct {
	ID         millrace.NodeID `json:"id"`
	Addr       string          `json:"addr,omitempty"`
	Zone       string          `json:"zone,omitempty"`
	State      string          `json:"state"`
	Seen       *time.Time      `json:"seen,omitempty"` // when the node was last heard; null if it is alive, or if that is not known
	Hosts      []int           `json:"hosts"`
	BacksUp    string          `json:"backs_up,omitempty"` // the partitions that a backup node backs up, such as 0-719; empty for other nodes
	Ready      []int           `json:"ready"`
	Behind     []int           `json:"behind,omitempty"`      // partitions that lag behind the log
	LagSeconds float64         `json:"lag_seconds,omitempty"` // how long, at least, the oldest record that is not applied has waited; 0: that is not known, or Behind is empty
	Reports    []shownReport   `json:"reports,omitempty"`
}

// shownReport says why some partitions of a node are in a state other than ready, or warns
// about them; see [topology.Report].
type shownReport struct {
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	Partitions []int     `json:"partitions"`
	Since      time.Time `json:"since"`
	Seconds    float64   `json:"seconds,omitempty"`
	Warning    bool      `json:"warning,omitempty"`
}

func shownOf(l clusters.Look, brokers []clusters.Broker) shown {
	h, faults := l.Health, faultsOf(l, brokers)
	out := shown{OK: len(faults) == 0, Faults: display.List(faults), Nodes: []shownNode{}, Brokers: brokers, WayOut: l.WayOut(), Warnings: l.Warnings(), Epoch: h.Epoch, Replicas: h.Replicas, Unserved: display.Numbers(h.Unserved), Below: display.Numbers(h.Below), Assignment: l.Map.Assignment()}
	for _, n := range h.Nodes {
		node := shownNode{ID: n.ID, Addr: n.Addr, Zone: n.Zone, State: n.State, Hosts: display.Numbers(n.Hosts), BacksUp: n.Keeps, Ready: display.Numbers(n.Ready), Behind: display.Numbers(n.Lag.Behind), LagSeconds: n.Lag.Seconds}
		if !n.Seen.IsZero() {
			node.Seen = &n.Seen
		}
		for _, r := range n.Reports {
			node.Reports = append(node.Reports, shownReport{r.State, r.Reason, r.Detail, display.Numbers(r.Partitions), r.Since, r.Seconds, r.Warning})
		}
		out.Nodes = append(out.Nodes, node)
	}
	return out
}

func clusterHistory(cm *clusters.Flags) *cobra.Command {
	var output display.Form
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
			cl, err := cm.Open(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			all, err := cl.History(c.Context())
			if err != nil {
				return err
			}
			return output.Write(c.OutOrStdout(), display.List(all), func(w io.Writer) error { return display.WriteActs(w, all) })
		},
	}
	display.Flag(c, &output)
	return c
}

// assigning has the flags of cluster assign.
type assigning struct {
	command.Act
	nodes    []string
	replicas int
	from     string
	replace  bool
	shrink   bool
	force    bool
	epoch    int64
	wait     time.Duration
}

func clusterAssign(cm *clusters.Flags) *cobra.Command {
	as := assigning{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "assign --nodes a,b,c --replicas 2 | --from FILE",
		Short: "Spread all partitions over nodes, or go back to an assignment that there was",
		Long: `Spreads all partitions over nodes, in a cluster that has no assignment yet, at once.
There are at least as many nodes as replicas.

With --from it assigns what a file holds, under the next epoch: the output of
"cluster show -o json", or map.json of a data directory's cluster directory. So
it goes back from an assignment that was a mistake.

Where nodes remember an assignment that etcd has lost --nodes is refused:
"cluster restore" brings that back, and moves nothing.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.Open(c.Context())
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
	as.OverrideFlag(c, "to assign anew what nodes remember otherwise, and etcd has lost")
	f.DurationVar(&as.wait, "wait", 10*time.Second, "for how long nodes that have just been started may be on their way to register")
	f.Int64Var(&as.epoch, "epoch", 0, "the epoch, above the present one by at most 1000 (default: the next)")
	c.MarkFlagsMutuallyExclusive("nodes", "from")
	c.MarkFlagsOneRequired("nodes", "from")
	return c
}

// run assigns the partitions. While nodes that are to be assigned have not registered, or
// another process changes the assignment at the same time, it tries again, until as.wait is
// over.
func (as *assigning) run(ctx context.Context, cl *cluster.Client) (a topology.Assignment, err error) {
	over, err := as.Overrides()
	if err != nil {
		return a, err
	}
	now, ok, err := steering.Assigned(ctx, cl)
	if err != nil {
		return a, err
	}
	if ok && as.from == "" && !as.replace {
		return a, fmt.Errorf("%w: it has epoch %d; change it by millrace cluster plan, go back to an earlier one with --from, or move everything with --replace", steering.ErrEpoch, now.Epoch)
	}
	limited, cancel := context.WithTimeout(ctx, as.wait)
	defer cancel()
	for {
		if a, err = as.make(ctx, cl, over); err != nil {
			return a, err
		}
		a.Epoch = cmp.Or(as.epoch, now.Epoch+1)
		a.AllowShrink, a.AllowUnknown = as.shrink, as.force
		err = coordinator.Assign(ctx, cl, a, over)
		if !errors.Is(err, topology.ErrUnknownOwner) && !errors.Is(err, steering.ErrRaced) {
			return a, err
		}
		select { // nodes that have just been started may be about to register
		case <-limited.Done():
			return a, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// make returns the assignment in the file of --from, or one that spreads all partitions over
// the nodes of --nodes. over says that --override is given: lost state is no fault then.
func (as *assigning) make(ctx context.Context, cl *cluster.Client, over bool) (topology.Assignment, error) {
	s, stats, err := coordinator.Look(ctx, cl)
	if err != nil {
		return topology.Assignment{}, err
	}
	if lost := s.Map.Lost(); lost != "" && !over {
		return topology.Assignment{}, &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: "etcd has lost state: " + lost,
			WayOut: cluster.RestoreWayOut + "; if that is meant, " + as.OverrideWay(),
		}
	}
	if err := s.Idle(); err != nil {
		return topology.Assignment{}, err
	}
	if as.from != "" {
		return topology.ReadAssignment(as.from)
	}
	ids := make([]millrace.NodeID, len(as.nodes))
	for i, n := range as.nodes {
		ids[i] = millrace.NodeID(strings.TrimSpace(n))
	}
	return coordinator.First(s, stats, ids, as.replicas)
}

// restoredDoc says in words what a user is told of a document that was to be restored.
type restoredDoc struct {
	what string // what the document is; "": the user is told nothing of it
	mend string // what the user can do if it was not restored
	by   string // which processes or commands write such documents
}

// called returns the word that commands have for the kind of a document, a space and the
// document's name. doc is the kind, a space and the name, which may include a version.
func called(doc string) string {
	kind, name, _ := strings.Cut(doc, " ")
	switch kind {
	case feeds.Kind:
		kind = "feed"
	case indexnode.ModelsKind:
		kind = "model"
	case experiments.Kind:
		kind = "document"
	}
	return kind + " " + name
}

// document returns what a user is told of a document; doc is as in called.
func document(doc string) restoredDoc {
	kind, name, _ := strings.Cut(doc, " ")
	switch {
	case kind == artefacts.CondemnedKind:
		return restoredDoc{"what is condemned of model " + name, "nodes condemn again what they meet", "an index node, or model release or push,"}
	case kind != experiments.TrailsKind:
		return restoredDoc{called(doc), "push or define again what it lacks", "somebody"}
	case !experiments.IsTrail(name):
		return restoredDoc{}
	}
	return restoredDoc{
		"what was decided about experiment " + name + ", and who holds it,", "let its ramp go on with millrace experiment resume if nobody is against it",
		"the coordinator that leads, or experiment hold or resume,",
	}
}

// tellRestored tells what was restored and from where, and what was not, and why.
func tellRestored(w io.Writer, r *restoration.Restored) {
	for _, dir := range r.Dirs {
		fmt.Fprintf(w, "%s: last written %s\n", dir.Dir, dir.Written.UTC().Format(time.RFC3339))
	}
	for _, dir := range r.Empty {
		fmt.Fprintf(w, "nothing is kept in %s: it is left out\n", dir)
	}
	for _, b := range r.Documents {
		if what := document(b.Document).what; what != "" {
			serves := ""
			if b.Serves != "" {
				serves = ": " + b.Serves + " serves"
			}
			fmt.Fprintf(w, "%s is restored from %s, as of revision %d%s\n", what, b.Dir, b.Revision, serves)
		}
	}
	for _, b := range r.Bytes {
		fmt.Fprintf(w, "%s: the bytes of %s are restored from %s\n", called(b.Document), versions(b.Versions), b.Dir)
	}
	for _, v := range r.Undone {
		fmt.Fprintf(w, "%s was put into etcd since it lost state, and never served: it is not there any more; push or define it again if it is needed\n", called(v))
	}
	for _, doc := range r.Stays {
		tellStays(w, r, doc, "which "+document(doc).by+" has written since")
	}
	for _, doc := range r.Unsure {
		tellStays(w, r, doc, "and it cannot be told which is newer")
	}
	for _, doc := range r.Again {
		if what := document(doc).what; what != "" {
			fmt.Fprintf(w, "%s is in etcd again, and was removed after the backup: remove it again if it is not needed\n", what)
		}
	}
	for _, l := range r.Lost {
		instead := l.Now + " serves in its place"
		if l.Now == "no version" {
			instead = "nothing serves in its place"
		}
		fmt.Fprintf(w, "%s is lost: its bytes are in none of the directories, nor in etcd; %s: look at it, and push or define it again\n", called(l.Version), instead)
	}
	for _, v := range r.Lacks {
		fmt.Fprintf(w, "%s: its bytes are in none of the directories, nor in etcd: push or define it again if it is needed\n", called(v))
	}
}

// tellPlan tells what becomes of a plan that was under way, which no data directory has, and
// which nodes are drained. If err is not nil, s could not be read, and tellPlan says that it
// cannot tell; the restoration holds all the same.
func tellPlan(w io.Writer, s *coordinator.Steered, err error) {
	if err != nil {
		fmt.Fprintf(w, "all is restored, and what becomes of a plan that was under way cannot be told: %v: see millrace cluster status\n", err)
		return
	}
	if surplus := s.Surplus(); surplus.Len() > 0 {
		fmt.Fprintf(w, "%d partitions have more than %d replicas, and etcd has no plan that is under way: one was, and is lost, and nobody takes them away: %s: see to it with millrace cluster plan, and millrace cluster apply\n", surplus.Len(), s.Map.Wanted(), &surplus)
	}
	if p := s.Plan; p != nil && !p.Status.Ended() {
		fmt.Fprintf(w, "plan %s (%s) is %s as etcd has it, which may be older, and goes on from this assignment: look at it with millrace cluster status\n", p.ID, p.Kind, p.Status)
	}
	draining := []millrace.NodeID{}
	for id, m := range s.Intent.Nodes {
		if m.Draining {
			draining = append(draining, id)
		}
	}
	slices.Sort(draining)
	fmt.Fprintf(w, "drained are, as etcd has it, which may be older: %v; drain others again (millrace node drain), or plans give them partitions\n", draining)
}

// tellStays tells of a document that is not restored, and why.
func tellStays(w io.Writer, r *restoration.Restored, doc, why string) {
	d := document(doc)
	if d.what == "" {
		return
	}
	serves := ""
	if s, ok := r.Serves[doc]; ok {
		serves = fmt.Sprintf(" (%s serves, and by the directories %s)", s.Now, s.Kept)
	}
	fmt.Fprintf(w, "%s stays as etcd has it, %s: what was kept of it is not restored%s; look at it, and %s\n", d.what, why, serves, d.mend)
}

// versions names all versions in words. There must be one at least.
func versions(all []string) string {
	if len(all) == 1 {
		return "version " + all[0]
	}
	return "versions " + strings.Join(all, ", ")
}

// sumRestored returns a line that sums up what was restored.
func sumRestored(r *restoration.Restored) string {
	if r.Alone {
		others := ""
		if r.Dropped > 0 {
			others = fmt.Sprintf(", %d versions without any are dropped", r.Dropped)
		}
		return fmt.Sprintf("etcd lacked bytes alone: those of %d versions are restored%s; all else is as before, assignment epoch %d and ramps too", r.BytesOf(), others, r.Epoch)
	}
	return fmt.Sprintf("assignment epoch %d, %d documents, bytes of %d versions, %d secrets", r.Epoch, len(r.Documents), r.BytesOf(), r.Secrets)
}

func clusterRestore(cm *clusters.Flags) *cobra.Command {
	var data []string
	act := command.Act{Cluster: cm}
	c := &cobra.Command{
		Use:   "restore --data DIR,DIR",
		Short: "Bring back what etcd lost, from what brokers, index nodes and coordinators kept of it",
		Long: `Brings back what etcd lost, from what brokers, index nodes and coordinators kept of
it in their data directories, the newest of each thing. Brokers keep the definitions of
feeds and experiments and the key of page tokens, index nodes the list of models,
coordinators what they decided about experiments and who vetoed it. Name the
directories of all that you can reach, copied to one machine: a process that was down
lacks what was written then. A directory in which nothing is kept, as of a node that has
lost its disk, is left out and told.

It waits up to 12 s, until every process that runs has looked at etcd and has said there
what it keeps. Directories that all lack something of that are refused, and the answer
says what is lacking, and the host and directory where it is; so are those from before
the last restoration, and those that lack the bytes of a version that serves, which etcd
lacks, too: the name of their file is told. Where those are gone for good, --override goes on without them: in place of a
version without bytes serves what did before, and that is told.

A plan that was under way is in no directory: it is told where partitions have more
replicas than are wanted and etcd has no plan any more, and which plan goes on. Nor are
the nodes that were drained: it tells who is, as etcd has it.

It tells how old each directory is, and of each document that it writes the directory
that it is from. What was written into etcd since it lost state stays,
and is told, and so is what was removed after etcd's backup and is in it again. A version
that was put since and never served, as by a command that was refused halfway, gives way to
what serves by the directories. Ramps of experiments are held from then on, until somebody
lets them go on with "millrace experiment resume": a veto may be among what was lost.

Bytes of versions are looked for whatever etcd has: of all kinds, and of versions that do
not serve, too. Where etcd lacks nothing but bytes, these are brought, and that is all:
assignment, documents and ramps are as before. The last lines say
which brokers go by what is in etcd then; one that has not looked again yet, which it
does within seconds, is named as NOT HEARD.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.Open(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			dirs := make([]string, len(data))
			for i, d := range data {
				if _, err := os.Stat(d); err != nil { // probably mistyped; a directory that is empty is left out below
					return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "data", Detail: err.Error(), WayOut: "name data directories as the roles' configuration has them (data)"}
				}
				dirs[i] = clusters.LastGood(d)
			}
			over, err := act.Overrides()
			if err != nil {
				return err
			}
			restore := restoration.Restore
			if over {
				restore = restoration.RestoreOlder
			}
			r, err := restore(c.Context(), cl, dirs...)
			var refused *millrace.Error
			if errors.Is(err, restoration.ErrOlderDirs) && errors.As(err, &refused) {
				refused.WayOut += "; if what they keep is gone for good, " + act.OverrideWay()
			}
			if err != nil {
				return err
			}
			tellRestored(c.ErrOrStderr(), &r)
			if !r.Alone {
				s, _, err := coordinator.Look(c.Context(), cl)
				tellPlan(c.ErrOrStderr(), s, err)
			}
			fmt.Fprintln(c.OutOrStdout(), sumRestored(&r))
			return clusters.TellAllHeard(c.Context(), c.OutOrStdout(), cl)
		},
	}
	c.Flags().StringSliceVar(&data, "data", nil, "data directories (data) of all brokers, coordinators and index nodes that you can reach")
	act.OverrideFlag(c, "to restore from directories that lack what processes keep, or the bytes of what serves")
	return c
}
