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

// Checks is what a definition is checked against before it is stored: the models and
// index nodes that a request for the feed would be answered by.
type Checks struct {
	Models []string                        // the models that serve
	Nodes  map[millrace.NodeID]fanout.Node // the index nodes that are alive
	Absent bool                            // some node that is not alive has partitions assigned
}

// Defined is what became of a definition.
type Defined struct {
	Feed    Feed
	Version artefacts.Version
	Fresh   bool              // it has been stored now, and was not there before
	Covers  bool              // it replaces a built-in feed of the same name
	Closes  []string          // built-in feeds of other names that are refused while it is defined
	Unheard []millrace.NodeID // the index nodes that could not be asked
}

// Define checks a definition in YAML in full, stores it as the next version
// of its feed and lets it serve. who is the person or program that defines it, for the
// history. Brokers answer by it within a second. A definition with a fault changes nothing.
// If only the last step fails, the version is stored, d names it, and it does not serve.
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

// closes returns the names of the built-in feeds that are refused to every caller while f
// is defined. Built-in feeds that a definition replaces are not among them.
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

// Check returns an error with every reason why requests could not be answered by a
// definition: models that do not serve, and a filter that index nodes refuse
// by their schemas. unheard are the nodes that could not be asked about the filter.
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

// Unseen returns those of some types that no record in the cluster has, and a text that
// names types that records have. An unseen type is no fault, since records of it may still
// come. If a node cannot be asked, Unseen returns nothing, since that node may have some.
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

// filterFits asks every node about a filter, 32 of them at a time. It returns an error if any node refuses the
// filter, or if none could be asked.
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
