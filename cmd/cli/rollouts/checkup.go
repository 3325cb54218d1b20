package rollouts

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/line"
	"github.com/millrace/millrace/relevance"
)

// ModelFaults returns how many models serve, what is wrong with those that no node
// has, and what is odd: versions that some nodes lack, that are condemned, or that
// cannot be read.
func ModelFaults(ctx context.Context, cl *cluster.Client) (serve int, nowhere, lines []string, err error) {
	r, err := openRollout(ctx, cl, io.Discard)
	if err != nil {
		return 0, nil, nil, err
	}
	condemned, serving := r.failed.Current(), r.models.Serving()
	bad := false // some version is, and no node
	for _, name := range r.models.Names() {
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
	bare, err := bareLines(ctx, r.models, "model")
	if err != nil {
		return 0, nil, nil, err
	}
	lines = append(lines, bare...)
	odd, err := unread(r.models.Fault(), "millrace model drop NAME --apply")
	if len(nowhere) == 0 {
		lines = append(lines, odd...)
	}
	return len(serving), nowhere, lines, err
}

// bareLines tells of versions that etcd names without their bytes. Of what commands read,
// all but models, those that serve are told with what cannot be read.
func bareLines(ctx context.Context, of *cluster.Artefacts, one string) (lines []string, err error) {
	beside := "define it again if it is needed"
	if one == "model" {
		beside = "push the same pack again"
	}
	all, err := of.Bare(ctx)
	serving := of.Serving()
	for _, v := range all {
		then := "nobody can go back to it"
		if serving[v.Name] == v {
			then = "it serves, and who starts without it on disk does not get it"
		}
		if one == "model" || serving[v.Name] != v {
			lines = append(lines, fmt.Sprintf("the bytes of %s %s are not in etcd: %s; %s; else %s", one, v, then, cluster.BytesWayOut, beside))
		}
	}
	return lines, err
}

// FeedFaults returns how many feeds there are, which of them brokers cannot take over,
// and which of those that the cluster defines name types that no record has.
func FeedFaults(ctx context.Context, cl *cluster.Client) (n int, lines []string, err error) {
	versions, err := cl.Artefacts(ctx, feeds.Kind)
	if err != nil {
		return 0, nil, err
	}
	s := &feedStore{cluster: cl, versions: versions}
	all, err := s.definitions(ctx)
	if err != nil {
		return 0, nil, err
	}
	names := slices.Sorted(maps.Keys(all))
	types := make([][]millrace.ContentType, len(names))
	for i, name := range names {
		if f := all[name]; f.fault == nil && f.version != "" { // what is built in names types of any cluster
			types[i] = f.Types
		}
	}
	strange, err := s.unseenIn(ctx, types)
	if err != nil {
		return 0, nil, err
	}
	for i, name := range names {
		switch f := all[name]; {
		case f.fault != nil:
			lines = append(lines, f.fault.Error())
		case strange[i] != "":
			lines = append(lines, fmt.Sprintf("feed %s: %s", name, strange[i]))
		}
	}
	bare, err := bareLines(ctx, versions, "feed")
	if err != nil {
		return 0, nil, err
	}
	lines = append(lines, bare...)
	odd, err := unread(versions.Fault(), "millrace feed drop NAME --apply")
	return len(all), append(lines, odd...), err
}

// ExperimentFaults returns how many experiments there are, in how many documents, and
// which of them give nobody a variant though they may, or whose answers count for
// none, or cannot be taken over.
func ExperimentFaults(ctx context.Context, cm *clusters.Flags, cl *cluster.Client) (says string, lines []string, err error) {
	t, err := openTrial(ctx, cm, cl, io.Discard)
	if err != nil {
		return "", nil, err
	}
	st, err := t.Read(ctx)
	if err != nil {
		return "", nil, err
	}
	if lines, err = t.notes(ctx, st); err != nil {
		return "", nil, err
	}
	unwatched, outcomes, err := t.unwatchedLines(ctx, st)
	if err != nil {
		return "", nil, err
	}
	bare, err := bareLines(ctx, t.Documents, "document")
	if err != nil {
		return "", nil, err
	}
	lines = append(lines, bare...)
	odd, err := unread(t.Documents.Fault(), "millrace experiment drop DOCUMENT --apply")
	says = fmt.Sprintf("%d in %d documents", len(st.Set.Experiments()), len(st.Versions)) + outcomes
	for _, d := range st.Set.Experiments() {
		by, paused, err := t.pausedBy(ctx, &d)
		if err != nil {
			return "", nil, err
		}
		if paused {
			says += fmt.Sprintf("; %s is paused by %s", d.Experiment.Name, by.Who)
		}
	}
	return says, slices.Concat(lines, unwatched, odd), err
}

// unread says which documents cannot be read, and what removes them. The error is a
// fault of all that etcd holds: then each of them may be good, and none is to be
// removed.
func unread(fault error, remove string) (lines []string, err error) {
	switch {
	case fault == nil:
		return nil, nil
	case cluster.Doubted(fault):
		return nil, fault
	}
	return []string{fault.Error() + "\nwhat cannot be read is removed by " + remove}, nil
}

// lack is what nodes do not have of a version.
type lack struct {
	all     bool   // none has it
	refused bool   // first is: the version is at fault
	first   string // the first that refuses it, else that has not got it, and why; "": all have
	wayOut  string // where nothing is wrong with the version
}

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
