package rollouts

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
)

// listedModel is a version of a model as model list shows it.
type listedModel struct {
	Name      string        `json:"name"`
	Version   string        `json:"version"`
	BuiltIn   bool          `json:"built_in"`          // every node has it
	Serves    bool          `json:"serves"`            // requests and feeds that name the model are ranked by it
	Covered   bool          `json:"covered,omitempty"` // a built-in model has its name, and ranks in its place
	Nodes     []nodeAnswer  `json:"nodes"`             // what each index node says of it; empty for a built-in model
	Checksum  string        `json:"checksum,omitempty"`
	Condemned *condemnation `json:"condemned,omitempty"`     // nil: it is not condemned
	Bare      bool          `json:"bytes_missing,omitempty"` // etcd has lost its bytes, so a node that starts without them cannot load it
}

// list prints the built-in models, and every version that was pushed, with the nodes that
// have admitted it.
func (r *rollout) list(ctx context.Context, output *display.Form) error {
	shown := []listedModel{}
	builtin := relevance.Builtin()
	for _, name := range builtin.Names() {
		m, err := builtin.Get(name)
		if err != nil {
			return err
		}
		shown = append(shown, listedModel{Name: name, Version: m.Version(), BuiltIn: true, Serves: true, Nodes: []nodeAnswer{}})
	}
	bare, err := r.Models.Bare(ctx)
	if err != nil {
		return err
	}
	all, serving := r.Models.All(), r.Models.Serving()
	condemned := r.Failed.Current()
	for _, name := range r.Models.Names() {
		for _, v := range all[name] {
			m := listedModel{Name: name, Version: v.Version, Serves: serving[name] == v && relevance.CheckName(name) == nil, Covered: relevance.CheckName(name) != nil, Nodes: display.List(r.answers(v)), Checksum: v.Sum, Bare: slices.Contains(bare, v)}
			if x, is := condemned[v]; is {
				m.Condemned = r.condemnation(ctx, v, x)
			}
			shown = append(shown, m)
		}
	}
	return output.Write(r.out, shown, func(w io.Writer) error { return writeModels(w, shown) })
}

func writeModels(w io.Writer, all []listedModel) error {
	t := display.NewTable(w)
	t.Printf("NAME\tVERSION\tSTATE\tNODES\tCHECKSUM\n")
	var refusals []string
	for _, m := range all {
		if m.BuiltIn {
			t.Printf("%s\t%s\tbuilt in\tall\t-\n", m.Name, m.Version)
			continue
		}
		state := "published"
		if m.Serves {
			state = "serves"
		}
		if m.Covered {
			state = "never asked for"
			refusals = append(refusals, fmt.Sprintf("%s %s: somebody wrote it past the commands under the name of a built-in model, which answers; millrace model drop %[1]s %[2]s --apply removes it", m.Name, m.Version))
		}
		if m.Condemned != nil {
			state += ", condemned"
			refusals = append(refusals, m.Condemned.String())
		}
		if m.Bare {
			refusals = append(refusals, leans.BareLine("model", artefacts.Version{Name: m.Name, Version: m.Version}, m.Serves))
		}
		admitted := 0
		for _, a := range m.Nodes {
			if a.State == stateAdmitted {
				admitted++
			}
			if (a.State != stateAdmitted || a.Unkept != "") && !m.Covered {
				refusals = append(refusals, fmt.Sprintf("%s %s: %s %s", m.Name, m.Version, a.Node, a))
			}
		}
		t.Printf("%s\t%s\t%s\t%d of %d\t%.12s\n", m.Name, m.Version, state, admitted, len(m.Nodes), m.Checksum)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range refusals {
		fmt.Fprintln(w, line)
	}
	return nil
}

func (r *rollout) history(ctx context.Context, output *display.Form, name string) error {
	events, err := r.Models.History(ctx, name)
	if err != nil {
		return err
	}
	return output.Write(r.out, leans.EventsShown(events), func(w io.Writer) error {
		t := display.NewTable(w)
		t.Printf("WHEN\tWHAT\tVERSION\tCHECKSUM\tWHO\n")
		for _, e := range events {
			t.Printf("%s\t%s\t%s\t%.12s\t%s\n", e.When.UTC().Format(time.RFC3339), e.What, e.Version, e.Sum, e.Who)
		}
		return t.Flush()
	})
}

// nodeAnswer says whether one node has admitted a version: loaded and checked it, so that
// it can rank by it.
type nodeAnswer struct {
	Node  millrace.NodeID `json:"node"`
	State string          `json:"state"`         // stateAdmitted, stateUnheard or stateRefused
	Why   string          `json:"why,omitempty"` // why the node refuses it; "" if it does not
	// Unkept is why an admitted version is not on the node's disk: if the node restarts
	// while etcd is away, it loses the version. "" if it is on the disk, or not admitted.
	Unkept string `json:"unkept,omitempty"`
}

const (
	stateAdmitted = "admitted"
	stateUnheard  = "not heard" // the node has said nothing of it
	stateRefused  = "refused"
)

// same reports whether another node says the same of the version.
func (a nodeAnswer) same(other nodeAnswer) bool { return a.String() == other.String() }

func (a nodeAnswer) String() string {
	if a.Unkept != "" {
		return a.State + ", but not kept on its disk, so that a restart while etcd is away loses it: " + a.Unkept
	}
	if a.Why != "" {
		return a.State + ": " + a.Why
	}
	return a.State
}

// answers returns what each node that the assignment gives partitions says of a version,
// in the order of the nodes' ids.
func (r *rollout) answers(v artefacts.Version) (all []nodeAnswer) {
	heard := r.heard.Current()
	assignment := r.maps.Current().Assignment()
	nodes := assignment.Nodes()
	slices.Sort(nodes)
	for _, id := range nodes {
		a := nodeAnswer{Node: id, State: stateUnheard}
		for _, x := range heard[id] {
			switch {
			case !x.Of(v):
			case x.Refused != "":
				a.State, a.Why = stateRefused, x.Refused
			default:
				a.State, a.Why, a.Unkept = stateAdmitted, "", x.Unkept
			}
		}
		all = append(all, a)
	}
	return all
}
