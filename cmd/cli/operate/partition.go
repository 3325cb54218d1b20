// Package operate has the commands by which operators look into index nodes and act on
// them: partitions, timelines, records, caches, reading of the log, and how much there is.
package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/digest"
)

// Partition returns the command partition, which compares the replicas of a partition, takes
// one out of service, and has one built anew.
func Partition() *cobra.Command {
	c := &cobra.Command{
		Use:   "partition",
		Short: "Compare the replicas of a partition, take one out, and have it made anew",
		Long: `Compares the replicas of a partition: the digests that they had at equal offsets
of the log (check), and all that they hold, record by record (diff). Neither
changes anything, but that a replica whose rows do not fit its own digests is
taken out of service by its node, and made anew. A replica in doubt is taken out
by quarantine, and made anew by release.`,
		Example: `  millrace partition check 17
  millrace partition diff 17 --nodes node-1,node-2`,
	}
	cm := clusters.FlagsOf(c.PersistentFlags())
	c.AddCommand(partitionCheck(cm), partitionDiff(cm), partitionQuarantine(cm), partitionRelease(cm))
	return c
}

// checked is a partition's replicas as check shows them.
type checked struct {
	Partition   millrace.Partition `json:"partition"`
	Replicas    []checkedReplica   `json:"replicas"`
	Differences []string           `json:"differences,omitempty"`
}

// checkedReplica is a replica as check shows it.
type checkedReplica struct {
	Node           millrace.NodeID `json:"node"`
	Content        int64           `json:"content"` // the offset in the log of the newest digest of records; 0: there is none
	ContentDigest  string          `json:"content_digest"`
	Features       int64           `json:"features"` // the same for features
	FeaturesDigest string          `json:"features_digest"`
	Records        int64           `json:"records"`
	Fault          string          `json:"fault,omitempty"` // what is wrong with the replica's rows, or why that is not known
	unseen         bool            // the replica did not answer: only Node and Fault are set
}

func partitionCheck(cm *clusters.Flags) *cobra.Command {
	var output display.Form
	c := &cobra.Command{
		Use:   "check PARTITION",
		Short: "Compare the digests of a partition's replicas, and each with what it holds",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := command.Partition(args[0])
			if err != nil {
				return err
			}
			l, err := cm.Look(c.Context())
			if err != nil {
				return err
			}
			conns, err := clusters.ConnsOf(c.Context())
			if err != nil {
				return err
			}
			defer conns.Close()
			all, err := checkReplicas(c.Context(), l.Map, conns.Dial, p)
			if err != nil && len(all.Replicas) == 0 {
				return err
			}
			return errors.Join(output.Write(c.OutOrStdout(), all, all.write), err, all.fault())
		},
	}
	display.Flag(c, &output)
	return c
}

// checkReplicas asks all nodes that have a replica of a partition. A replica that does not
// answer is shown too, since nobody knows whether it is equal to the others. With an error
// all has what could be found out.
func checkReplicas(ctx context.Context, m *topology.Map, dial digest.Dial, p millrace.Partition) (all checked, err error) {
	trails, err := digest.Trails(ctx, m, dial, p)
	all.Partition, all.Replicas = p, []checkedReplica{}
	for _, t := range trails[p] {
		n, _ := m.Node(t.Node)
		r := checkedReplica{Node: t.Node}
		r.Content, r.ContentDigest = newest(t.ContentAt, t.Content)
		r.Features, r.FeaturesDigest = newest(t.FeaturesAt, t.Features)
		c, bad := dial(n)
		if bad == nil {
			var resp *nodev1.CheckPartitionResponse
			resp, bad = c.CheckPartition(ctx, &nodev1.CheckPartitionRequest{Partition: int32(p)})
			r.Records, r.Fault = resp.GetRecords(), resp.GetFault()
		}
		if bad != nil {
			r.Fault = fmt.Sprintf("not known: %v", bad)
			err = errors.Join(err, fmt.Errorf("check of %s: %w", t.Node, bad))
		}
		all.Replicas = append(all.Replicas, r)
	}
	for _, id := range m.Replicas(p) {
		if !slices.ContainsFunc(trails[p], func(t digest.Trail) bool { return t.Node == id }) {
			all.Replicas = append(all.Replicas, checkedReplica{Node: id, Fault: "does not answer: " + stateOf(m, id, p), unseen: true})
		}
	}
	for _, d := range digest.Judge(p, trails[p]) {
		all.Differences = append(all.Differences, d.String())
	}
	if len(trails[p]) == 0 {
		err = errors.Join(err, &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("no replica of partition %d answers", p), WayOut: "millrace cluster show says why",
		})
	}
	return all, err
}

// stateOf returns the state that a node reports of its replica of a partition.
func stateOf(m *topology.Map, id millrace.NodeID, p millrace.Partition) string {
	if !m.Alive(id) {
		return "its node is gone"
	}
	for _, r := range m.Reports(id) {
		if r.Partitions.Has(p) {
			return strings.TrimSuffix(fmt.Sprintf("%s (%s)", r.State, r.Reason), " ()")
		}
	}
	if ready := m.Ready(id); ready.Has(p) {
		return "ready"
	}
	return "not ready"
}

// newest returns the offset of the last digest, and that digest as 16 hexadecimal digits. at
// and digests go together; if either is empty, it returns 0 and "".
func newest(at []int64, digests []uint64) (int64, string) {
	n := min(len(at), len(digests))
	if n == 0 {
		return 0, ""
	}
	return at[n-1], fmt.Sprintf("%016x", digests[n-1])
}

func (all checked) write(w io.Writer) error {
	t := display.NewTable(w)
	t.Printf("NODE\tCONTENT\tDIGEST\tFEATURES\tDIGEST\tRECORDS\tHOLDS\n")
	for _, r := range all.Replicas {
		if r.unseen {
			t.Printf("%s\t-\t-\t-\t-\t-\t%s\n", r.Node, r.Fault)
			continue
		}
		holds := "what its digests say"
		if r.Fault != "" {
			holds = r.Fault
		}
		t.Printf("%s\t%d\t%s\t%d\t%s\t%d\t%s\n", r.Node, r.Content, r.ContentDigest, r.Features, r.FeaturesDigest, r.Records, holds)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range all.Differences {
		fmt.Fprintln(w, d)
	}
	switch {
	case all.fault() != nil:
	case len(all.Replicas) < 2:
		fmt.Fprintln(w, "there is one replica, and none to compare it with")
	default:
		fmt.Fprintln(w, "the replicas are equal where they have been at equal offsets")
	}
	return nil
}

// fault returns an error if replicas differ, or if one has a fault or did not answer; else nil.
func (all checked) fault() error {
	n := len(all.Differences)
	for _, r := range all.Replicas {
		if r.Fault != "" {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%s in the replicas of partition %d", display.Faults(n), all.Partition)
	}
	return nil
}

func partitionDiff(cm *clusters.Flags) *cobra.Command {
	var output display.Form
	var nodes []string
	c := &cobra.Command{
		Use:   "diff PARTITION",
		Short: "Show what two replicas of a partition do not have alike, record by record",
		Long: `Has two replicas stand still at the same offsets of the log for a moment, at most
some seconds, and shows what they do not have alike: records and tombstones by
timeline, id, version and schema, and features by subject. With -o json there is
a line for each. Fails if there is anything.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := command.Partition(args[0])
			if err != nil {
				return err
			}
			l, err := cm.Look(c.Context())
			if err != nil {
				return err
			}
			conns, err := clusters.ConnsOf(c.Context())
			if err != nil {
				return err
			}
			defer conns.Close()
			sides, err := sidesOf(l.Map, p, nodes, conns)
			if err != nil {
				return err
			}
			d, err := digest.Open(c.Context(), p, sides)
			if err != nil {
				return err
			}
			defer d.Close()
			return showDiff(c.OutOrStdout(), &output, d, sides)
		},
	}
	c.Flags().StringSliceVar(&nodes, "nodes", nil, "two nodes (default: the first two that have it ready)")
	display.Flag(c, &output)
	return c
}

// sidesOf returns the two replicas to compare, sorted by node. They are those of nodes or, if
// nodes is empty, the first two that are ready on live nodes.
func sidesOf(m *topology.Map, p millrace.Partition, nodes []string, conns *clusters.Conns) (sides [2]digest.Side, err error) {
	if len(nodes) == 0 {
		for _, id := range m.Replicas(p) {
			if ready := m.Ready(id); m.Alive(id) && ready.Has(p) && len(nodes) < 2 {
				nodes = append(nodes, string(id))
			}
		}
	}
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		return sides, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "nodes", Detail: fmt.Sprintf("two replicas of partition %d are compared, and here are %v", p, nodes),
			WayOut: fmt.Sprintf("name two of %v", m.Replicas(p)),
		}
	}
	slices.Sort(nodes)
	for i, id := range nodes {
		n, ok := m.Node(millrace.NodeID(id))
		if !ok {
			return sides, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "nodes", Detail: fmt.Sprintf("there is no node %s", id), WayOut: "millrace cluster show names them"}
		}
		sides[i].Node = n.ID
		if sides[i].Client, err = conns.Dial(n); err != nil {
			return sides, err
		}
	}
	return sides, nil
}

// deltaLine is a line of diff as JSON: one record, or the features of one subject, that the
// two replicas do not have alike.
type deltaLine struct {
	Timeline string                           `json:"timeline"` // entity and type
	ID       string                           `json:"id"`       // for features their subject
	Has      map[millrace.NodeID]*deltaRecord `json:"has"`      // null: the node lacks it
}

// deltaRecord is a record, or the features of a subject, as one node has them.
type deltaRecord struct {
	Time    string `json:"time"`
	Version int64  `json:"version"`
	Deleted bool   `json:"deleted"`
	Schema  string `json:"schema"`
	Sum     string `json:"sum"` // a hash of the whole record, in hexadecimal digits
}

func lineOf(delta digest.Delta, sides [2]digest.Side) deltaLine {
	l := deltaLine{Has: map[millrace.NodeID]*deltaRecord{}}
	for i, row := range delta.Sides {
		if l.Has[sides[i].Node] = nil; row == nil {
			continue
		}
		l.ID = row.Id
		if l.Timeline = row.Entity + "/" + row.Type; row.Type == "" {
			l.Timeline = row.Entity + " (features)"
		}
		l.Has[sides[i].Node] = &deltaRecord{
			Time: millrace.Time(row.TimeMs).String(), Version: row.Version, Deleted: row.Deleted,
			Schema: millrace.Fingerprint(row.Schema).String(), Sum: fmt.Sprintf("%016x", row.Sum),
		}
	}
	return l
}

func (r *deltaRecord) String() string {
	if r == nil {
		return "lacks it"
	}
	deleted := ""
	if r.Deleted {
		deleted = " deleted"
	}
	return fmt.Sprintf("version %d%s of %s, schema %s, sum %s", r.Version, deleted, r.Time, r.Schema, r.Sum)
}

// showDiff writes each record that the two replicas do not have alike. It returns an error if
// there is one, or if only their digests differ.
func showDiff(w io.Writer, output *display.Form, d *digest.Diff, sides [2]digest.Side) error {
	n := 0
	if !output.JSON() {
		display.Printf(w, "at %d of the records, %d of the features\n", d.At.Content, d.At.Features)
	}
	for delta, err := range d.All() {
		if err != nil {
			return err
		}
		n++
		l := lineOf(delta, sides)
		if err := output.Write(w, l, func(w io.Writer) error {
			display.Printf(w, "%s %s\n", l.Timeline, l.ID)
			for _, side := range sides {
				display.Printf(w, "  %s: %s\n", side.Node, l.Has[side.Node])
			}
			return nil
		}); err != nil {
			return err
		}
	}
	switch a, b := d.Digests[0], d.Digests[1]; {
	case n > 0:
		return fmt.Errorf("%s and %s do not have %d records alike", sides[0].Node, sides[1].Node, n)
	case a.Content != b.Content || a.Features != b.Features:
		return fmt.Errorf("%s and %s hold the same, and their digests differ: they have dropped other records", sides[0].Node, sides[1].Node)
	}
	if !output.JSON() {
		display.Printf(w, "%s and %s hold the same\n", sides[0].Node, sides[1].Node)
	}
	return nil
}
