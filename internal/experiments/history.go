package experiments

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance/experiment"
)

// Begun returns since when an experiment has been in its document without a break. An
// earlier experiment of the same name, which was dropped or taken out of the document, does
// not count. It returns zero if the experiment is as old as the history, or older.
func (s *Store) Begun(ctx context.Context, of *experiment.Defined) (begun time.Time, err error) {
	events, err := s.Documents.History(ctx, of.Document)
	if err != nil {
		return begun, err
	}
	var gone []string // the checksums of the versions that were dropped between this event and the next change of what serves
	for _, e := range slices.Backward(events) {
		switch e.What {
		case ledger.Dropped: // the version that served, or an older one to make room
			gone = append(gone, e.Sum)
		case ledger.Served, ledger.RolledBack:
			if slices.Contains(gone, e.Sum) {
				return begun, nil
			}
			gone = nil
			if !s.mayHaveHad(ctx, artefacts.Version{Name: of.Document, Version: e.Version, Sum: e.Sum}, of.Experiment.Name) {
				return begun, nil
			}
			begun = e.When
		}
	}
	if !ledger.Whole(events) { // what came before is forgotten
		return time.Time{}, nil
	}
	return begun, nil
}

// Runs returns since when an experiment that runs now has run without a pause, as far as the
// history and the kept versions tell; zero if they do not tell. It goes back in the history
// only to the first time that is earlier than the parameter before, and returns that time.
func (s *Store) Runs(ctx context.Context, of *experiment.Defined, before time.Time) (since time.Time, err error) {
	events, err := s.Documents.History(ctx, of.Document)
	if err != nil {
		return since, err
	}
	for _, e := range slices.Backward(events) {
		if e.What != ledger.Served && e.What != ledger.RolledBack {
			continue
		}
		v := artefacts.Version{Name: of.Document, Version: e.Version, Sum: e.Sum}
		if !s.Documents.Has(v) {
			return since, nil
		}
		body, err := s.Documents.Body(ctx, v)
		if errors.Is(err, cluster.ErrAway) {
			return since, err
		}
		d, _ := experiment.Parse(v.Name, body) // with an error it has what could be read
		if !slices.ContainsFunc(d.Experiments, func(x experiment.Experiment) bool {
			return x.Name == of.Experiment.Name && x.State == experiment.Running
		}) {
			return since, nil
		}
		if since = e.When; since.Before(before) {
			return since, nil
		}
	}
	return since, nil
}

// mayHaveHad reports whether a version of a document may have had an experiment. It reports
// true for a version that is not kept or cannot be read.
func (s *Store) mayHaveHad(ctx context.Context, v artefacts.Version, name string) bool {
	if !s.Documents.Has(v) {
		return true
	}
	body, err := s.Documents.Body(ctx, v)
	if err != nil {
		return true
	}
	d, err := experiment.Parse(v.Name, body)
	return err != nil || slices.ContainsFunc(d.Experiments, func(e experiment.Experiment) bool { return e.Name == name })
}

// Same reports whether two versions of a document define an experiment equally. It reports
// false if one of them is not kept or cannot be read.
func (s *Store) Same(ctx context.Context, a, b artefacts.Version, name string) (bool, error) {
	var was *experiment.Experiment
	for i, v := range []artefacts.Version{a, b} {
		if v != (artefacts.Version{}) && !s.Documents.Has(v) { // it may be too new for this process to have heard of it
			if err := s.Documents.Settle(ctx); err != nil {
				return false, err
			}
		}
		body, err := s.Documents.Body(ctx, v)
		if errors.Is(err, cluster.ErrAway) {
			return false, err
		}
		d, fault := experiment.Parse(v.Name, body)
		at := slices.IndexFunc(d.Experiments, func(e experiment.Experiment) bool { return e.Name == name })
		if err != nil || fault != nil || at < 0 {
			return false, nil
		}
		if i == 0 {
			was = &d.Experiments[at]
		} else {
			return reflect.DeepEqual(*was, d.Experiments[at]), nil
		}
	}
	return false, nil
}

// PausedBy returns the change that paused an experiment which is paused, as the history
// of its document tells; ok is false if the history no longer has that change.
func (s *Store) PausedBy(ctx context.Context, of *experiment.Defined) (by ledger.Event, ok bool, err error) {
	events, err := s.Documents.History(ctx, of.Document)
	name := of.Experiment.Name
	for _, e := range slices.Backward(events) {
		switch {
		case e.What != ledger.Served:
		case strings.Contains(e.Who, ": paused "+name+": "), strings.Contains(e.Who, "experiment "+name+": state running → paused"):
			return e, true, err
		case strings.Contains(e.Who, "experiment "+name+": state paused → running"):
			return by, false, err // the pause came after this; its note was cut short and does not name the experiment
		}
	}
	return by, false, err
}
