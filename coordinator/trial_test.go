package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// shownLog is a log of exposures, in memory.
type shownLog struct {
	mu   sync.Mutex
	all  []exposure.Record
	took int // how many of all the Follow that began last has handed over
	more chan struct{}
	away error // it does not say where it ends
	id   string
	told string // the id that is known since Follow began; empty: none
}

// Whole implements [coordinator.Exposures].
func (l *shownLog) Whole(ctx context.Context) (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for want := len(l.all); l.took < want; {
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return time.Time{}, fmt.Errorf("%d of %d records: %w", l.took, want, ctx.Err())
		}
	}
	was := l.told
	if l.told = l.id; was != "" && was != l.id {
		return time.Time{}, exposure.Topic{Name: "exposures"}.Anew()
	}
	return time.Now(), l.away
}

// Topic implements [coordinator.Exposures].
func (l *shownLog) Topic() exposure.Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return exposure.Topic{Name: "exposures", ID: l.told}
}

// becomes makes it another log.
func (l *shownLog) becomes(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id = id
}

func (l *shownLog) goAway(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = why
}

func newShownLog() *shownLog { return &shownLog{id: "first", more: make(chan struct{})} }

func (l *shownLog) add(r ...exposure.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r...)
	close(l.more)
	l.more = make(chan struct{})
}

func (l *shownLog) Follow(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error {
	l.mu.Lock()
	l.told, l.took = "", 0
	l.mu.Unlock()
	for at := 0; ; {
		l.mu.Lock()
		batch, more := l.all[at:], l.more
		l.mu.Unlock()
		at += len(batch)
		for i := range batch {
			if batch[i].Time >= from {
				take(&batch[i])
			}
		}
		l.mu.Lock()
		l.took = at
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		}
	}
}

// trial is a cluster with one guarded experiment and coordinators.
type trial struct {
	*testing.T
	store   *experiments.Store
	cluster *cluster.Client
	log     *shownLog
	acts    *actLog
	viewers int
	leans   *leans
	keeping int           // units that coordinators keep; 0: as always
	yields  time.Duration // how long they lead blind; 0: as always
}

// leans is what an experiment leans on, as tests say it.
type leans struct {
	mu       sync.Mutex
	waits    string
	basis    compare.Basis
	revision int64
}

func (l *leans) Waits(context.Context, *experiment.Experiment) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits
}

func (l *leans) Basis(context.Context, *experiment.Experiment) (compare.Basis, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.basis, nil
}

func (l *leans) Revision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revision
}

// become changes what is leant on.
func (l *leans) become(by func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	by()
	l.revision++
}

// actLog is a log of what viewers did, in memory. Every other reading fails.
type actLog struct {
	mu    sync.Mutex
	all   []outcome.Act
	asked []experiment.Outcomes
	reads int
	lacks error         // of each reading; nil: none
	id    string        // of the topic
	other millrace.Time // when an outcome came that belongs to nothing
	told  outcome.Report
	came  []coordinator.Came // besides; nil: none
}

func (l *actLog) open(of *experiment.Experiment, _ millrace.Time) coordinator.Acts {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, *of.Outcomes)
	return l
}

// Read implements [coordinator.Acts].
func (l *actLog) Read(_ context.Context, take func(*outcome.Act)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lacks != nil {
		return l.lacks
	}
	if l.reads++; l.reads%2 == 1 {
		return errors.New("the log is away")
	}
	for i := range l.all { // again and again
		take(&l.all[i])
	}
	return nil
}

// Newest implements [coordinator.Acts].
func (l *actLog) Newest() millrace.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.other
	for i := range l.all {
		newest = max(newest, l.all[i].At)
	}
	return newest
}

// Course implements [coordinator.Acts].
func (l *actLog) Course() *outcome.Course {
	l.mu.Lock()
	defer l.mu.Unlock()
	came := slices.Clone(l.came)
	for i := range l.all {
		came = append(came, coordinator.Came{At: l.all[i].At, Right: 1})
	}
	return coordinator.CourseOf(came...)
}

// Told implements [coordinator.Acts].
func (l *actLog) Told() outcome.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

// Whole implements [coordinator.Acts].
func (l *actLog) Whole() time.Time { return time.Now() }

// Topic implements [coordinator.Acts].
func (l *actLog) Topic() exposure.Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return exposure.Topic{Name: "clicks", ID: l.id}
}

// click lets a viewer click now on what they were shown then.
func (l *actLog) click(variant string, viewer int, shown time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, outcome.Act{Action: "click", At: millrace.TimeOf(time.Now()), Shown: millrace.TimeOf(shown), Experiments: []exposure.Experiment{{Experiment: "e", Variant: variant, Unit: viewerOf(variant, viewer)}}})
}

func newTrial(t *testing.T, document string) *trial {
	t.Helper()
	etcd, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	return newTrialAt(t, etcd.Addr(), document)
}

func newTrialAt(t *testing.T, etcd, document string) *trial {
	t.Helper()
	tr := (&trial{T: t, log: newShownLog(), acts: &actLog{}, leans: &leans{}}).of(etcd)
	if _, err := tr.store.Define(t.Context(), "d", []byte(document)); err != nil {
		t.Fatal(err)
	}
	return tr
}

// by is the same trial with coordinators by another client of its etcd.
func (t *trial) by(etcd string) *trial {
	t.Helper()
	cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd}, Name: "test", Wait: 2 * time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	other := *t
	other.cluster = cl
	return &other
}

// of is the same trial by another client of its etcd.
func (t *trial) of(etcd string) *trial {
	t.Helper()
	other := t.by(etcd)
	documents, err := artefacts.Watch(t.Context(), other.cluster, experiments.Kind)
	if err != nil {
		t.Fatal(err)
	}
	other.store = &experiments.Store{Documents: documents, Who: "somebody@somewhere"}
	return other
}

// coordinate runs a coordinator until what it returns is called.
func (t *trial) coordinate(name string) (c *coordinator.Coordinator, stop func()) {
	t.Helper()
	c, err := coordinator.New(coordinator.Config{
		Leans: t.leans, Cluster: t.cluster, Name: name, Exposures: t.log, Outcomes: t.acts.open, Every: 20 * time.Millisecond, CompareEvery: -1, Log: slog.New(slog.DiscardHandler),
	}.Settling(time.Second).Keeping(t.keeping).Yielding(t.yields))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return c, stop
}

// alarms returns how many experiments a metric says that guards have paused.
func alarms(c *coordinator.Coordinator) (n int) {
	all := make(chan prometheus.Metric, 100)
	c.Collect(all)
	close(all)
	for m := range all {
		if strings.Contains(m.Desc().String(), "experiment_paused") {
			n++
		}
	}
	return n
}

// viewerOf returns a viewer of their own whom the hash deals a variant.
func viewerOf(variant string, n int) string {
	for i := 0; ; i++ {
		id := fmt.Sprintf("v%d.%d", n, i)
		if draw := slot.Draw("s", "e", id); (draw < 5000) == (variant == "a") {
			return id
		}
	}
}

// show lets so many new viewers be shown something, the variants by turns.
func (t *trial) show(n int, change func(r *exposure.Record, variant string)) {
	var all []exposure.Record
	for range n {
		t.viewers++
		variant := []string{"a", "b"}[t.viewers%2]
		r := exposure.Record{
			ID: fmt.Sprint(t.viewers), Time: millrace.TimeOf(time.Now()), Feed: "f", TimelinesAsked: 1, TimelinesAnswered: 1, Millis: float64(t.viewers % 7),
			Experiments: []exposure.Experiment{{Layer: "l", Experiment: "e", Variant: variant, Unit: viewerOf(variant, t.viewers)}},
			Items:       []exposure.Item{{Place: 1, Entity: "x", Team: -1}},
		}
		if change != nil {
			change(&r, variant)
		}
		all = append(all, r)
	}
	t.log.add(all...)
}

func (t *trial) now() experiment.Experiment {
	t.Helper()
	st, err := t.store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, err := st.Find("e")
	if err != nil {
		t.Fatal(err)
	}
	return d.Experiment
}

// becomes waits until the experiment is so.
func (t *trial) becomes(state experiment.State, share int) {
	t.Helper()
	t.becoming(state, share, func() {})
}

// becoming is becomes, while something goes on.
func (t *trial) becoming(state experiment.State, share int, meanwhile func()) {
	t.Helper()
	for began := time.Now(); ; meanwhile() {
		e := t.now()
		if e.State == state && e.Share == share {
			return
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("it is %s with %d, and not %s with %d", e.State, e.Share, state, share)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// decisions returns what coordinators did, oldest first.
func (t *trial) decisions() (all []string) {
	t.Helper()
	events, err := t.store.Documents.History(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.What == ledger.Served && strings.HasPrefix(e.Who, "coordinator ") {
			all = append(all, e.Who)
		}
	}
	return all
}

// gaugeOf returns a metric without labels; -1: there is none.
func gaugeOf(c *coordinator.Coordinator, name string) float64 {
	all := make(chan prometheus.Metric, 100)
	c.Collect(all)
	close(all)
	for m := range all {
		var out dto.Metric
		if strings.Contains(m.Desc().String(), name) && m.Write(&out) == nil {
			return out.GetGauge().GetValue()
		}
	}
	return -1
}

// says waits until a coordinator says something of the experiment.
func (t *trial) says(what string) experiments.Look {
	t.Helper()
	return t.saying(what, func() {})
}

// saying is says, while something goes on.
func (t *trial) saying(what string, meanwhile func()) experiments.Look {
	t.Helper()
	trails, err := experiments.OpenTrails(t.Context(), t.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; meanwhile() {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.Contains(trail.Looked.Says, what) {
			return *trail.Looked
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("it does not say %q: %+v, %v", what, trail.Looked, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
