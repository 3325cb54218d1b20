package indexnode

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/structpb"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// ModelsKind is the kind of the cluster's artefacts that are model packs, each
// version a .tar.zst under its model's name.
const ModelsKind = "models"

// packs is what a follower of models reads; [cluster.Artefacts] does.
type packs interface {
	All() map[string][]cluster.Version
	Serving() map[string]cluster.Version
	Body(ctx context.Context, v cluster.Version) ([]byte, error)
	History(ctx context.Context, name string) ([]cluster.Event, error)
	// Unkept returns why what was read is not on disk; nil if it is.
	Unkept(v cluster.Version) error
	Changed() <-chan struct{}
	Fault() error
}

// modelFollower admits every version of the cluster's models as it comes, what
// serves first, and tells what it made of each. Which version answers a
// question is the broker's to name.
type modelFollower struct {
	node    *Node
	packs   packs
	schemas func() <-chan struct{} // closed when the schemas may have changed; see [schemalog.Log.Moved]
	tried   map[cluster.Version]trial
	gone    map[cluster.Version]time.Time // of those tried that were dropped, since when
	census  *census                       // nil until a version is admitted
	linger  time.Duration                 // lingers, but in tests
	markers markers

	admitted []relevance.ID // in the last pass
}

// trial is how the admission of a version ended.
type trial struct {
	refused error             // nil: it is admitted
	cost    int               // of one that is, in operations a record
	lacks   []cluster.Lack    // of one that is
	unread  bool              // its bytes could not be read
	deadly  bool              // the node died of it, and has not tried it again
	known   *schemas.Snapshot // what it was held against
}

// lingers is how long a version can be asked for after it was dropped: brokers
// may not have heard of that yet.
const lingers = 30 * time.Second

// readAgain is the pause before bytes that could not be read are tried again.
const readAgain = 2 * time.Second

// newModelFollower returns a follower. Until its first pass the node awaits
// the models that serve.
func newModelFollower(n *Node, p packs, schemas func() <-chan struct{}) *modelFollower {
	n.modelsAwaited.Store("the models that serve")
	return &modelFollower{node: n, packs: p, schemas: schemas, tried: map[cluster.Version]trial{}, gone: map[cluster.Version]time.Time{}, linger: lingers, markers: markers{filepath.Join(n.cfg.Dir, "admitting")}}
}

// modelsPending says which models that serve the node has still to look at
// before it is ready, or "".
func (n *Node) modelsPending() string {
	what, _ := n.modelsAwaited.Load().(string)
	return what
}

// run follows the models until ctx ends. It tells what became of each.
func (f *modelFollower) run(ctx context.Context, tell func([]cluster.Admission)) error {
	for {
		changed, schemas := f.packs.Changed(), f.schemas()
		again := f.admit(ctx)
		tell(f.admissions())
		for _, id := range f.admitted { // who pushed it need not wait for a warning
			f.node.tellUncovered(ctx, id)
		}
		f.admitted = nil
		var retry <-chan time.Time
		if again || len(f.gone) > 0 || f.unkept() {
			retry = time.After(readAgain)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-schemas:
		case <-retry:
		}
	}
}

// unkept reports whether a version that is admitted is not on disk: it is tried
// again, and what becomes of it is told.
func (f *modelFollower) unkept() bool {
	for v, t := range f.tried {
		if t.refused == nil && f.packs.Unkept(v) != nil {
			return true
		}
	}
	return false
}

// admit tries what has not been tried yet, what could not be read, what was
// refused under other schemas than those known now, and what the node died of, if
// somebody has released it since. It reports whether
// something could not be read.
func (f *modelFollower) admit(ctx context.Context) (again bool) {
	serving := f.packs.Serving()
	versions := f.versions(serving)
	f.drop(versions)
	if f.packs.Fault() == nil {
		f.markers.keep(versions)
	}
	known := f.node.schemas.Snapshot()
	for _, v := range versions {
		t, seen := f.tried[v]
		if !seen || t.unread || t.deadly || t.refused != nil && t.known != known {
			t = f.try(ctx, v, known, seen)
			f.tried[v] = t
		}
		again = again || t.unread
	}
	f.node.modelsAwaited.Store(f.awaited(serving))
	return again
}

// versions returns all versions, those that serve first, then the newest.
func (f *modelFollower) versions(serving map[string]cluster.Version) (all []cluster.Version) {
	var others []cluster.Version
	for name, versions := range f.packs.All() {
		for i, v := range slices.Backward(versions) {
			if serving[name] == v {
				all = append(all, v)
			} else {
				others = append(others, versions[i])
			}
		}
	}
	return append(all, others...)
}

// drop forgets, after a while, versions that are not among those that are
// there.
func (f *modelFollower) drop(there []cluster.Version) {
	for v := range f.tried {
		if slices.Contains(there, v) {
			delete(f.gone, v)
			continue
		}
		if _, known := f.gone[v]; !known {
			f.gone[v] = time.Now()
		}
		if time.Since(f.gone[v]) >= f.linger {
			delete(f.tried, v)
			delete(f.gone, v)
			f.node.condemned.dropped(relevance.ID(v))
			f.node.counters.fields.DeletePartialMatch(prometheus.Labels{"model": v.Name, "version": v.Version})
			f.node.models.Drop(relevance.ID(v))
		}
	}
}

// try admits a version. Again says that it was tried before: what is known is
// not logged twice.
func (f *modelFollower) try(ctx context.Context, v cluster.Version, known *schemas.Snapshot, again bool) trial {
	n := f.node
	t := trial{known: known}
	err := f.mark(ctx, v)
	if t.deadly = err != nil; err == nil {
		var body []byte
		body, err = f.packs.Body(ctx, v)
		if t.unread = err != nil; err == nil {
			err = n.admitModel(v, body, known)
		}
		if err := f.markers.end(v); err != nil {
			n.log.Error("the mark of an admission that is over stays, and counts as a death of the node", "file", f.markers.file(v), "err", err)
		}
	}
	if t.refused = err; err == nil {
		n.log.Info("model admitted", "model", v.Name, "version", v.Version, "sum", v.Sum)
		if m, err := n.models.Find(relevance.ID(v)); err == nil {
			t.cost, t.lacks = m.Cost(), f.lacksOf(ctx, relevance.ID(v), m)
		}
		f.admitted = append(f.admitted, relevance.ID(v))
		return t
	}
	if !again {
		n.counters.modelRefused()
		n.log.Error("model refused; brokers ask other replicas for it", "model", v.Name, "version", v.Version, "sum", v.Sum, "err", err)
	}
	return t
}

// mark notes that an admission begins, and refuses that of a version that the
// node died of, unless it was released since.
func (f *modelFollower) mark(ctx context.Context, v cluster.Version) error {
	k := f.markers.read(v)
	if k.Deaths > 0 {
		released := f.released(ctx, v)
		if k.Deaths >= mostDeaths && !released.After(k.Released) {
			return k.deadly(f.node.cfg.ID, v)
		}
		if released.After(k.Released) {
			k.Released = released
		}
	}
	if err := f.markers.begin(v, k); err != nil { // a disk that is full is no reason to serve without models
		f.node.log.Warn("nothing marks that a model is being admitted: a pack that kills the node kills it at each restart", "model", v.Name, "version", v.Version, "err", err)
	}
	return nil
}

// released returns when a version was last released; the zero time if it was not,
// or etcd does not say.
func (f *modelFollower) released(ctx context.Context, v cluster.Version) (when time.Time) {
	events, err := f.packs.History(ctx, v.Name)
	if err != nil {
		return when
	}
	for _, e := range events {
		if e.What == cluster.Released && e.Sum == v.Sum && e.When.After(when) {
			when = e.When
		}
	}
	return when
}

// lacksOf returns what records lack that a version reads.
func (f *modelFollower) lacksOf(ctx context.Context, id relevance.ID, m *relevance.Model) []cluster.Lack {
	if f.census == nil || time.Since(f.census.taken) > censusLife {
		f.census = f.node.takeCensus(ctx)
	}
	lacks := f.census.lacks(m)
	f.node.counters.lacks(id, lacks)
	return lacks
}

func (n *Node) admitModel(v cluster.Version, body []byte, known *schemas.Snapshot) error {
	pack, err := modelpack.Read(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if pack.Manifest.Name != v.Name || pack.Manifest.Version != v.Version {
		return fmt.Errorf("the pack says that it is %s %s", pack.Manifest.Name, pack.Manifest.Version)
	}
	_, err = pack.Admit(n.models, v.Sum, relevance.SchemasOf(known))
	return err
}

// awaited says which models that serve have not been read because etcd is
// away. One that is refused is not waited for: other replicas may have it.
func (f *modelFollower) awaited(serving map[string]cluster.Version) string {
	if f.packs.Fault() == nil {
		return ""
	}
	for _, v := range serving {
		if f.tried[v].unread {
			return fmt.Sprintf("etcd, to read the model %s", v)
		}
	}
	return ""
}

// admissions is what became of each version.
func (f *modelFollower) admissions() []cluster.Admission {
	all := make([]cluster.Admission, 0, len(f.tried))
	for v, t := range f.tried {
		if _, dropped := f.gone[v]; dropped {
			continue
		}
		a := cluster.Admission{Name: v.Name, Version: v.Version, Sum: v.Sum, Cost: t.cost, Lacks: t.lacks}
		if err := f.packs.Unkept(v); err != nil && t.refused == nil {
			a.Unkept = err.Error()
		}
		if t.refused != nil {
			a.Refused, a.Deadly = cmp.Or(t.refused.Error(), "refused"), t.deadly
		}
		all = append(all, a)
	}
	return all
}

// coverageSample is how many candidates show what features they have.
const coverageSample = 200

// tellUncovered warns of features that no candidate of the newest question
// has. It refuses nothing: each replica has other questions, and all must
// serve the same model.
func (n *Node) tellUncovered(ctx context.Context, model relevance.ID) {
	features, candidates, err := n.uncovered(ctx, model)
	if err != nil {
		n.log.Warn("what features candidates have is not known", "model", model.String(), "err", err)
	} else if len(features) > 0 {
		n.log.Warn("no candidate has these features", "model", model.String(), "features", features, "candidates", candidates)
	}
}

// uncovered asks the newest question again for the best candidates by a model,
// and returns the features that are missing on each.
func (n *Node) uncovered(ctx context.Context, model relevance.ID) (features []string, candidates int, err error) {
	last := n.asked.Load()
	if last == nil {
		return nil, 0, nil
	}
	resp, err := n.query(context.WithValue(ctx, ownQuestion{}, true), &nodev1.QueryRequest{
		Entities: last.Entities, Types: last.Types, FromMs: last.FromMs, ToMs: last.ToMs, AsOfMs: last.AsOfMs,
		Viewer: last.Viewer, Filter: last.Filter, RequestFilter: last.RequestFilter, Model: model.Name, ModelVersion: model.Version, ModelSum: model.Sum, Limit: coverageSample, Explain: true,
	})
	if err != nil {
		return nil, 0, err
	}
	var has []bool
	for _, it := range resp.Items {
		if has == nil {
			has = make([]bool, len(it.Explain.Features))
		}
		for i, f := range it.Explain.Features {
			_, null := f.Value.GetKind().(*structpb.Value_NullValue)
			_, text := f.Value.GetKind().(*structpb.Value_StringValue)
			has[i] = has[i] || !null && !(text && f.Value.GetStringValue() == "")
		}
	}
	for i, ok := range has {
		if !ok {
			features = append(features, resp.Items[0].Explain.Features[i].Feature)
		}
	}
	return features, len(resp.Items), nil
}
