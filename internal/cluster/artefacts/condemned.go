package artefacts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/line"
)

// Condemnation says why no question may ask for a version of a model.
type Condemnation struct {
	Version string    `json:"version"`
	Sum     string    `json:"sum"`
	Why     string    `json:"why"`
	Who     string    `json:"who"` // the node on which it failed
	When    time.Time `json:"when"`
}

// CondemnedKind is the kind of the documents that list condemned versions, one for each
// model.
const CondemnedKind = "condemned"

const (
	maxCondemned = 2 * ledger.MaxVersions // condemnations that a model keeps, the newest
	maxWhyBytes  = 300
)

// Condemned watches the condemned versions of models: no question may ask for
// them, since they failed while they served. They stand in a document for each
// model, apart from its ledger, so that a binary that knows nothing of them can
// still read the ledger.
type Condemned struct {
	docs  *documents.Kind
	state *keyspace.Latest[condemned]
}

// condemned is the versions that are condemned at a revision.
type condemned struct {
	versions map[Version]Condemnation
	revision int64 // of the documents that say so
}

// WatchCondemned watches the versions that are condemned. It returns as
// [documents.Watch] does.
func WatchCondemned(ctx context.Context, c *cluster.Client) (*Condemned, error) {
	docs, err := documents.Watch(ctx, c, CondemnedKind)
	if err != nil {
		return nil, err
	}
	d := &Condemned{docs: docs, state: keyspace.NewLatest(condemned{})}
	c.Alarm(ctx, CondemnedKind, d.state.FaultSince)
	docs.Each(ctx, d.follow)
	return d, nil
}

// follow takes over the documents. Of a malformed one it keeps what the document said
// before.
func (d *Condemned) follow() {
	old := d.Current()
	docs, revision, fault := d.docs.AsOf()
	next := map[Version]Condemnation{}
	var bad []error
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		all, err := parseCondemned(docs[name].Body)
		if err != nil {
			bad = append(bad, fmt.Errorf("cluster: condemned versions of %s: %w", name, err))
			for v, x := range old {
				if v.Name == name {
					next[v] = x
				}
			}
		}
		for _, x := range all {
			next[Version{name, x.Version, x.Sum}] = x
		}
	}
	d.state.Set(condemned{next, revision}, errors.Join(fault, keyspace.Few(bad)))
}

// parseCondemned reads a model's document; an empty one has no condemnations.
func parseCondemned(body string) (all []Condemnation, err error) {
	if body == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		return nil, fmt.Errorf("it is no list of versions: %w", err)
	}
	for i, x := range all {
		if ledger.CheckVersion(x.Version) != nil || !ledger.IsSum(x.Sum) {
			return nil, fmt.Errorf("version %.100q is malformed", x.Version)
		}
		all[i].Why, all[i].Who = line.Of(x.Why), line.Of(x.Who)
	}
	return all, nil
}

// Current returns the versions that are condemned. The caller must not change
// it.
func (d *Condemned) Current() map[Version]Condemnation { v, _ := d.state.Get(); return v.versions }

// Revision returns the revision in etcd of the documents that Current is of. It grows with
// each change.
func (d *Condemned) Revision() int64 { v, _ := d.state.Get(); return v.revision }

// GoesBy returns the kind, and up to which revision of etcd this process goes by its
// documents.
func (d *Condemned) GoesBy() (string, cluster.Applied) {
	read := d.docs.ReadAt() // first, so that the documents below are at least as new
	_, revision, _ := d.docs.AsOf()
	now, fault := d.state.Get()
	switch {
	case keyspace.PastLost(fault):
		return CondemnedKind, cluster.Applied{}
	case now.revision == revision:
		return CondemnedKind, cluster.Applied{Revision: read}
	}
	return CondemnedKind, cluster.Applied{Revision: now.revision}
}

// Why returns why a version is condemned; "" if it is not.
func (d *Condemned) Why(v Version) string { return d.Current()[v].Why }

// Changed returns a channel that is closed at the next change of Current. Take it before
// looking at that.
func (d *Condemned) Changed() <-chan struct{} { return d.state.Changed() }

// errSaid aborts a change: the version is condemned already.
var errSaid = errors.New("cluster: it is said already")

// ErrReleased says that somebody released a version after the failure for which it was to
// be condemned.
var ErrReleased = errors.New("cluster: the version was released since")

// Condemn condemns a version of models, for a failure that was seen at a time. If it is
// condemned already the first reason stays. The model's history keeps the reason, and who
// gave it. The error is [ErrReleased] if somebody has released the version since seen: a
// late report must not undo that. A version that was dropped is no error.
func (d *Condemned) Condemn(ctx context.Context, models *Kind, v Version, why, who string, seen time.Time) error {
	why = strings.ToValidUTF8(why[:min(len(why), maxWhyBytes)], "")
	by := func(body string) (string, error) {
		all, err := parseCondemned(body)
		if err == nil && slices.ContainsFunc(all, func(x Condemnation) bool { return x.Sum == v.Sum }) {
			err = errSaid
		}
		if err != nil {
			return body, err
		}
		all = append(all, Condemnation{v.Version, v.Sum, why, audit.Shortened(who), time.Now().UTC().Truncate(time.Millisecond)})
		next, err := json.Marshal(all[max(0, len(all)-maxCondemned):])
		return string(next), err
	}
	err := models.change(ctx, v.Name, func(l *ledger.Ledger) (edit, error) {
		e, ok := l.Find(v.Sum)
		if !ok || e.Version != v.Version {
			return unchanged, nil // it was dropped: there is nothing to ask for
		}
		if slices.ContainsFunc(l.History, func(e ledger.Event) bool { return e.What == ledger.Released && e.Sum == v.Sum && e.When.After(seen) }) {
			return unchanged, ErrReleased
		}
		l.Note(ledger.Failed, e, who+": "+why)
		return edit{made: true, with: &With{d.docs, v.Name, by}}, nil
	})
	if errors.Is(err, errSaid) {
		err = nil
	}
	if err == nil && models.Has(v) {
		d.await(ctx, v, true)
	}
	return err
}

// Release lets a version of models be asked for again. The model's history keeps who
// released it, and what it was condemned for.
func (d *Condemned) Release(ctx context.Context, models *Kind, v Version, who string) error {
	if why := d.Why(v); why != "" {
		who += ": it was condemned: " + why
	}
	err := models.change(ctx, v.Name, func(l *ledger.Ledger) (edit, error) {
		e, ok := l.Find(v.Sum)
		if !ok || e.Version != v.Version {
			return unchanged, models.unknown(v.Name, v.Version)
		}
		l.Note(ledger.Released, e, who)
		return edit{made: true, with: &With{d.docs, v.Name, editing(without(v))}}, nil
	})
	if err == nil {
		d.await(ctx, v, false)
	}
	return err
}

// Forget removes the condemnation of a version that was dropped. A version that is not
// condemned is no error.
func (d *Condemned) Forget(ctx context.Context, v Version) error {
	err := d.docs.Change(ctx, v.Name, editing(without(v)))
	if err == nil {
		d.await(ctx, v, false)
	}
	return err
}

func without(v Version) func([]Condemnation) []Condemnation {
	return func(all []Condemnation) []Condemnation {
		return slices.DeleteFunc(all, func(x Condemnation) bool { return x.Sum == v.Sum })
	}
}

// editing returns a change of a document: by changes its list. A list that is empty then
// makes an empty document.
func editing(by func([]Condemnation) []Condemnation) func(body string) (string, error) {
	return func(body string) (string, error) {
		all, err := parseCondemned(body)
		if err != nil {
			return "", err
		}
		if all = by(all); len(all) == 0 {
			return "", nil
		}
		next, err := json.Marshal(all)
		return string(next), err
	}
}

// await returns when this watcher has a version as condemned, or not, as the argument says;
// at the latest after [cluster.CallTimeout].
func (d *Condemned) await(ctx context.Context, v Version, condemned bool) {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	for {
		changed := d.Changed()
		if _, is := d.Current()[v]; is == condemned {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-d.docs.Client().Context().Done():
			return
		case <-changed:
		}
	}
}
