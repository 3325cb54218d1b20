package operate

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// quarantining has the flags of the command that takes a replica out of service, and of the
// one that has it built anew.
type quarantining struct {
	command.Act
	node, why string // why is empty for release
}

func (q *quarantining) replicaFlags(c *cobra.Command) {
	q.Flags(c)
	display.Flag(c, &q.Output)
	c.Flags().StringVar(&q.node, "node", "", "the node whose replica is meant")
	_ = c.MarkFlagRequired("node") // never fails: the flag above exists
}

func partitionQuarantine(cm *clusters.Flags) *cobra.Command {
	q := quarantining{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "quarantine PARTITION --node NODE --why TEXT",
		Short: "Take a replica that is in doubt out of service, until it is released",
		Long: `Takes the replica of one node out of service: it answers nobody and applies
nothing, also after a restart, and what it holds stays on disk for whoever looks
into it. "partition release" has it made anew. A replica that no other node has
ready is refused, unless --override has the cluster's name.`,
		Example: `  millrace partition quarantine 17 --node node-2 --why "ticket 4711" --apply`,
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return q.run(c, args[0], q.quarantine) },
	}
	q.replicaFlags(c)
	c.Flags().StringVar(&q.why, "why", "", "for those who find it so")
	q.OverrideFlag(c, "to take out what no other node has ready")
	_ = c.MarkFlagRequired("why") // never fails: the flag above exists
	return c
}

func partitionRelease(cm *clusters.Flags) *cobra.Command {
	q := quarantining{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "release PARTITION --node NODE",
		Short: "Have a replica made anew that was quarantined",
		Long: `Has a replica made anew that "partition quarantine" took out: from the log's
beginning or, where that is gone, from a backup that is not of this replica. What
it held is deleted. What nodes quarantine by themselves mends itself, or needs
what the runbook says.`,
		Example: `  millrace partition release 17 --node node-2 --apply`,
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return q.run(c, args[0], q.release) },
	}
	q.replicaFlags(c)
	return c
}

// quarantineShown is what becomes of a replica, as JSON. Was is its state before.
type quarantineShown struct {
	Partition millrace.Partition `json:"partition"`
	Node      millrace.NodeID    `json:"node"`
	Was       string             `json:"was"`
	Detail    string             `json:"detail,omitempty"`
	Applied   bool               `json:"applied"`
}

// run shows what the command would do, and does it if --apply is given and the user agrees.
func (q *quarantining) run(c *cobra.Command, arg string, do func(*cobra.Command, nodev1.AdminServiceClient, millrace.Partition, bool) (quarantineShown, error)) error {
	p, err := command.Partition(arg)
	if err != nil {
		return err
	}
	asJSON := q.Output.JSON()
	over, err := q.Overrides()
	if err != nil {
		return err
	}
	o, err := q.Cluster.Operate(c.Context())
	if err != nil {
		return err
	}
	defer o.Close()
	n, err := o.Node(q.node)
	if err != nil {
		return err
	}
	node, err := o.Conns.Admin(n)
	if err != nil {
		return err
	}
	shown, err := do(c, node, p, false)
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	if shown.Node = n.ID; !asJSON {
		display.Printf(w, "the replica of partition %d on %s is %s %s\n", p, n.ID, shown.Was, shown.Detail)
		fmt.Fprintln(w, q.consequence())
	}
	still := func(m *topology.Map) error {
		if alone := clusters.Alone(m, n.ID); q.why == "" || !alone.Has(p) || over {
			return nil
		}
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "override", Detail: fmt.Sprintf("no other node has partition %d ready: nobody would answer for it", p),
			WayOut: "wait until another has it (millrace cluster show), or " + q.OverrideWay(),
		}
	}
	if err := still(o.Map); err != nil {
		return err
	}
	ok, err := q.Meant(c)
	if ok {
		err = q.Cluster.Alone(c.Context(), fmt.Sprintf("%s %d on %s", c.CommandPath(), p, n.ID), still, func() error {
			_, err := do(c, node, p, true)
			return err
		}, func(m *topology.Map) bool { ready := m.Ready(n.ID); return !ready.Has(p) })
	}
	if err != nil {
		return err
	}
	if shown.Applied = ok; ok && !asJSON {
		fmt.Fprintln(w, "done: see millrace cluster show")
	}
	if asJSON {
		return display.WriteJSON(w, shown)
	}
	return nil
}

// consequence says in words what becomes of the replica.
func (q *quarantining) consequence() string {
	if q.why == "" {
		return "what it holds is deleted, and it is made anew"
	}
	return "it is to answer nobody and apply nothing, also after a restart, until it is released; what it holds stays on disk"
}

func (q *quarantining) quarantine(c *cobra.Command, node nodev1.AdminServiceClient, p millrace.Partition, apply bool) (quarantineShown, error) {
	resp, err := clusters.Act(c.Context(), clusters.ActsWithin, node.QuarantinePartition, &nodev1.QuarantinePartitionRequest{Partition: int32(p), Why: q.why, Apply: apply})
	return quarantineShown{Partition: p, Was: resp.GetAt().GetState()}, err
}

func (q *quarantining) release(c *cobra.Command, node nodev1.AdminServiceClient, p millrace.Partition, apply bool) (quarantineShown, error) {
	resp, err := clusters.Act(c.Context(), clusters.ActsWithin, node.ReleasePartition, &nodev1.ReleasePartitionRequest{Partition: int32(p), Apply: apply})
	return quarantineShown{Partition: p, Was: resp.GetAt().GetState(), Detail: resp.GetDetail()}, err
}
