// Package packs admits each version of a model that the cluster publishes, as it comes, and
// tells the cluster whether it was admitted. A version comes as a pack, an archive with the
// model and examples of what it must give (package modelpack). To admit a version is to
// check its pack and make the model ready to rank.
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
	// Admitted is called with each version that was admitted, after the cluster was told.
	// Dropped is called with each version that the cluster has dropped, about 30 s later.
	Admitted func(context.Context, relevance.ID)
	Dropped  func(relevance.ID)
	Log      *slog.Logger
}

// Admission admits versions of models on a node.
type Admission struct {
	cfg Config
	// awaited is a string: what Pending returns.
	awaited atomic.Value
	refused prometheus.Counter   // of packs
	fields  *prometheus.GaugeVec // labels: model, version, type, field
}

// New returns an admission. Nothing is pending before [Admission.Follow].
func New(c Config) *Admission {
	return &Admission{
		cfg:     c,
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_indexnode_models_refused_total", Help: "Model packs refused."}),
		fields:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_indexnode_model_fields_missing", Help: "1 for a field that a version of a model reads and in which no record of a content type had anything when the version was admitted, of those that the node looked at."}, []string{"model", "version", "type", "field"}),
	}
}

// Collectors returns the metrics of admissions, to be registered.
func (a *Admission) Collectors() []prometheus.Collector {
	return []prometheus.Collector{a.refused, a.fields}
}

// Pending says what the node still waits for before it is ready: before the first pass, the
// models that serve; then a model that serves and cannot be read because etcd is away. "" if
// it waits for nothing.
func (a *Admission) Pending() string {
	what, _ := a.awaited.Load().(string)
	return what
}

// source is the published model versions as a follower reads them. [artefacts.Kind]
// implements it.
type source interface {
	All() map[string][]artefacts.Version   // by model, the oldest first
	Serving() map[string]artefacts.Version // by model, the version that answers requests
	Body(ctx context.Context, v artefacts.Version) ([]byte, error)
	History(ctx context.Context, name string) ([]ledger.Event, error)
	// Unkept returns why the bytes of a version that was read are not on disk; nil if
	// they are.
	Unkept(v artefacts.Version) error
	Changed() <-chan struct{} // closed at the next change
	Fault() error             // why etcd is not heard now; nil: it is
}

// topic is the topic of schemas. [schemalog.Log] implements it.
type topic interface {
	Moved() <-chan struct{} // closed when the schemas may have changed
	Read() bool             // whether all schemas have been read that were there when the node began
}

// Follower admits every version of the cluster's models as it comes, those that serve first,
// and tells the outcome for each. The broker decides which version answers a question.
type Follower struct {
	*Admission
	packs   source
	schemas topic
	tried   map[artefacts.Version]trial
	gone    map[artefacts.Version]time.Time // versions in tried that were seen to be dropped, and when
	census  *census                         // nil until a version is admitted
	linger  time.Duration                   // the constant lingers, or less in tests
	markers markers

	admitted []relevance.ID // versions admitted in the last pass
}

// trial is how the admission of a version ended.
type trial struct {
	refused error              // nil: it is admitted
	cost    int                // of an admitted version, in operations a record
	lacks   []members.Lack     // fields that an admitted version reads and no record has
	unread  bool               // its bytes could not be read
	deadly  bool               // it is not tried, because the node died while it admitted it
	known   *registry.Snapshot // the schemas under which it was tried
	early   bool               // not all schemas of the cluster had been read
}

// lingers is how long a version can still be used after it was dropped: brokers may not have
// heard of that yet.
const lingers = 30 * time.Second

// readAgain is the pause before bytes that could not be read are tried again.
const readAgain = 2 * time.Second

// Follow returns a follower of the versions in p. Until its first pass, Pending says that the
// node waits for the models that serve.
func (a *Admission) Follow(p source, schemas topic) *Follower {
	a.awaited.Store("the models that serve")
	return &Follower{Admission: a, packs: p, schemas: schemas, tried: map[artefacts.Version]trial{}, gone: map[artefacts.Version]time.Time{}, linger: lingers, markers: markers{a.cfg.Dir}}
}

// Run follows the models until ctx ends, and returns the error of ctx. After each pass it
// calls tell with the outcome for every version.
func (f *Follower) Run(ctx context.Context, tell func([]members.Admission)) error {
	for {
		changed, schemas := f.packs.Changed(), f.schemas.Moved()
		again := f.Admit(ctx)
		tell(f.admissions())
		for _, id := range f.admitted { // after the cluster was told: a push need not wait for this
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

// unkept reports whether an admitted version could not be written to disk. Writing is tried
// again, so its outcome has to be told again.
func (f *Follower) unkept() bool {
	for v, t := range f.tried {
		if t.refused == nil && f.packs.Unkept(v) != nil {
			return true
		}
	}
	return false
}

// Admit tries the versions that were not tried yet, those that could not be read, and those
// that were refused under other schemas than are known now. It also tries a version that
// killed the node, if a person has released it since. It reports whether a later call may
// have another outcome: a version could not be read, or was refused before all schemas
// were read.
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

// versions returns all versions: first those that serve, then the others, the newest of each
// model first.
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

// drop forgets each version that has been missing from the published versions, there, for
// f.linger.
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

// try tries to admit a version. t has known and early set; before is the trial before this
// one. The same refusal is not logged twice. While not all schemas have been read, a refusal
// is logged as information only: a node that starts with an empty disk has none at first.
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

// mark notes on disk that an admission begins. The error refuses a version that has killed
// the node mostDeaths times in a row, unless a person has released it since.
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
	if err := f.markers.begin(v, k); err != nil { // the model is admitted all the same: a full disk must not keep models from serving
		f.cfg.Log.Warn("nothing marks that a model is being admitted: a pack that kills the node kills it at each restart", "model", v.Name, "version", v.Version, "err", err)
	}
	return nil
}

// released returns when a person last released a version, that is, allowed it to be tried
// again. The zero time: nobody did, or etcd cannot be asked.
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

// lacksOf returns the fields that a version reads and that no record seen has, by content
// type. It sets the metric too.
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

// admitPack checks a pack, and adds its model to the models that can rank.
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

// awaits names a model that serves and could not be read because etcd is away; "" if there
// is none. A model that is refused is not waited for: other replicas may have it.
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

// admissions returns the outcome for each version that the cluster still has.
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
