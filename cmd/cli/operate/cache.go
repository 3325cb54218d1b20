package operate

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// Cache returns the command cache, which has index nodes drop timelines from their caches.
func Cache() *cobra.Command {
	c := &cobra.Command{
		Use:     "cache",
		Short:   "Drop what index nodes have in their caches",
		Example: `  millrace cache drop --entity member:42 --apply`,
	}
	cm := clusters.FlagsOf(c.PersistentFlags())
	c.AddCommand(cacheDrop(cm))
	return c
}

// dropping says what caches are to forget.
type dropping struct {
	command.Act
	entity, node string
	partition    string
	all          bool
}

func cacheDrop(cm *clusters.Flags) *cobra.Command {
	d := dropping{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "drop --entity ENTITY | --partition P | --all",
		Short: "Have nodes forget what they cache of an entity, a partition or everything",
		Long: `Has nodes forget what they cache of an entity or a partition, on all nodes that
host it or on the one of --node. What is asked for next is read from the store:
answers are the same, and slower for a while. --all is of everything a node has,
so it wants a --node, or the cluster's name as --override for all nodes at once.`,
		Example: `  millrace cache drop --entity member:42
  millrace cache drop --partition 17 --node node-2 --apply --yes
  millrace cache drop --all --node node-2 --apply`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return d.run(c) },
	}
	f := c.Flags()
	f.StringVar(&d.entity, "entity", "", "what is cached of this entity")
	f.StringVar(&d.partition, "partition", "", "what is cached of this partition")
	f.BoolVar(&d.all, "all", false, "everything")
	f.StringVar(&d.node, "node", "", "on this node alone (default: on all that host it)")
	d.OverrideFlag(c, "to drop everything on all nodes at once")
	d.Flags(c)
	display.Flag(c, &d.Output)
	return c
}

// request reads the flags. The function hosts reports whether a node hosts what is to be
// dropped; with --all every node does.
func (d *dropping) request() (req *nodev1.DropCacheRequest, hosts func(*clusters.Operating, topology.Node) bool, err error) {
	refuse := func(field, detail, way string) (*nodev1.DropCacheRequest, func(*clusters.Operating, topology.Node) bool, error) {
		return nil, nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: way}
	}
	named := 0
	for _, is := range []bool{d.entity != "", d.partition != "", d.all} {
		if is {
			named++
		}
	}
	of := func(p millrace.Partition) func(*clusters.Operating, topology.Node) bool {
		return func(o *clusters.Operating, n topology.Node) bool {
			hosted := o.Map.Hosted(n.ID)
			return hosted.Has(p)
		}
	}
	switch {
	case named != 1:
		return refuse("entity", "what is to be dropped is one thing", "say --entity, --partition or --all")
	case d.entity != "":
		return &nodev1.DropCacheRequest{Entity: d.entity}, of(partition.Of(millrace.Entity(d.entity))), nil
	case d.partition != "":
		p, err := command.Partition(d.partition)
		i := int32(p)
		return &nodev1.DropCacheRequest{Partition: &i}, of(p), err
	}
	switch over, err := d.Overrides(); {
	case err != nil:
		return nil, nil, err
	case d.node == "" && !over:
		return refuse("all", "every node would read everything from its disk at once, which questions wait for", "name one --node after the other, or "+d.OverrideWay())
	}
	return &nodev1.DropCacheRequest{All: true}, func(*clusters.Operating, topology.Node) bool { return true }, nil
}

// droppedShown counts what a node would drop from its cache or, if Applied, has dropped.
type droppedShown struct {
	Node      millrace.NodeID `json:"node"`
	Timelines int64           `json:"timelines"`
	Empty     int64           `json:"empty"`    // timelines that are cached as having no records
	Features  int64           `json:"features"` // subjects whose features are cached
	Applied   bool            `json:"applied"`
}

func (d *dropping) run(c *cobra.Command) error {
	req, hosts, err := d.request()
	if err != nil {
		return err
	}
	asJSON := d.Output.JSON()
	o, err := d.Cluster.Operate(c.Context())
	if err != nil {
		return err
	}
	defer o.Close()
	nodes, err := o.Concerned(d.node, hosts)
	if err != nil {
		return err
	}
	do := func() (all []droppedShown, err error) {
		for _, n := range nodes {
			node, err := o.Conns.Admin(n)
			if err != nil {
				return all, err
			}
			resp, err := clusters.Act(c.Context(), clusters.ActsWithin, node.DropCache, req)
			if err != nil {
				return all, fmt.Errorf("%s: %w", n.ID, err)
			}
			all = append(all, droppedShown{n.ID, resp.Timelines, resp.Empty, resp.Features, req.Apply})
		}
		return all, nil
	}
	all, err := do()
	if err != nil {
		return err
	}
	if !asJSON {
		writeDropped(c.OutOrStdout(), all)
	}
	ok, err := d.Meant(c)
	if err != nil {
		return err
	}
	if ok {
		req.Apply = true
		if all, err = do(); err != nil {
			return err
		}
		if !asJSON {
			display.Printf(c.OutOrStdout(), "dropped on %d nodes\n", len(all))
		}
	}
	if asJSON {
		return display.WriteJSON(c.OutOrStdout(), display.List(all))
	}
	return nil
}

func writeDropped(w io.Writer, all []droppedShown) {
	t := display.NewTable(w)
	t.Printf("NODE\tTIMELINES\tKNOWN TO BE EMPTY\tFEATURES\n")
	for _, n := range all {
		t.Printf("%s\t%d\t%d\t%d\n", n.Node, n.Timelines, n.Empty, n.Features)
	}
	t.Flush()
}
