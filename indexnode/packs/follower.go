// Package packs admits each version of a model that the cluster publishes, as it comes, and
// tells the cluster whether it was admitted.
package packs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas/registry"
)

// Config is what versions are admitted with. All of it is required.
type Config struct {
	Node    millrace.NodeID
	Dir     string // the directory of the marks of admissions under way
	Store   *store.Store
	Schemas *registry.Registry
	Models  *relevance.Registry
	// Admitted is called with each version that was admitted, once the cluster has been told.
	// Dropped is called with each version that the cluster no longer has.
	Admitted func(context.Context, relevance.ID)
	Dropped  func(relevance.ID)
	Log      *slog.Logger
}

// Admission admits versions of models on a node.
type Admission struct {
	cfg Config
	// awaited is a string: see Pending.
	awaited atomic.Value
	refused prometheus.Counter   // packs
	fields  *prometheus.GaugeVec // model, version, type, field
}

// New returns an admission. Nothing is pending before [Admission.Follow].
func New(c Config) *Admission {
	return &Admission{
		cfg:     c,
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_indexnode_models_refused_total", Help: "Model packs refused."}),
		fields:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_indexnode_model_fields_missing", Help: "1 for a field that a version of a model reads and in which no record of a content type had anything when the version was admitted, of those that the node looked at."}, []string{"model", "version", "type", "field"}),
	}
}

// Collectors are the metrics of admissions.
func (a *Admission) Collectors() []prometheus.Collector {
	return []prometheus.Collector{a.refused, a.fields}
}

// Pending says which models that serve the node has still to look at before it
// is ready, or "".
func (a *Admission) Pending() string {
	what, _ := a.awaited.Load().(string)
	return what
}

// source is what a follower of models reads; [artefacts.Kind] does.
type source interface {
	All() map[string][]artefacts.Version
	Serving() map[string]artefacts.Version
	Body(ctx context.Context, v artefacts.Version) ([]byte, error)
	History(ctx context.Context, name string) ([]ledger.Event, error)
	// Unkept returns why what was read is not on disk; nil if it is.
	Unkept(v artefacts.Version) error
	Changed() <-chan struct{}
	Fault() error
}

// topic is where schemas come from; [schemalog.Log] is one.
type topic interface {
	Moved() <-chan struct{} // closed when the schemas may have changed
	Read() bool             // they have been read as far as they went when the node began
}

// Follower admits every version of the cluster's models as it comes, those that serve first,
// and tells the outcome for each. Which version answers a question, the broker decides.
type Follower struct {
	*Admission
	packs   source
	schemas topic
	tried   map[artefacts.Version]trial
	gone    map[artefacts.Version]time.Time // when those in tried were dropped that are
	census  *census                         // nil until a version is admitted
	linger  time.Duration                   // the constant lingers, or less of tests
	markers markers

	admitted []relevance.ID // in the last pass
}

// trial is how the admission of a version ended.
type trial struct {
	refused error              // nil: it is admitted
	cost    int                // of one that is, in operations a record
	lacks   []members.Lack     // of one that is
	unread  bool               // its bytes could not be read
	deadly  bool               // the node died while it was admitted, and has not tried it again
	known   *registry.Snapshot // the schemas under which it was tried
	early   bool               // not all schemas of the cluster had been read
}

// lingers is how long a version can be asked for after it was dropped: brokers
// may not have heard of that yet.
const lingers = 30 * time.Second

// readAgain is the pause before bytes that could not be read are tried again.
const readAgain = 2 * time.Second

// Follow returns a follower of what p has. Until its first pass the node awaits
// the models that serve.
func (a *Admission) Follow(p source, schemas topic) *Follower {
	a.awaited.Store("the models that serve")
	return &Follower{Admission: a, packs: p, schemas: schemas, tried: map[artefacts.Version]trial{}, gone: map[artefacts.Version]time.Time{}, linger: lingers, markers: markers{a.cfg.Dir}}
}

// Run follows the models until ctx ends. It tells what became of each.
func (f *Follower) Run(ctx context.Context, tell func([]members.Admission)) error {
	for {
		changed, schemas := f.packs.Changed(), f.schemas.Moved()
		again := f.Admit(ctx)
		tell(f.admissions())
		for _, id := range f.admitted { // after the cluster was told: whoever pushed it need not wait for warnings
			f.cfg.Admitted(ctx, id)
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

// unkept reports whether an admitted version could not be written to disk. That is tried
// again, and told.
func (f *Follower) unkept() bool {
	for v, t := range f.tried {
		if t.refused == nil && f.packs.Unkept(v) != nil {
			return true
		}
	}
	return false
}

// Admit tries the versions that were not tried yet, those that could not be read, those
// that were refused under other schemas than those known now, and those of which the node
// died if somebody has released them since. It reports whether any could not be read, or
// was refused before all schemas were read.
func (f *Follower) Admit(ctx context.Context) (again bool) {
	serving := f.packs.Serving()
	versions := f.versions(serving)
	f.drop(versions)
	if f.packs.Fault() == nil {
		f.markers.keep(versions)
	}
	early := !f.schemas.Read()
	known := f.cfg.Schemas.Snapshot()
	for _, v := range versions {
		t, seen := f.tried[v]
		if !seen || t.unread || t.deadly || t.refused != nil && (t.known != known || t.early && !early) {
			t = f.try(ctx, v, trial{known: known, early: early}, t)
			f.tried[v] = t
		}
		again = again || t.unread || t.refused != nil && early
	}
	f.awaited.Store(f.awaits(serving))
	return again
}

// versions returns all versions: those that serve, then of each model the newest
// first.
func (f *Follower) versions(serving map[string]artefacts.Version) (all []artefacts.Version) {
	var others []artefacts.Version
	for name, versions := range f.packs.All() {
		for _, v := range slices.Backward(versions) {
			if serving[name] == v {
				all = append(all, v)
			} else {
				others = append(others, v)
			}
		}
	}
	return append(all, others...)
}

// drop forgets, after a while, versions that are not among those that are
// there.
func (f *Follower) drop(there []artefacts.Version) {
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
			f.cfg.Dropped(relevance.ID(v))
			f.fields.DeletePartialMatch(prometheus.Labels{"model": v.Name, "version": v.Version})
			f.cfg.Models.Drop(relevance.ID(v))
		}
	}
}

// try admits a version. What it was refused for before is not logged again, and as long as
// not all schemas have been read a refusal is no error: a node without a disk begins so.
func (f *Follower) try(ctx context.Context, v artefacts.Version, t, before trial) trial {
	err := f.mark(ctx, v)
	if t.deadly = err != nil; err == nil {
		var body []byte
		body, err = f.packs.Body(ctx, v)
		if t.unread = err != nil; err == nil {
			err = f.admitPack(v, body, t.known)
		}
		if err := f.markers.end(v); err != nil {
			f.cfg.Log.Error("the mark of an admission that is over stays, and counts as a death of the node", "file", f.markers.file(v), "err", err)
		}
	}
	if t.refused = err; err == nil {
		f.cfg.Log.Info("model admitted", "model", v.Name, "version", v.Version, "sum", v.Sum)
		if m, err := f.cfg.Models.Find(relevance.ID(v)); err == nil {
			t.cost, t.lacks = m.Cost(), f.lacksOf(ctx, relevance.ID(v), m)
		}
		f.admitted = append(f.admitted, relevance.ID(v))
		return t
	}
	switch {
	case t.early && !t.deadly && !t.unread:
		f.cfg.Log.Info("a model waits until all schemas have been read", "model", v.Name, "version", v.Version, "err", err)
	case before.refused == nil || before.early || before.refused.Error() != err.Error():
		f.refused.Inc()
		f.cfg.Log.Error("model refused; brokers ask other replicas for it", "model", v.Name, "version", v.Version, "sum", v.Sum, "err", err)
	}
	return t
}

// mark notes that an admission begins, and refuses that of a version that the
// node died of, unless it was released since.
func (f *Follower) mark(ctx context.Context, v artefacts.Version) error {
	k := f.markers.read(v)
	if k.Deaths > 0 {
		released := f.released(ctx, v)
		if k.Deaths >= mostDeaths && !released.After(k.Released) {
			return k.deadly(f.cfg.Node, v)
		}
		if released.After(k.Released) {
			k.Released = released
		}
	}
	if err := f.markers.begin(v, k); err != nil { // a disk that is full is no reason to serve without models
		f.cfg.Log.Warn("nothing marks that a model is being admitted: a pack that kills the node kills it at each restart", "model", v.Name, "version", v.Version, "err", err)
	}
	return nil
}

// released returns when a version was last released; the zero time if it was not,
// or etcd does not say.
func (f *Follower) released(ctx context.Context, v artefacts.Version) (when time.Time) {
	events, err := f.packs.History(ctx, v.Name)
	if err != nil {
		return when
	}
	for _, e := range events {
		if e.What == ledger.Released && e.Sum == v.Sum && e.When.After(when) {
			when = e.When
		}
	}
	return when
}

// lacksOf returns what records lack that a version reads.
func (f *Follower) lacksOf(ctx context.Context, id relevance.ID, m *relevance.Model) []members.Lack {
	if f.census == nil || time.Since(f.census.taken) > censusLife {
		f.census = takeCensus(ctx, f.cfg.Store, f.cfg.Schemas.Snapshot())
	}
	lacks := f.census.lacks(m)
	for _, l := range lacks {
		for _, field := range l.Fields {
			f.fields.WithLabelValues(id.Name, id.Version, l.Type, field).Set(1)
		}
	}
	return lacks
}

func (a *Admission) admitPack(v artefacts.Version, body []byte, known *registry.Snapshot) error {
	pack, err := modelpack.Read(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if pack.Manifest.Name != v.Name || pack.Manifest.Version != v.Version {
		return fmt.Errorf("the pack says that it is %s %s", pack.Manifest.Name, pack.Manifest.Version)
	}
	_, err = pack.Admit(a.cfg.Models, v.Sum, relevance.SchemasOf(known))
	return err
}

// awaits says which models that serve have not been read because etcd is
// away. One that is refused is not waited for: other replicas may have it.
func (f *Follower) awaits(serving map[string]artefacts.Version) string {
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

// admissions returns the outcome for each version.
func (f *Follower) admissions() []members.Admission {
	all := make([]members.Admission, 0, len(f.tried))
	for v, t := range f.tried {
		if _, dropped := f.gone[v]; dropped {
			continue
		}
		a := members.Admission{Name: v.Name, Version: v.Version, Sum: v.Sum, Cost: t.cost, Lacks: t.lacks}
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
