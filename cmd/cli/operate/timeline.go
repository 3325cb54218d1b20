package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/partition"
)

// Timeline returns the command timeline, which shows what nodes and the log have of an entity.
func Timeline() *cobra.Command {
	c := &cobra.Command{
		Use:   "timeline",
		Short: "Show what index nodes have of an entity, and what the log has",
		Example: `  millrace timeline get member:42 --type post
  millrace timeline history member:42 --id post:17`,
	}
	cm := clusters.FlagsOf(c.PersistentFlags())
	c.AddCommand(timelineGet(cm), timelineHistory(cm))
	return c
}

// timelineFlags are the flags of timeline get and timeline history.
type timelineFlags struct {
	cm               *clusters.Flags
	kind, node, id   string
	in, since, until string
	output           display.Form
	limit            int32
}

// window returns the times of --since and --until; 0 for one that is not given.
func (t *timelineFlags) window(now time.Time) (from, to millrace.Time, err error) {
	if t.since != "" {
		if from, err = command.Since("since", t.since, now); err != nil {
			return 0, 0, err
		}
	}
	if t.until != "" {
		if to, err = command.Until("until", t.until, now); err != nil {
			return 0, 0, err
		}
		if from >= to {
			return 0, 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "until", Detail: fmt.Sprintf("there is no time from %s to %s", from, to), WayOut: "let --until come after --since"}
		}
	}
	return from, to, nil
}

func timelineGet(cm *clusters.Flags) *cobra.Command {
	t := timelineFlags{cm: cm}
	c := &cobra.Command{
		Use:   "get ENTITY",
		Short: "Show the live records of an entity in a node's store and cache, newest first",
		Long: `Shows the live records that a node has of an entity, newest first: those of its
store, of its cache, or of both at one moment, which should agree as far back as
the cache is complete. It asks the first node that has the entity's partition
ready, or the one that --node names; comparing nodes is "millrace partition diff".
With -o json there is a line of JSON for each record.

A record that was just dropped for its age may be in the cache for a while; no
answer has it.`,
		Example: `  millrace timeline get member:42 --type post --since 24h
  millrace timeline get member:42 --in cache --node node-2 -o json | jq .record`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return t.get(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&t.kind, "type", "", "the content type (default: all)")
	f.StringVar(&t.in, "in", "both", "where to look: store, cache or both")
	f.StringVar(&t.node, "node", "", "the node to ask (default: the first that has it ready)")
	f.StringVar(&t.since, "since", "", "only records whose time is from then on: 90m ago, or a time as of RFC 3339")
	f.StringVar(&t.until, "until", "", "only records from before then, likewise")
	f.Int32Var(&t.limit, "limit", 100, "at most so many of each type, the newest")
	display.Flag(c, &t.output)
	return c
}

func (t *timelineFlags) get(c *cobra.Command, entity string) error {
	req := &nodev1.ReadTimelineRequest{Entity: entity, Type: t.kind, Limit: t.limit, Store: t.in != "cache", Cache: t.in != "store"}
	if t.in != "store" && t.in != "cache" && t.in != "both" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "in", Detail: fmt.Sprintf("%.40q is no place of records", t.in), WayOut: "say store, cache or both"}
	}
	if t.limit < 1 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "limit", Detail: fmt.Sprintf("%d records are none", t.limit), WayOut: "give a positive number"}
	}
	from, to, err := t.window(time.Now())
	if err != nil {
		return err
	}
	req.FromMs, req.ToMs = int64(from), int64(to)
	o, err := t.cm.Operate(c.Context())
	if err != nil {
		return err
	}
	defer o.Close()
	n, err := o.Replica(partition.Of(millrace.Entity(entity)), t.node)
	if err != nil {
		return err
	}
	node, err := o.Conns.Admin(n)
	if err != nil {
		return err
	}
	show := gotten{w: c.OutOrStdout(), json: t.output.JSON(), node: n.ID, req: req}
	stream, err := node.ReadTimeline(c.Context(), req)
	if err := clusters.Receive(stream, err, show.take); err != nil {
		return err
	}
	return show.end()
}

// gotten shows a timeline while its parts arrive from the node.
type gotten struct {
	w     io.Writer
	json  bool
	node  millrace.NodeID
	req   *nodev1.ReadTimelineRequest
	table *display.Table // nil with JSON
	n     int            // records that were shown
	notes []string       // what the cache has, and what is left out, for under the table
}

// gottenLine is a record that timeline get found.
type gottenLine struct {
	recordLine
	Node    millrace.NodeID `json:"node"`
	InStore bool            `json:"in_store"`
	InCache bool            `json:"in_cache"`
}

// take shows the next part of the timeline. The first part has m.At, and no table yet.
func (g *gotten) take(m *nodev1.ReadTimelineResponse) error {
	if at := m.At; at != nil && !g.json {
		display.Printf(g.w, "%s: partition %d is %s on %s, at %d of its log\n", g.req.Entity, at.Partition, at.State, g.node, at.Content)
		g.table = display.NewTable(g.w)
	}
	for _, r := range m.Records {
		l := gottenLine{recordLineOf(g.req.Entity, r), g.node, r.InStore, r.InCache}
		if g.n++; g.json {
			if err := display.WriteJSON(g.w, l); err != nil {
				return err
			}
			continue
		}
		if g.n == 1 {
			g.table.Printf("TIME\tTYPE\tID\tVERSION\tIN\tRECORD\n")
		}
		g.table.Printf("%s\t%s\t%s\t%d\t%s\t%s\n", l.Time, l.Type, display.Printable(l.ID), l.Version, inOf(r), display.Printable(string(l.Record)))
	}
	if c := m.Cached; c != nil {
		g.note(c)
	}
	return nil
}

func inOf(r *nodev1.TimelineRecord) string {
	switch {
	case r.InStore && r.InCache:
		return "both"
	case r.InStore:
		return "store"
	}
	return "cache"
}

// note keeps for the end what the cache has of the timeline of one content type.
func (g *gotten) note(c *nodev1.CachedTimeline) {
	switch {
	case !g.req.Cache:
	case !c.Cached:
		g.notes = append(g.notes, fmt.Sprintf("%s: not in the cache, until it is asked for", c.Type))
	case millrace.Time(c.FromMs) > millrace.MinTime:
		g.notes = append(g.notes, fmt.Sprintf("%s: the cache has what is from %s on", c.Type, millrace.Time(c.FromMs)))
	default:
		g.notes = append(g.notes, c.Type+": the cache has all of it")
	}
	if c.More {
		g.notes = append(g.notes, fmt.Sprintf("%s: there is more; --limit and --until show it", c.Type))
	}
}

func (g *gotten) end() error {
	if g.table == nil {
		return nil
	}
	if g.n == 0 {
		g.table.Printf("no records\n")
	}
	if err := g.table.Flush(); err != nil {
		return err
	}
	for _, n := range g.notes {
		display.Printf(g.w, "%s\n", n)
	}
	return nil
}

func timelineHistory(cm *clusters.Flags) *cobra.Command {
	t := timelineFlags{cm: cm}
	c := &cobra.Command{
		Use:   "history ENTITY",
		Short: "Show what the log has of an entity: every version and every tombstone, oldest first",
		Long: `Reads the entity's partition of the log on a node and shows everything that came
for the entity, oldest first: versions that lost, tombstones, and what index
nodes refuse. Where each was read from is its place in the content topic. It reads
all of the partition, or what was logged since --since.`,
		Example: `  millrace timeline history member:42 --id post:17
  millrace timeline history member:42 --type post --since 2h -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return t.history(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&t.kind, "type", "", "the content type (default: all)")
	f.StringVar(&t.id, "id", "", "only the record of this id")
	f.StringVar(&t.node, "node", "", "the node to ask (default: the first that has it ready)")
	f.StringVar(&t.since, "since", "", "only what was logged from then on: 90m ago, or a time as of RFC 3339")
	display.Flag(c, &t.output)
	return c
}

func (t *timelineFlags) history(c *cobra.Command, entity string) error {
	since, _, err := t.window(time.Now())
	if err != nil {
		return err
	}
	o, err := t.cm.Operate(c.Context())
	if err != nil {
		return err
	}
	defer o.Close()
	n, err := o.Replica(partition.Of(millrace.Entity(entity)), t.node)
	if err != nil {
		return err
	}
	node, err := o.Conns.Admin(n)
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	table := display.NewTable(w)
	seen := 0
	stream, err := node.ReadHistory(c.Context(), &nodev1.ReadHistoryRequest{Entity: entity, Type: t.kind, Id: t.id, SinceMs: int64(since)})
	return clusters.Receive(stream, err, func(m *nodev1.ReadHistoryResponse) error {
		for _, e := range m.Entries {
			l := historyLine{recordLineOf(entity, e.Record), e.Offset, millrace.Time(e.LoggedMs).String(), e.Source, e.Refused}
			if seen++; t.output.JSON() {
				if err := display.WriteJSON(w, l); err != nil {
					return err
				}
				continue
			}
			if seen == 1 {
				table.Printf("OFFSET\tLOGGED\tFROM\tTYPE\tID\tVERSION\tRECORD\n")
			}
			table.Printf("%d\t%s\t%s\t%s\t%s\t%d\t%s\n", l.Offset, l.Logged, display.Printable(l.Source), l.Type, display.Printable(l.ID), l.Version, l.says())
		}
		if m.End == 0 && m.First == 0 && len(m.Entries) > 0 || t.output.JSON() {
			return nil
		}
		if seen == 0 {
			table.Printf("nothing\n")
		}
		if err := table.Flush(); err != nil {
			return err
		}
		display.Printf(w, "partition %d of the log was read from %d to %d\n", partition.Of(millrace.Entity(entity)), m.First, m.End)
		return nil
	})
}

// historyLine is a record of the log.
type historyLine struct {
	recordLine
	Offset  int64  `json:"offset"`            // in the entity's partition of the log
	Logged  string `json:"logged"`            // when it was written there
	Source  string `json:"source"`            // its place in the content topic that it was read from
	Refused string `json:"refused,omitempty"` // why index nodes do not apply it
}

func (l *historyLine) says() string {
	switch {
	case l.Refused != "":
		return "REFUSED: " + display.Printable(l.Refused)
	case l.Deleted:
		return "DELETED " + display.Printable(string(l.Record))
	}
	return display.Printable(string(l.Record))
}
