package experiments

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster"
)

// Faults is the check of experiments by millrace doctor. says is one line: how many
// experiments there are, in how many documents, how old their outcomes are, and which are
// paused. lines name what is wrong, one fault each: documents with faults, experiments
// that are not applied or not watched, and what cannot be read.
func Faults(ctx context.Context, cl *cluster.Client) (says string, lines []string, err error) {
	t, err := open(ctx, cl, io.Discard)
	if err != nil {
		return "", nil, err
	}
	st, err := t.Read(ctx)
	if err != nil {
		return "", nil, err
	}
	if lines, err = t.Notes(ctx, st); err != nil {
		return "", nil, err
	}
	unwatched, outcomes, err := t.unwatchedLines(ctx, st)
	if err != nil {
		return "", nil, err
	}
	bare, err := leans.BareLines(ctx, t.Documents, "document")
	if err != nil {
		return "", nil, err
	}
	lines = append(lines, bare...)
	odd, err := leans.Unread(t.Documents.Fault(), "millrace experiment drop DOCUMENT --apply")
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
