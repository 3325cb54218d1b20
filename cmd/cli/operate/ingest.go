package operate

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Ingest returns the command ingest, which has a node stop applying the log for a while.
func Ingest() *cobra.Command {
	c := &cobra.Command{
		Use:   "ingest",
		Short: "Have a node apply nothing for a time",
		Example: `  millrace ingest pause node-2 --for 10m --apply
  millrace ingest resume node-2 --apply`,
	}
	cm := clusters.FlagsOf(c.PersistentFlags())
	c.AddCommand(ingestPause(cm), ingestResume(cm))
	return c
}

// pausing has the flags of the commands that begin a pause and that end one.
type pausing struct {
	command.Act
	lasts time.Duration // how long the pause is to last; 0 for resume
}

// pauseShown is what becomes of a node's ingest, as JSON.
type pauseShown struct {
	Node       millrace.NodeID `json:"node"`
	Partitions int             `json:"partitions"`
	Alone      []int           `json:"alone,omitempty"`            // partitions that no other node can be relied on to serve; see clusters.Alone
	Was        string          `json:"was_paused_until,omitempty"` // empty: it was not paused
	Until      string          `json:"paused_until,omitempty"`
	Applied    bool            `json:"applied"`
}

func ingestPause(cm *clusters.Flags) *cobra.Command {
	p := pausing{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:   "pause NODE --for DURATION",
		Short: "Have a node apply nothing that the log brings, for a time",
		Long: `Has a node apply nothing that the log brings, as while something that floods it is
looked into. It goes on by itself when the time is over, when it is resumed, and
when it is started anew. It answers on: after some seconds its partitions that get
records count as old, and brokers ask other replicas. So partitions that no other
node has ready are refused, or only nodes that are paused, unless --override has
the cluster's name.`,
		Example: `  millrace ingest pause node-2 --for 10m
  millrace ingest pause node-2 --for 10m --apply --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return p.pause(c, args[0]) },
	}
	p.Flags(c)
	display.Flag(c, &p.Output)
	c.Flags().DurationVar(&p.lasts, "for", 0, "for how long, such as 10m; 24h at most")
	p.OverrideFlag(c, "to pause what no other node has ready")
	return c
}

func ingestResume(cm *clusters.Flags) *cobra.Command {
	p := pausing{Act: command.Act{Cluster: cm}}
	c := &cobra.Command{
		Use:     "resume NODE",
		Short:   "Have a node go on before its pause is over",
		Example: `  millrace ingest resume node-2 --apply --yes`,
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return p.resume(c, args[0]) },
	}
	p.Flags(c)
	display.Flag(c, &p.Output)
	return c
}

// open opens the cluster and a connection to the node that is called name. The caller must
// close o, unless there is an error.
func (p *pausing) open(c *cobra.Command, name string) (o *clusters.Operating, n topology.Node, node nodev1.AdminServiceClient, err error) {
	if o, err = p.Cluster.Operate(c.Context()); err != nil {
		return nil, n, nil, err
	}
	if n, err = o.Node(name); err == nil {
		node, err = o.Conns.Admin(n)
	}
	if err != nil {
		o.Close()
	}
	return o, n, node, err
}

// until returns a time, in milliseconds since 1970, as text; "" for 0.
func until(ms int64) string {
	if ms == 0 {
		return ""
	}
	return millrace.Time(ms).String()
}

func (p *pausing) pause(c *cobra.Command, name string) error {
	asJSON := p.Output.JSON()
	over, err := p.Overrides()
	if err != nil {
		return err
	}
	if p.lasts < time.Millisecond {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "for", Detail: "nothing says how long the pause lasts", WayOut: "say it, such as --for 10m; it ends by itself then"}
	}
	o, n, node, err := p.open(c, name)
	if err != nil {
		return err
	}
	defer o.Close()
	req := &nodev1.PauseIngestRequest{ForMs: p.lasts.Milliseconds()}
	resp, err := clusters.Act(c.Context(), clusters.ActsWithin, node.PauseIngest, req)
	if err != nil {
		return err
	}
	shown := pauseShown{Node: n.ID, Partitions: int(resp.Partitions), Alone: display.Numbers(clusters.Alone(o.Map, n.ID)), Was: until(resp.WasUntilMs), Until: until(resp.UntilMs)}
	if !asJSON {
		display.Printf(c.OutOrStdout(), "%s would apply nothing until %s; it answers for %d partitions\n", n.ID, shown.Until, shown.Partitions)
		if shown.Was != "" {
			display.Printf(c.OutOrStdout(), "it is paused until %s\n", shown.Was)
		}
	}
	still := func(m *topology.Map) error {
		alone := display.Numbers(clusters.Alone(m, n.ID))
		if len(alone) == 0 || over {
			return nil
		}
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "override", Detail: fmt.Sprintf("no other node has %d of its partitions ready, such as %d, and answers of them would grow old", len(alone), alone[0]),
			WayOut: "wait until another has them (millrace cluster show), or " + p.OverrideWay(),
		}
	}
	if err := still(o.Map); err != nil {
		return err
	}
	return p.finish(c, &shown, asJSON, func() error {
		req.Apply = true
		var resp *nodev1.PauseIngestResponse
		err := p.Cluster.Alone(c.Context(), "pause the ingest of "+string(n.ID), still, func() (err error) {
			resp, err = clusters.Act(c.Context(), clusters.ActsWithin, node.PauseIngest, req)
			return err
		}, func(m *topology.Map) bool { return m.Paused(n.ID) })
		shown.Until = until(resp.GetUntilMs())
		if err == nil && !asJSON {
			display.Printf(c.OutOrStdout(), "%s applies nothing until %s\n", n.ID, shown.Until)
		}
		return err
	})
}

func (p *pausing) resume(c *cobra.Command, name string) error {
	asJSON := p.Output.JSON()
	o, n, node, err := p.open(c, name)
	if err != nil {
		return err
	}
	defer o.Close()
	resp, err := clusters.Act(c.Context(), clusters.ActsWithin, node.ResumeIngest, &nodev1.ResumeIngestRequest{})
	if err != nil {
		return err
	}
	shown := pauseShown{Node: n.ID, Was: until(resp.WasUntilMs)}
	if !asJSON {
		was := "not paused"
		if shown.Was != "" {
			was = "paused until " + shown.Was
		}
		display.Printf(c.OutOrStdout(), "%s is %s\n", n.ID, was)
	}
	return p.finish(c, &shown, asJSON, func() error {
		_, err := clusters.Act(c.Context(), clusters.ActsWithin, node.ResumeIngest, &nodev1.ResumeIngestRequest{Apply: true})
		if err == nil && !asJSON {
			display.Printf(c.OutOrStdout(), "%s goes on\n", n.ID)
		}
		return err
	})
}

// finish asks the user, if need be, calls do if --apply is given and the user agrees, and
// writes the JSON that was asked for.
func (p *pausing) finish(c *cobra.Command, shown *pauseShown, asJSON bool, do func() error) error {
	ok, err := p.Meant(c)
	if ok {
		err = do()
		shown.Applied = true
	}
	if err == nil && asJSON {
		err = display.WriteJSON(c.OutOrStdout(), shown)
	}
	return err
}
