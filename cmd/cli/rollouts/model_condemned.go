package rollouts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/relevance/experiment"
)

// condemnation says why a version of a model is condemned, and what ranks in its place.
// Brokers do not ask nodes for a condemned version.
type condemnation struct {
	of        artefacts.Version
	When      time.Time `json:"when"`
	Who       string    `json:"who"` // the node that condemned it
	Why       string    `json:"why"`
	InPlace   string    `json:"ranks_in_its_place,omitempty"` // "": the version does not serve
	Undrafted []string  `json:"undrafted,omitempty"`          // experiments in which it and a first model would fill pages in turns; the first model fills them alone now
	Unknown   string    `json:"undrafted_unknown,omitempty"`  // why Undrafted is not known
}

// condemnation returns what is shown of the condemnation x of v.
func (r *rollout) condemnation(ctx context.Context, v artefacts.Version, x artefacts.Condemnation) *condemnation {
	c := &condemnation{of: v, When: x.When.UTC(), Who: x.Who, Why: x.Why}
	if serves, _ := r.Models.Served(v.Name); serves != v {
		return c
	}
	c.InPlace = "recency"
	if before, ok := r.InPlaceOf(v); ok {
		c.InPlace = before.String()
	}
	var err error
	c.Undrafted, err = leans.ExperimentsUsing(ctx, r.Feeds.Cluster, func(s *experiment.Set) []string { return s.DraftsSecond(v.Name) })
	c.Unknown = display.FaultText(err)
	return c
}

func (c *condemnation) String() string {
	line := fmt.Sprintf("%s: condemned %s: %s", c.of, c.When.Format("2006-01-02 15:04:05Z"), c.Why)
	if c.InPlace != "" {
		line += fmt.Sprintf("; %s ranks in its place", c.InPlace)
	}
	switch {
	case c.Unknown != "":
		line += "; whether it drafts pages is not known: " + c.Unknown
	case len(c.Undrafted) > 0:
		line += fmt.Sprintf("; nothing drafts in its place in %s, whose pages are the first model's alone", strings.Join(c.Undrafted, ", "))
	}
	return line
}

// absolve releases a version that is condemned, so that it is asked for again. It also
// releases a version that nodes refuse because their processes died while they admitted
// it, so that they try it again. It does nothing for any other version.
func (r *rollout) absolve(ctx context.Context, v artefacts.Version) error {
	why, died := r.Failed.Why(v), r.diedOf(v)
	if why == "" && len(died) == 0 {
		return nil
	}
	if err := r.Failed.Release(ctx, r.Models, v, r.who); err != nil {
		return err
	}
	if why != "" {
		fmt.Fprintf(r.out, "%s is asked for again; it was condemned: %s\n", v, why)
	}
	for _, id := range died {
		fmt.Fprintf(r.out, "%s tries again to admit %s, once: it died of that before\n", id, v)
	}
	return nil
}

// diedOf returns the nodes that refuse a version because their processes died while they
// admitted it, sorted by id.
func (r *rollout) diedOf(v artefacts.Version) (nodes []millrace.NodeID) {
	for id, all := range r.heard.Current() {
		if slices.ContainsFunc(all, func(a members.Admission) bool { return a.Of(v) && a.Deadly }) {
			nodes = append(nodes, id)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// release is the command model release: absolve for a version that needs it. For any other
// version it returns an error.
func (r *rollout) release(ctx context.Context, name, version string) error {
	v, err := r.version(name, version)
	if err != nil {
		return err
	}
	if r.Failed.Why(v) == "" && len(r.diedOf(v)) == 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s is not condemned, and no index node died of it", v), WayOut: "see millrace model list"}
	}
	return r.absolve(ctx, v)
}
