package feeds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// Checks is what a definition is held against before it is stored: what a
// request that names the feed would meet.
type Checks struct {
	Models []string                        // that serve
	Nodes  map[millrace.NodeID]fanout.Node // that are alive
	Absent bool                            // another has partitions, and is not alive
}

// Defined is what became of a definition.
type Defined struct {
	Feed    Feed
	Version artefacts.Version
	Fresh   bool              // it has been stored now, and was not there before
	Covers  bool              // a built-in feed of the same name, which serves no longer
	Closes  []string          // the built-in feeds that serve nobody while it is defined, though it does not cover them
	Unheard []millrace.NodeID // the index nodes that could not be asked
}

// Define checks a definition in YAML in full, stores it as the next version
// of its feed and lets it serve. Brokers answer by it within a second. One with
// a fault changes nothing.
func Define(ctx context.Context, store *artefacts.Kind, checks Checks, file []byte, who string) (d Defined, err error) {
	if d.Feed, err = Parse(file); err != nil {
		return d, err
	}
	if d.Unheard, err = Check(ctx, d.Feed, checks); err != nil {
		return d, err
	}
	d.Covers = slices.ContainsFunc(BuiltIn(), func(f Feed) bool { return f.Name == d.Feed.Name })
	d.Closes = closes(d.Feed, store.Serving())
	if d.Version, d.Fresh, err = store.Publish(ctx, d.Feed.Name, "", file, who); err != nil {
		return d, err
	}
	return d, store.Serve(ctx, d.Version, nil, who)
}

// closes returns the built-in feeds that a feed forbids to every caller, of
// those that no definition covers.
func closes(f Feed, defined map[string]artefacts.Version) (names []string) {
	if !f.Forbids().Recent {
		return nil
	}
	for _, built := range BuiltIn() {
		if _, covered := defined[built.Name]; !covered && built.Name != f.Name {
			names = append(names, built.Name)
		}
	}
	return names
}

// Check reports every reason why requests could not be answered by a
// definition: models that do not serve, and a filter that index nodes refuse
// by their schemas. It returns the nodes that could not be asked.
func Check(ctx context.Context, f Feed, checks Checks) (unheard []millrace.NodeID, err error) {
	var errs []error
	for i, m := range append([]string{f.Model}, f.Shadow...) {
		field := "model"
		if i > 0 {
			field = fmt.Sprintf("shadow[%d]", i-1)
		}
		if !slices.Contains(checks.Models, m) {
			errs = append(errs, &millrace.Error{
				Reason: millrace.ReasonUnknown, Field: field, Detail: fmt.Sprintf("no model %q serves", m),
				WayOut: "push it first, or name one of " + strings.Join(checks.Models, ", "),
			})
		}
	}
	if f.Filter != "" {
		unheard, err = checks.filterFits(ctx, f.Filter)
	}
	return unheard, errors.Join(append(errs, err)...)
}

// Unseen says which of some types no record in the cluster has, which is no fault,
// since records of one may yet come; and which types records have. Where a node
// cannot be asked, which may know them, it says none.
func (c *Checks) Unseen(ctx context.Context, types []millrace.ContentType) (unseen []string, known string) {
	if c.Absent {
		return nil, ""
	}
	for part := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(types))), limits.MaxTypes) {
		asked := make([]string, len(part))
		for i, t := range part {
			asked[i] = string(t)
		}
		ids, of := slices.Collect(maps.Keys(c.Nodes)), fanout.UnseenOf(asked)
		answers := make([]*nodev1.QueryResponse, len(ids))
		var all errgroup.Group
		all.SetLimit(32)
		for i, id := range ids {
			all.Go(func() (err error) {
				answers[i], err = fanout.TryOn(ctx, c.Nodes[id], &nodev1.QueryRequest{Types: asked, Model: "recency"})
				return err
			})
		}
		if all.Wait() != nil {
			return nil, ""
		}
		for _, resp := range answers {
			of.Hear(resp)
		}
		if none := of.Types(); len(none) > 0 {
			unseen, known = append(unseen, none...), of.Known()
		}
	}
	return unseen, known
}

// filterFits asks every node. One that refuses the filter decides; and somebody
// has to have taken it.
func (c *Checks) filterFits(ctx context.Context, filter string) (unheard []millrace.NodeID, err error) {
	ids := slices.Sorted(maps.Keys(c.Nodes))
	answers := make([]error, len(ids))
	var all errgroup.Group
	all.SetLimit(32)
	for i, id := range ids {
		all.Go(func() error {
			_, answers[i] = fanout.TryOn(ctx, c.Nodes[id], &nodev1.QueryRequest{Filter: filter, Model: "recency", Types: []string{"any"}})
			return nil
		})
	}
	_ = all.Wait() // each has its own answer
	for i, id := range ids {
		switch refused := fanout.RefusalOf(answers[i]); {
		case refused != nil:
			return nil, fmt.Errorf("index node %s: %w", id, refused)
		case answers[i] != nil:
			unheard = append(unheard, id)
		}
	}
	if len(unheard) == len(ids) {
		return unheard, &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "filter", Detail: fmt.Sprintf("none of %d index nodes could be asked whether it fits their schemas", len(ids)),
			WayOut: "try again when an index node is alive and can be reached from here",
		}
	}
	return unheard, nil
}
