package rollouts

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/line"
	"github.com/millrace/millrace/relevance"
)

// ModelFaults returns how many pushed models serve, and lines about the faults of models.
// nowhere has a line for each model whose serving version no index node has. lines has the
// rest: versions that some nodes lack, that are condemned, whose bytes etcd has lost, or
// that cannot be read.
func ModelFaults(ctx context.Context, cl *cluster.Client) (serve int, nowhere, lines []string, err error) {
	r, err := openRollout(ctx, cl, io.Discard)
	if err != nil {
		return 0, nil, nil, err
	}
	condemned, serving := r.Failed.Current(), r.Models.Serving()
	bad := false // a version is at fault, and not only a node
	for _, name := range r.Models.Names() {
		v, serves := serving[name]
		switch {
		case !serves:
		case relevance.CheckName(name) != nil:
			lines = append(lines, fmt.Sprintf("%s stands under the name of a built-in model, which answers; millrace model drop %s %s --apply removes it", v, v.Name, v.Version))
		default:
			if lack := lacking(r.answers(v)); lack.all {
				nowhere = append(nowhere, fmt.Sprintf("%s serves and is on no index node: %s", v, lack.first))
			} else if lack.first != "" {
				bad = bad || lack.refused
				lines = append(lines, fmt.Sprintf("%s serves: %s%s", v, lack.first, lack.wayOut))
			}
		}
		if x, is := condemned[serving[name]]; is {
			bad = true
			lines = append(lines, r.condemnation(ctx, serving[name], x).String())
		}
	}
	if bad {
		lines = append(lines, "push a version that is mended, roll back, or let it be asked for again with millrace model release")
	}
	bare, err := leans.BareLines(ctx, r.Models, "model") // about versions whose bytes etcd has lost
	if err != nil {
		return 0, nil, nil, err
	}
	lines = append(lines, bare...)
	odd, err := leans.Unread(r.Models.Fault(), "millrace model drop NAME --apply") // about what cannot be read
	if len(nowhere) == 0 {
		lines = append(lines, odd...)
	}
	return len(serving), nowhere, lines, err
}

// FeedFaults returns how many feeds there are, built-in ones included, and lines about
// their faults. refused has a line for each feed whose requests are all refused, since its
// model does not serve. lines has the rest: definitions that brokers cannot take over, that
// cannot be read or whose bytes etcd has lost, and definitions that name types which no
// record has. Built-in feeds may name such types.
func FeedFaults(ctx context.Context, cl *cluster.Client) (n int, refused, lines []string, err error) {
	versions, err := artefacts.Watch(ctx, cl, feeds.Kind)
	if err != nil {
		return 0, nil, nil, err
	}
	s := &leans.Feeds{Cluster: cl, Versions: versions}
	all, err := s.Definitions(ctx)
	if err != nil {
		return 0, nil, nil, err
	}
	checks, done, err := s.Checks(ctx)
	if err != nil {
		return 0, nil, nil, err
	}
	defer done()
	bare, err := leans.BareLines(ctx, versions, "feed") // about versions whose bytes etcd has lost
	if err != nil {
		return 0, nil, nil, err
	}
	odd, err := leans.Unread(versions.Fault(), "millrace feed drop NAME --apply") // about what cannot be read
	names := slices.Sorted(maps.Keys(all))
	strange := leans.UnseenBy(ctx, checks, namedTypes(all, names)) // for each feed, which of its types no record has; "" if none
	for i, name := range names {
		f := all[name]
		j := f.Judge(ctx, checks)
		says := "feed " + name + ": "
		switch {
		case f.Fault != nil:
			lines = append(lines, f.Fault.Error())
		case j.Unranked:
			refused = append(refused, says+display.FaultText(j.Fault))
		case j.Fault != nil:
			lines = append(lines, says+display.FaultText(j.Fault))
		}
		if strange[i] != "" {
			lines = append(lines, says+strange[i])
		}
	}
	return len(all), refused, slices.Concat(lines, bare, odd), err
}

// namedTypes returns the types of each feed, in the order of names. It returns none for a
// built-in feed, which may name types that this cluster does not have.
func namedTypes(all map[string]leans.Definition, names []string) [][]millrace.ContentType {
	types := make([][]millrace.ContentType, len(names))
	for i, name := range names {
		if f := all[name]; f.Fault == nil && f.Edition != "" {
			types[i] = f.Types
		}
	}
	return types
}

// lack says which nodes lack a version.
type lack struct {
	all     bool   // all nodes lack it, and there are nodes
	refused bool   // the node in first refuses the version, so the version is at fault
	first   string // the first node that refuses it, or else the first that lacks it, and why; "": no node lacks it
	wayOut  string // what to do about the node in first; "" where the version is at fault
}

// lacking returns which nodes lack a version, from the answers of all nodes.
func lacking(all []nodeAnswer) (l lack) {
	l.all = len(all) > 0
	for _, a := range all {
		wayOut, refused := "", a.State == stateRefused
		switch {
		case a.State == stateAdmitted && a.Unkept == "":
			l.all = false
			continue
		case a.State == stateAdmitted:
			l.all = false
			wayOut = "; mend that node's disk, or make space on it: nothing is wrong with the version"
		case !refused:
			wayOut = "; start that node, or look at its log: nothing is known against the version"
		}
		if l.first == "" || refused && !l.refused {
			l.first, l.refused, l.wayOut = fmt.Sprintf("%s: %s", a.Node, line.Of(a.String())), refused, wayOut
		}
	}
	return l
}
