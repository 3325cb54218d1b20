package coordinator_test

import (
	"context"
	"encoding/json"
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
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/steering"
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
	cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd}, Name: "test", Log: slog.New(slog.DiscardHandler)})
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

const rampedDocument = `# a comment
layers: [{name: l, salt: s, unit: viewer}]
experiments:
  - name: e
    layer: l
    feeds: [f]
    state: running
    slots: [0-9999]
    share: 100
    variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {limit: 3}}]
    ramp: {steps: [100, 1000, 10000], viewers: 50}
    guards: {refused: 1, empty: 1}
`

// An experiment that does well is ramped to its end, a step at a time, each for
// viewers of its own; whoever leads goes on where the one before was.
func TestRampsByItself(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	_, stop := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(98, nil)
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by 49 viewers of each variant", e.Share)
	}
	tr.show(10, nil)
	tr.becomes(experiment.Running, 1000)
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 1000 {
		t.Fatal("the viewers of one step are those of the next")
	}
	stop()
	tr.show(120, nil) // while nobody leads
	tr.coordinate("two")
	tr.becomes(experiment.Running, 10_000)
	did := tr.decisions()
	if len(did) != 2 || !strings.Contains(did[0], "coordinator one: ramped e to 1000 of 10,000: no guard after") || !strings.Contains(did[1], "coordinator two: ramped e to 10000") {
		t.Errorf("%q", did)
	}
	st, err := tr.store.Read(t.Context())
	if err != nil || !strings.HasPrefix(string(st.Texts["d"]), "# a comment\n") {
		t.Errorf("%v\n%s", err, st.Texts["d"])
	}
}

// A document of before guards that compare with nothing were refused runs on: neither is
// it paused, since viewers of one variant alone fit any weights, nor ramped, whatever
// they are shown, and it is not watched. It is steered, and not defined again.
func TestGuardsThatCompareWithNothing(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, strings.Replace(rampedDocument, "running", "draft", 1))
	old := strings.Replace(rampedDocument, "a, weight: 5000}, {name: b, weight: 5000", "a, weight: 0}, {name: b, weight: 10000", 1)
	docs := tr.store.Documents
	v, _, err := docs.Publish(t.Context(), "d", "2", []byte(old), "somebody")
	if err == nil {
		err = docs.Serve(t.Context(), v, nil, "somebody")
	}
	if err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(200, func(r *exposure.Record, _ string) { // by the draw b is dealt to all
		r.Experiments[0].Variant, r.Items = "b", nil
	})
	const want = "its guards compare with nothing: b alone has viewers"
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if l := trail.Looked; err == nil && l != nil && l.Says == want && l.Blind == want && slices.ContainsFunc(l.Inputs, func(s string) bool {
			return strings.HasPrefix(s, "b: 200 viewers, 200 at this share; refused 0, empty 200")
		}) {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%v: %+v", err, trail.Looked)
		}
	}
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 || len(tr.decisions()) > 0 {
		t.Errorf("it is %s with %d: %q", e.State, e.Share, tr.decisions())
	}
	if _, err := tr.store.Define(t.Context(), "d", []byte(old+"# again\n")); err == nil || !strings.Contains(err.Error(), "experiments[0].guards: "+want+"; give the control a weight") {
		t.Errorf("defined again: %v", err)
	}
	if _, err := tr.store.Define(t.Context(), "d", []byte(old[:strings.Index(old, "    ramp:")])); err != nil {
		t.Errorf("without its guards: %v", err)
	}
}

// What becomes of another experiment of its document, by a person or by a
// coordinator, begins neither a step nor the evidence of an experiment anew; what
// becomes of itself does.
func TestSiblingsBeginNothingAnew(t *testing.T) {
	sibling := strings.NewReplacer("name: e", "name: f", "[0-9999]", "[5000-9999]").Replace(rampedDocument[strings.Index(rampedDocument, "  - name: e"):])
	tr := newTrial(t, strings.Replace(rampedDocument, "[0-9999]", "[0-4999]", 1)+sibling)
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(80, nil)
	steer := func(who, name string, share int) {
		t.Helper()
		store := experiments.Store{Documents: tr.store.Documents, Known: tr.store.Known, Who: who}
		if _, err := store.Steer(t.Context(), name, func(now experiment.Experiment) (experiment.State, int, error) {
			return now.State, share, nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) // the coordinator looks at it
	}
	steer("somebody@somewhere", "f", 200)
	steer("coordinator two: ramped f to 1000 of 10,000: no guard", "f", 1000)
	tr.show(30, nil)
	tr.becomes(experiment.Running, 1000)
	if did := tr.decisions(); !strings.Contains(did[len(did)-1], "55 of a, 55 of b") {
		t.Errorf("%q", did)
	}
	steer("somebody@somewhere", "e", 1500)
	tr.show(40, nil)
	steer("coordinator two: ramped e to 2000 of 10,000: no guard", "e", 2000)
	tr.show(80, nil)
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 2000 {
		t.Errorf("the viewers of its own steps are those of the next: %d", e.Share)
	}
	tr.show(30, nil)
	tr.becomes(experiment.Running, 10_000)
}

// Coordinators change a document so often that its history tells of no person any more.
// Whoever leads next knows since when evidence counts all the same: what was shown
// before a person's change pauses nothing, and no step is taken by viewers of the one
// before; nor where the last look still told since when an earlier share was what it was.
func TestALongHistoryBeginsNoEvidenceEarlier(t *testing.T) {
	t.Parallel()
	t.Run("noted", func(t *testing.T) { t.Parallel(); testALongHistory(t, false) })
	t.Run("noted of an earlier share", func(t *testing.T) { t.Parallel(); testALongHistory(t, true) })
}

func testALongHistory(t *testing.T, earlier bool) {
	t.Helper()
	began := millrace.TimeOf(time.Now()).Std().UTC()
	sibling := strings.NewReplacer("name: e", "name: f", "[0-9999]", "[5000-9999]").Replace(rampedDocument[strings.Index(rampedDocument, "  - name: e"):])
	tr := newTrial(t, strings.Replace(rampedDocument, "[0-9999]", "[0-4999]", 1)+sibling)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.show(200, func(r *exposure.Record, variant string) {
		if r.Time -= 3_600_000; variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.show(120, nil)
	_, stop := tr.coordinate("one")
	tr.becomes(experiment.Running, 1000)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if l := trail.Looked; err == nil && l != nil && l.Share == 1000 && !trail.SteppedSince(l.Stay.Since) {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%+v, %v", trail.Looked, err)
		}
	}
	stop()
	if earlier {
		docs, err := documents.Watch(t.Context(), tr.cluster, experiments.TrailsKind)
		if err != nil {
			t.Fatal(err)
		}
		if err := docs.Change(t.Context(), "e", func(body string) (string, error) {
			var trail experiments.Trail
			err := json.Unmarshal([]byte(body), &trail)
			trail.Looked.Stay.Since = began
			next, fault := json.Marshal(trail)
			return string(next), errors.Join(err, fault)
		}); err != nil {
			t.Fatal(err)
		}
	}
	tr.show(98, nil)
	store := experiments.Store{Documents: tr.store.Documents, Known: tr.store.Known}
	for i := range 60 {
		share := 200 + i
		store.Who = fmt.Sprintf("coordinator one: ramped f to %d of 10,000: no guard", share)
		if _, err := store.Steer(t.Context(), "f", func(now experiment.Experiment) (experiment.State, int, error) {
			return now.State, share, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	events, err := store.Documents.History(t.Context(), "d")
	if err != nil || slices.ContainsFunc(events, func(e ledger.Event) bool {
		return e.What != ledger.Dropped && !strings.HasPrefix(e.Who, "coordinator one: ramped f")
	}) {
		t.Fatalf("%v, the history begins with %+v", err, events[0])
	}
	tr.coordinate("two")
	time.Sleep(3 * time.Second)
	if e := tr.now(); e.State != experiment.Running || e.Share != 1000 {
		t.Fatalf("%s with %d, by what was shown before", e.State, e.Share)
	}
	if tr.show(20, nil); earlier { // those of before the oldest change that is kept are not known to be fresh
		tr.show(100, nil)
	}
	tr.becomes(experiment.Running, 10_000)
}

// When a feed or a model is another, evidence begins anew: what was shown before, or is
// still shown by who has not heard of it, pauses nothing and ramps nothing, whoever
// leads; and the time of the step begins anew.
func TestEvidenceIsOfWhatRanksNow(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	former := func(r *exposure.Record, variant string) {
		r.FeedVersion = 1
		r.Models = []exposure.Model{{Name: "m", Version: "1"}}
	}
	hurt := func(r *exposure.Record, variant string) {
		if former(r, variant); variant == "b" {
			r.Items = nil
		}
	}
	now := func(r *exposure.Record, _ string) {
		r.FeedVersion = 3
		r.Models = []exposure.Model{{Name: "m", Version: "2"}}
	}
	_, stop := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(10, hurt)
	time.Sleep(500 * time.Millisecond)
	tr.leans.become(func() {
		tr.leans.basis = compare.Basis{Since: time.Now().UTC().Truncate(time.Millisecond), Why: "feed f came to its version 3", Feeds: map[string][]int64{"f": {3, 2}}, Models: map[string]string{"m": "2"}}
	})
	time.Sleep(500 * time.Millisecond)
	tr.show(300, hurt) // by a broker that has not heard of it
	tr.show(98, now)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.Contains(strings.Join(trail.Looked.Inputs, " "), "a: 49 viewers, 49 at this share") {
			if trail.Looked.Anew != "feed f came to its version 3" || !trail.Looked.Since.Equal(tr.leans.basis.Since) {
				t.Errorf("%+v", trail.Looked)
			}
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%+v, %v", trail.Looked, err)
		}
	}
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 {
		t.Fatalf("%s with %d, by what was shown before", e.State, e.Share)
	}
	stop()
	tr.coordinate("two")
	time.Sleep(time.Second)
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 {
		t.Fatalf("%s with %d, by what was shown before", e.State, e.Share)
	}
	tr.show(10, now)
	tr.becomes(experiment.Running, 1000)
}

// Etcd goes back to an older version of a model while brokers still rank by the newer
// one: what they show of the variant that ranks by it is no evidence, and what they show
// of the other is. That is no reason to pause: viewers are dealt as before. It is told
// until the versions are the same again.
func TestAModelThatWentBackPausesNothing(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	by := func(version string) func(*exposure.Record, string) {
		return func(r *exposure.Record, variant string) {
			if variant == "b" {
				r.Models = []exposure.Model{{Name: "rate", Version: version}}
			}
		}
	}
	tr.leans.become(func() {
		tr.leans.basis = compare.Basis{Since: time.Now().UTC().Truncate(time.Millisecond), Why: "model rate came to version 4", Models: map[string]string{"rate": "4"}}
	})
	tr.coordinate("one")
	tr.show(40, by("4"))
	tr.says("viewers of each variant are to see something")
	tr.leans.become(func() { // its history is that of the backup
		tr.leans.basis = compare.Basis{Models: map[string]string{"rate": "1"}}
	})
	time.Sleep(500 * time.Millisecond)
	tr.show(300, by("4"))
	l := tr.says("guards of rates are blind: answers of b are no evidence")
	if l.Blind != l.Says {
		t.Errorf("%+v", l)
	}
	tr.show(4000, by("1"))
	tr.becomes(experiment.Running, 1000)
}

// Two coordinators that run take each step once. One that believes to lead, and
// decides by what was so before the other's step, changes nothing.
func TestTwoCoordinatorsDecideOnce(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	before := tr.now()
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	tr.coordinate("two")
	tr.becoming(experiment.Running, 1000, func() { tr.show(10, nil) })
	tr.becoming(experiment.Running, 10_000, func() { tr.show(10, nil) })
	want := tr.decisions()
	for _, v := range []compare.Verdict{{Share: 1000, Why: "no guard"}, {Share: 10_000, Why: "no guard"}, {Pause: true, Why: "a guard"}} {
		if err := coordinator.Decide(t.Context(), "late", tr.store, trails, before, v); err != nil {
			t.Errorf("%+v: %v", v, err)
		}
	}
	if e := tr.now(); e.State != experiment.Running || e.Share != 10_000 {
		t.Errorf("it is %s with %d", e.State, e.Share)
	}
	trail, err := trails.Of("e")
	for end := time.Now().Add(time.Minute); len(trail.Decisions) < 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		trail, err = trails.Of("e") // it is noted after the step, and heard of later
	}
	if did := tr.decisions(); err != nil || len(did) != 2 || len(want) != 2 || len(trail.Decisions) != 2 {
		t.Errorf("%q, %+v, %v", did, trail.Decisions, err)
	}
}

// A step that was decided by a definition that a person has replaced since is not taken,
// though the share is the same; a pause is.
func TestNoStepByAFormerDefinition(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	judged := tr.now()
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	decide := func(v compare.Verdict) {
		t.Helper()
		if err := coordinator.Decide(t.Context(), "one", tr.store, trails, judged, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{
		strings.Replace(rampedDocument, "viewers: 50", "viewers: 5000", 1),
		strings.Replace(rampedDocument, "empty: 1", "empty: 2", 1),
	} {
		if _, err := tr.store.Define(t.Context(), "d", []byte(other)); err != nil {
			t.Fatal(err)
		}
		if decide(compare.Verdict{Share: 1000, Why: "no guard"}); tr.now().Share != 100 {
			t.Fatalf("a step by what was judged before\n%s", other)
		}
	}
	if decide(compare.Verdict{Pause: true, Why: "a guard"}); tr.now().State != experiment.Paused {
		t.Error("it hurts, and runs on")
	}
}

// One that hurts is paused, with the reason, and stays so until a person resumes
// it: then the evidence begins anew.
func TestGuardsPause(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	c, _ := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	refuse := func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	}
	began := time.Now()
	tr.show(80, refuse)
	tr.becomes(experiment.Paused, 100)
	t.Logf("paused after %s", time.Since(began))
	if did := tr.decisions(); len(did) != 1 || !strings.Contains(did[0], "coordinator one: paused e: refused of b: ") {
		t.Errorf("%q", did)
	}
	tr.show(80, refuse)
	time.Sleep(time.Second)
	if did := tr.decisions(); len(did) != 1 || alarms(c) != 1 {
		t.Errorf("%q, %d alarms", did, alarms(c))
	}
	if _, err := tr.store.Steer(t.Context(), "e", func(now experiment.Experiment) (experiment.State, int, error) {
		return experiment.Running, now.Share, nil
	}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	tr.show(120, nil)
	tr.becomes(experiment.Running, 1000)
	if alarms(c) != 0 {
		t.Error("an alarm for what runs")
	}
	tr.show(80, refuse)
	tr.becomes(experiment.Paused, 1000)
}

// An alarm holds for as long as nobody has acted, however often a person changes what else
// stands in the document: so often that its history does not tell of the pause any more, or
// the versions that it is told by are gone. A person who started it again and paused it
// has acted, also where the history does not tell that either.
func TestAnAlarmHoldsUntilAPersonActs(t *testing.T) {
	t.Parallel()
	sibling := strings.NewReplacer("name: e", "name: f", "[0-9999]", "[5000-9999]").Replace(rampedDocument[strings.Index(rampedDocument, "  - name: e"):])
	tr := newTrial(t, strings.Replace(rampedDocument, "[0-9999]", "[0-4999]", 1)+sibling)
	c, _ := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 100)
	await := func(n int, when string) {
		t.Helper()
		for began := time.Now(); alarms(c) != n; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("%s: %d alarms, and not %d", when, alarms(c), n)
			}
		}
	}
	await(1, "it is paused")
	share := 100
	siblings := func(until func(events []ledger.Event) bool) {
		t.Helper()
		for {
			share++
			if _, err := tr.store.Steer(t.Context(), "f", func(now experiment.Experiment) (experiment.State, int, error) { return now.State, share, nil }); err != nil {
				t.Fatal(err)
			}
			events, err := tr.store.Documents.History(t.Context(), "d")
			if err != nil {
				t.Fatal(err)
			}
			if until(events) {
				time.Sleep(time.Second) // the coordinator looks at it
				return
			}
		}
	}
	tells := func(events []ledger.Event) bool {
		return slices.ContainsFunc(events, func(e ledger.Event) bool { return strings.Contains(e.Who, "paused e") })
	}
	changes := 0
	siblings(func(events []ledger.Event) bool { changes++; return changes == 34 })
	await(1, "the versions of then are gone")
	siblings(func(events []ledger.Event) bool { return !tells(events) })
	await(1, "its history does not tell of it")
	// By a person, until the history tells of that no more.
	for _, state := range []experiment.State{experiment.Running, experiment.Paused} {
		acted := time.Now()
		if _, err := tr.store.Steer(t.Context(), "e", func(now experiment.Experiment) (experiment.State, int, error) { return state, now.Share, nil }); err != nil {
			t.Fatal(err)
		}
		if state == experiment.Running {
			for tr.saying("no guard says stop", func() {}).When.Before(acted) {
				time.Sleep(20 * time.Millisecond)
			}
		}
		await(0, "a person has acted")
	}
	siblings(func(events []ledger.Event) bool {
		return !slices.ContainsFunc(events, func(e ledger.Event) bool { return strings.Contains(e.Who, "experiment e: ") })
	})
	await(0, "its history does not tell that a person has acted")
}

// What is decided and cannot be done is told where one looks for it; not so where
// nobody is to do it any more, or etcd is away.
func TestADecisionThatCannotBeDoneIsTold(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	lead, err := tr.cluster.Lead(t.Context(), cluster.Leader{Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	fails := func(v compare.Verdict, why error, within time.Duration) string {
		t.Helper()
		if err := coordinator.Fails(t.Context(), lead, "one", trails, tr.now(), v, why); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // until it is heard of
			if trail, err := trails.Of("e"); err == nil && trail.Looked != nil {
				return trail.Unwatched(nil, trail.Looked.When, trail.Looked.When)
			}
		}
		return ""
	}
	pause := compare.Verdict{Pause: true, Why: "refused of b"}
	for _, why := range []error{cluster.ErrNotLeader, cluster.ErrLost, fmt.Errorf("a call: %w", cluster.ErrAway)} {
		if says := fails(pause, why, 500*time.Millisecond); says != "" {
			t.Errorf("%v: %s", why, says)
		}
	}
	if says := fails(pause, errors.New("no room"), time.Minute); !strings.HasPrefix(says, "it is to be paused (refused of b), and cannot: no room") {
		t.Error(says)
	}
}

// A pause needs no text of etcd: a coordinator knows what it watches.
func TestAPauseOfWhatEtcdHasLost(t *testing.T) {
	t.Parallel()
	etcd, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	tr := newTrialAt(t, etcd.Addr(), rampedDocument)
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	lost, err := raw.Delete(t.Context(), "/millrace/test/bodies/experiments/d/", clientv3.WithPrefix())
	if err != nil || lost.Deleted == 0 {
		t.Fatalf("no text was there: %v", err)
	}
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		st, err := tr.store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d, err := st.Find("e"); err == nil && d.Experiment.State == experiment.Paused {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal("it is not paused")
		}
	}
}

// Why a ramp is where it is can be read at any time: what it waits for, and of
// each step by what it was decided. Who holds it keeps it from its next step, and
// guards pause it all the same.
func TestRampsSayWhyAndAreHeld(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, is func(experiments.Trail) bool) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			trail, err := trails.Of("e")
			if err == nil && is(trail) {
				return
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("not %s: %+v, %v", what, trail, err)
			}
		}
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{When: time.Now(), By: "ann@desk", Why: "a sale"}); err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(120, nil)
	until("held", func(x experiments.Trail) bool {
		return x.Looked != nil && strings.Contains(x.Looked.Says, "ann@desk holds its next step") && len(x.Looked.Inputs) > 2
	})
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("it is held, and ramped to %d", e.Share)
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{By: "bob"}); err == nil {
		t.Error("held twice")
	}
	if err := trails.Resume(t.Context(), "e", "ann@desk", time.Now()); err != nil {
		t.Fatal(err)
	}
	tr.becomes(experiment.Running, 1000)
	until("ramped", func(x experiments.Trail) bool {
		return len(x.Decisions) == 3 && x.Hold == nil && x.Decisions[1].What == "resumed e" && strings.Contains(x.Decisions[2].What, "ramped e to 1000") && strings.Contains(x.Decisions[2].Why, "60 of a") && strings.Contains(strings.Join(x.Decisions[2].Inputs, "\n"), "a: 60 viewers, 60 at this share")
	})
	if err := trails.Hold(t.Context(), "e", experiments.Hold{By: "ann@desk"}); err != nil {
		t.Fatal(err)
	}
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 1000)
	until("paused", func(x experiments.Trail) bool {
		return len(x.Decisions) == 5 && strings.Contains(x.Decisions[4].Why, "refused of b") && strings.Contains(strings.Join(x.Decisions[4].Inputs, "\n"), "refused of b: ")
	})
}

// A ramp waits for what else it is told to, says so, and goes on when that is over.
// Guards pause meanwhile.
func TestRampsWait(t *testing.T) {
	for _, over := range []bool{true, false} {
		tr := newTrial(t, rampedDocument)
		trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
		if err != nil {
			t.Fatal(err)
		}
		tr.leans.waits = "variant b of e is not applied"
		tr.show(120, nil)
		tr.coordinate("one")
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if trail, err := trails.Of("e"); err == nil && trail.Looked != nil && trail.Looked.Says == "variant b of e is not applied" {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatal("it does not say what it waits for")
			}
		}
		if e := tr.now(); e.Share != 100 {
			t.Fatalf("it waits, and is ramped to %d", e.Share)
		}
		if over {
			tr.leans.become(func() { tr.leans.waits = "" })
			tr.show(120, nil)
			tr.becomes(experiment.Running, 1000)
			continue
		}
		tr.show(200, func(r *exposure.Record, variant string) {
			if variant == "b" {
				r.Refusal, r.Items = "UNAVAILABLE", nil
			}
		})
		tr.becomes(experiment.Paused, 100)
	}
}

// A ramp takes no step while it is not known that all that was shown has been read,
// nor soon after, when what brokers could not write is still coming; it says so, and
// how old its evidence is. Guards pause by what has come.
func TestRampsWaitForTheEvidence(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	says := func(what string) (l experiments.Look) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			trail, err := trails.Of("e")
			if err == nil && trail.Looked != nil && strings.Contains(trail.Looked.Says+trail.Looked.Blind, what) {
				return *trail.Looked
			}
			if time.Since(began) > 60*time.Second {
				t.Fatalf("it does not say %q: %+v, %v", what, trail.Looked, err)
			}
		}
	}
	tr.log.goAway(errors.New("the log is frozen"))
	tr.show(120, nil)
	c, _ := tr.coordinate("one")
	says("no step is taken without: the log is frozen")
	if l := says("s by one, which leads and lets another lead after 30s: the log is frozen"); time.Since(l.Whole) < 10*time.Second || l.Newest.IsZero() || l.Share != 100 {
		t.Errorf("%+v", l)
	}
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by a log that is frozen", e.Share)
	}
	if age := gaugeOf(c, "evidence_seconds"); age < 10 {
		t.Errorf("evidence is %v s old", age)
	}
	tr.log.goAway(nil)
	back := time.Now()
	tr.becomes(experiment.Running, 1000)
	if time.Since(back) < time.Second {
		t.Error("ramped before what waited could come")
	}
	if age := gaugeOf(c, "evidence_seconds"); age > 10 {
		t.Errorf("evidence is still %v s old", age)
	}
	cut := exposure.Topic{Name: "exposures"}.Anew()
	tr.log.becomes("second")
	tr.becoming(experiment.Running, 10_000, func() { tr.show(20, nil) })
	var noted, ramped time.Time
	for began := time.Now(); ramped.IsZero() && time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		trail, _ := trails.Of("e")
		for _, d := range trail.Decisions {
			switch {
			case d.Cut && d.What == "found evidence of e cut" && d.Why == cut.Error():
				noted = d.When
			case d.What == "ramped e to 10000 of 10,000":
				ramped = d.When
			}
		}
	}
	if noted.IsZero() || ramped.Sub(noted) < time.Second/2 {
		t.Errorf("evidence was cut at %s, and a step taken at %s", noted, ramped)
	}
	tr.log.goAway(errors.New("the log is frozen"))
	tr.show(200, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 10_000)
}

// A coordinator that leads anew tells that a topic was made again while nobody looked,
// once, as the one before had done; and takes no step before what is left has settled.
func TestANewLeaderTellsThatEvidenceIsCut(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, strings.Replace(rampedDocument, "guards: {refused: 1, empty: 1}\n", clickedDocument, 1))
	tr.acts.id = "first"
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	reads := func(shown, did string) experiments.Trail {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			trail, err := trails.Of("e")
			if err == nil && trail.Sources.Exposures.ID == shown && trail.Sources.Outcomes.ID == did {
				return trail
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("evidence is from %+v, %v", trail.Sources, err)
			}
		}
	}
	_, stop := tr.coordinate("one")
	if trail := reads("first", "first"); len(trail.Decisions) > 0 {
		t.Errorf("%+v", trail.Decisions)
	}
	stop()
	_, stop = tr.coordinate("two") // of the same topics
	tr.says("")
	stop()
	tr.log.becomes("second")
	tr.acts.id = "second"
	tr.show(120, nil)
	tr.acts.click("a", 2, time.Now())
	tr.coordinate("three")
	tr.becoming(experiment.Running, 1000, func() { tr.acts.click("a", 2, time.Now()) })
	var did []string
	var cut, step time.Time
	told := reads("second", "second")
	for began := time.Now(); len(told.Decisions) < 3 && time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		told = reads("second", "second") // the step's document may be known before its reason
	}
	for _, d := range told.Decisions {
		did = append(did, d.By+" "+d.What+" "+d.Why)
		if step = d.When; d.Cut {
			cut = d.When
		}
	}
	const found = "three found evidence of e cut kafka: topic "
	if len(did) != 3 || !strings.HasPrefix(did[0], found+"exposures is another") || !strings.HasPrefix(did[1], found+"clicks is another") || !strings.HasPrefix(did[2], "three ramped e to 1000") {
		t.Errorf("%q", did)
	}
	if cut.IsZero() || step.Sub(cut) < time.Second/2 {
		t.Errorf("evidence was cut at %s, and a step taken at %s", cut, step)
	}
}

// A coordinator keeps no more units than it has room for, and does not say that it
// watches what it has none for: no step is taken by a part of the evidence.
func TestUnitsBeyondTheRoomAreNotWatched(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.keeping = 50
	c, stop := tr.coordinate("one")
	tr.show(120, nil)
	const want = "guards are blind to new viewers: there is no room for more, by 70 answers and 0 acts, of 5000000 of an experiment and 50 of all experiments with guards; "
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.HasPrefix(trail.Looked.Blind, want) && strings.HasPrefix(trail.Looked.Says, want) {
			break
		}
		if time.Since(began) > 60*time.Second {
			t.Fatalf("it is not blind: %+v, %v", trail.Looked, err)
		}
	}
	if n, most := gaugeOf(c, "coordinator_units\""), gaugeOf(c, "coordinator_units_most"); n != 50 || most != 50 {
		t.Errorf("%v units of %v are kept", n, most)
	}
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by a part of the evidence", e.Share)
	}
	stop()
	tr.keeping = 120
	tr.coordinate("two")
	tr.becomes(experiment.Running, 1000)
}

// A leader that alone cannot read what was shown lets another lead, which ramps. Where
// nobody can, the lead goes round once and stays.
func TestABlindLeaderLetsAnotherLead(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	tr.yields = 2 * time.Second
	other := *tr
	other.log = newShownLog()
	leads := func(name string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if who, ok, err := tr.cluster.Leader(t.Context()); err == nil && ok && who.Name == name {
				return
			}
			if time.Since(began) > 60*time.Second {
				t.Fatalf("%s does not lead", name)
			}
		}
	}
	tr.log.goAway(errors.New("cut off"))
	tr.coordinate("one")
	leads("one")
	_, stop := other.coordinate("two")
	leads("two")
	other.show(120, nil)
	tr.becomes(experiment.Running, 1000)
	other.log.goAway(errors.New("cut off too"))
	leads("one")
	stop()
	other.coordinate("three")
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.Contains(trail.Looked.Blind, "by one, which leads again after it let others lead: cut off") {
			break
		}
		if time.Since(began) > 60*time.Second {
			t.Fatalf("%+v, %v", trail.Looked, err)
		}
	}
}

// Where there is little memory there is room for fewer units.
func TestUnitsFitTheMemory(t *testing.T) {
	for bytes, want := range map[int64]int{0: 10_000_000, 512 << 20: 1_193_046, 1 << 30: 2_386_092, 64 << 30: 10_000_000} {
		if got := coordinator.UnitsIn(bytes); got != want {
			t.Errorf("of %d bytes %d units, want %d", bytes, got, want)
		}
	}
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

// A coordinator that led, was frozen and wakes notes nothing over what the one says
// that leads now.
func TestAFormerLeaderNotesNoLook(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	former, err := tr.cluster.Lead(t.Context(), cluster.Leader{Name: "former"})
	if err != nil {
		t.Fatal(err)
	}
	if err := coordinator.NoteLook(t.Context(), former, "former", trails, tr.now()); err != nil {
		t.Fatal(err)
	}
	depose(t, tr.cluster)
	now, err := tr.cluster.Lead(t.Context(), cluster.Leader{Name: "now"})
	if err != nil {
		t.Fatal(err)
	}
	if err := coordinator.NoteLook(t.Context(), now, "now", trails, tr.now()); err != nil {
		t.Fatal(err)
	}
	if err := coordinator.NoteLook(t.Context(), former, "former", trails, tr.now()); !errors.Is(err, cluster.ErrNotLeader) {
		t.Errorf("a former leader looks: %v", err)
	}
	end := time.Now().Add(5 * time.Minute)
	for trail, err := trails.Of("e"); trail.Looked == nil || trail.Looked.By != "now"; trail, err = trails.Of("e") {
		if err != nil || time.Now().After(end) {
			t.Fatal(trail, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Notes that somebody wrote by hand, and are none, are written anew: nothing hangs
// on them, guards neither.
func TestNotesThatAreNone(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	garbage := func() error {
		return steering.Change(t.Context(), tr.cluster, nil, func(s *steering.State) error {
			s.Documents["notes"] = "garbage"
			return nil
		})
	}
	if err := garbage(); err != nil {
		t.Fatal(err)
	}
	c, _ := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 100)
	if _, fault := c.Leads(); fault != nil {
		t.Error(fault)
	}
	if _, _, err := coordinator.Look(t.Context(), tr.cluster); err != nil {
		t.Error(err)
	}
}

// Viewers whom the hash does not deal a variant are no evidence for or against it,
// however many of them somebody writes to the topic.
func TestGuardsJudgeByTheHash(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	forged := func(r *exposure.Record, variant string) {
		r.Items, r.Experiments[0].Variant = nil, map[string]string{"a": "b", "b": "a"}[variant]
	}
	tr.show(2000, func(r *exposure.Record, variant string) {
		if forged(r, variant); variant == "b" { // as if of a, that is: it looks better, and b worse
			r.Items = []exposure.Item{{Place: 1, Entity: "x", Team: -1}}
		}
	})
	tr.coordinate("one")
	tr.show(30, nil)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err != nil {
			t.Fatal(err)
		}
		if trail.Looked != nil && strings.Contains(strings.Join(trail.Looked.Inputs, "\n"), "2000 answers are of viewers whom the hash deals another variant") {
			if !strings.Contains(strings.Join(trail.Looked.Inputs, "\n"), "a: 15 viewers") {
				t.Errorf("%q", trail.Looked.Inputs)
			}
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("the forged answers are not left out: %+v, %q", trail.Looked, tr.decisions())
		}
	}
	if did := tr.decisions(); len(did) > 0 {
		t.Errorf("%q", did)
	}
}

// What was noted of an experiment and cannot be read is begun anew, and its guards
// go on; its ramp waits for a person.
func TestGuardsBeginTrailsAnew(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	docs, err := documents.Watch(t.Context(), tr.cluster, "decisions")
	if err != nil {
		t.Fatal(err)
	}
	if err := docs.Change(t.Context(), "e", func(string) (string, error) { return "garbage", nil }); err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && trail.Hold != nil {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("it stays as it is: %+v, %v", trail, err)
		}
	}
	if err := trails.Resume(t.Context(), "e", "ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	tr.show(120, nil)
	tr.becomes(experiment.Running, 1000)
}

// Who is not guarded is left alone, and what people do stays.
func TestGuardsLeaveOthersAlone(t *testing.T) {
	tr := newTrial(t, rampedDocument[:strings.Index(rampedDocument, "    ramp:")])
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(200, func(r *exposure.Record, _ string) { r.Items = nil })
	time.Sleep(time.Second)
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 || len(tr.decisions()) > 0 {
		t.Errorf("%s with %d: %q", e.State, e.Share, tr.decisions())
	}
}

// A variant whose viewers do less of what they should is paused for that, and
// what is done is read anew by whoever leads next.
func TestGuardsPauseForOutcomes(t *testing.T) {
	tr := newTrial(t, strings.NewReplacer("guards: {refused: 1, empty: 1}", "guards: {fewer: {click: 0.9}}\n    outcomes: {topic: clicks, actions: [click], window: 90m}", "viewers: 50", "viewers: 1000").Replace(rampedDocument))
	var all []outcome.Act // of every viewer of a, and of half of those of b
	tr.show(600, func(r *exposure.Record, variant string) {
		if variant == "a" || tr.viewers%4 == 1 {
			all = append(all, outcome.Act{Action: "click", Experiments: r.Experiments})
		}
	})
	tr.acts.all = all[:20]
	_, stop := tr.coordinate("one")
	time.Sleep(2 * time.Second)
	if e := tr.now(); e.State != experiment.Running {
		t.Fatalf("paused by 20 clicks: %q", tr.decisions())
	}
	stop()
	tr.acts.all = all
	tr.coordinate("two")
	tr.becomes(experiment.Paused, 100)
	if did := tr.decisions(); len(did) != 1 || !strings.Contains(did[0], "coordinator two: paused e: did click of b: 0.5") {
		t.Errorf("%q", did)
	}
	if len(tr.acts.asked) != 2 || tr.acts.asked[1].Topic != "clicks" || tr.acts.asked[1].For() != 90*time.Minute || tr.acts.asked[1].Field() != "answer_id" {
		t.Errorf("%+v", tr.acts.asked)
	}
}

const clickedDocument = "guards: {fewer: {click: 0.5}}\n    outcomes: {topic: clicks, actions: [click]}\n"

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

// While a guard on what viewers do can count nothing, a ramp waits and says why; and
// it takes no step before somebody has done it with what was shown at the one before,
// however alive the log of outcomes is.
func TestRampsWaitForOutcomes(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, strings.Replace(rampedDocument, "guards: {refused: 1, empty: 1}\n", clickedDocument, 1))
	change := func(by func()) {
		tr.acts.mu.Lock()
		defer tr.acts.mu.Unlock()
		by()
	}
	change(func() { tr.acts.lacks = errors.New("topic clicks has no action click") })
	tr.show(120, nil)
	c, _ := tr.coordinate("one")
	tr.says("its guards on what viewers do can count nothing: topic clicks has no action click")
	change(func() { tr.acts.lacks = nil })
	tr.says("its guards on what viewers do wait for outcomes: none that belongs to what was shown has come to clicks since ")
	change(func() {
		tr.acts.other, tr.acts.told = millrace.TimeOf(time.Now()), outcome.Report{Nothing: 389, Twice: 389}
	})
	l := tr.says("its guard")
	for ; l.Outcomes == nil || l.Outcomes.Told.Nothing != 389 || strings.Contains(l.Says, "the log is away"); l = tr.says("its guard") {
		time.Sleep(20 * time.Millisecond)
	}
	if !strings.Contains(l.Says, "none that belongs to what was shown has come to clicks since ") {
		t.Errorf("by outcomes that belong to nothing it says %q", l.Says)
	}
	tr.acts.click("a", 0, time.Now().Add(-time.Hour))
	if l := tr.says("its guard on fewer click waits for one: no viewer has done that with what was shown since "); l.Blind != "" || l.Outcomes == nil || l.Outcomes.Topic != "clicks" || l.Outcomes.Newest.IsZero() || l.Outcomes.Whole.IsZero() {
		t.Errorf("%q, %+v", l.Blind, l.Outcomes)
	}
	// However many belonged, of the newest most name wrong answers.
	change(func() {
		tr.acts.told = outcome.Report{Attributed: 1000, Elsewhere: 389}
		tr.acts.came = []coordinator.Came{{At: millrace.TimeOf(time.Now().Add(-time.Hour)), Right: 1000}, {At: millrace.TimeOf(time.Now().Add(-2 * time.Second)), Wrong: 389}}
	})
	broken := "of clicks 389 name the answer of another viewer, or one without their record, and "
	if l := tr.says("its guards on what viewers do see almost nothing: " + broken); !strings.HasPrefix(l.Blind, "guards on what viewers do are blind: "+broken) || l.Outcomes.Told.Elsewhere != 389 || tr.now().State != experiment.Running {
		t.Errorf("%+v", l)
	}
	tr.acts.click("a", 2, time.Now())
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 100 {
		t.Errorf("ramped to %d while outcomes are broken", e.Share)
	}
	// Nobody has to do anything once they are whole.
	change(func() {
		tr.acts.came = append(tr.acts.came, coordinator.Came{At: millrace.TimeOf(time.Now()), Right: 10})
	})
	tr.becomes(experiment.Running, 1000)
	tr.saying("its guards on what viewers do wait for outcomes: none that belongs to what was shown has come to clicks since ", func() { tr.show(4, nil) })
	if gaugeOf(c, "outcomes_seconds") < 0 || gaugeOf(c, "outcomes_newest_seconds") <= 0 {
		t.Error("no metric of outcomes")
	}
	tr.acts.click("b", 3, time.Now())
	tr.becomes(experiment.Running, 10_000)
}

// Only time counts for a step in which a coordinator knew all that was shown; one
// that leads next goes on from what the one before has counted.
func TestOnlyWatchedTimeCounts(t *testing.T) {
	t.Parallel()
	const least = 7 * time.Second
	tr := newTrial(t, strings.Replace(rampedDocument, "viewers: 50", "viewers: 5, least: 7s", 1))
	tr.log.goAway(errors.New("the log is frozen"))
	_, stop := tr.coordinate("one")
	tr.show(100, nil)
	time.Sleep(least) // it knows nothing
	tr.log.goAway(nil)
	back, before := time.Now(), experiments.Look{}
	for began := time.Now(); before.Stay.Seconds == 0; tr.show(2, nil) {
		before = tr.says("is to stay at 1% for 7s, and has for ")
		if time.Sleep(100 * time.Millisecond); time.Since(began) > time.Minute {
			t.Fatalf("it counts no time: %+v", before)
		}
	}
	stop()
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d in time that nobody watched", e.Share)
	}
	time.Sleep(least - time.Duration(before.Stay.Seconds*float64(time.Second))) // nobody looks
	gone := time.Since(back)
	tr.coordinate("two")
	now := experiments.Look{}
	for began := time.Now(); now.By != "two"; tr.show(2, nil) {
		now = tr.says("")
		if time.Sleep(100 * time.Millisecond); time.Since(began) > time.Minute {
			t.Fatalf("nobody looks: %+v", now)
		}
	}
	if now.Stay.Seconds < before.Stay.Seconds || !now.Stay.Since.Equal(before.Stay.Since) {
		t.Errorf("%+v, after %+v", now.Stay, before.Stay)
	}
	tr.becoming(experiment.Running, 1000, func() { tr.show(2, nil) })
	if all := time.Since(back); all < gone+least-before.Stay.For()-time.Second {
		t.Errorf("ramped %s after the log was back; it was watched for %s of it, and not for %s", all, all-gone+before.Stay.For(), least)
	}
}

// Time in which a variant is not shown as it is now does not count for a step.
func TestOnlyTimeOfAllVariantsCounts(t *testing.T) {
	t.Parallel()
	const least = 5 * time.Second
	tr := newTrial(t, strings.Replace(rampedDocument, "viewers: 50", "viewers: 5, least: 5s", 1))
	tr.coordinate("one")
	by := func(version, of string) func(*exposure.Record, string) {
		return func(r *exposure.Record, variant string) {
			if r.Models = []exposure.Model{{Name: "home", Version: version}}; !strings.Contains(of, variant) {
				r.Experiments = nil
			}
		}
	}
	tr.show(8, by("1", "b"))
	time.Sleep(least)
	if l := tr.says("is to stay at 1% for 5s, and has for 0s"); !strings.Contains(strings.Join(l.Inputs, "\n"), "time at this share stands still: a has not been shown at it") {
		t.Errorf("%q", l.Inputs)
	}
	tr.leans.become(func() {
		tr.leans.basis = compare.Basis{Since: time.Now().UTC().Truncate(time.Millisecond), Why: "model home came to version 2", Models: map[string]string{"home": "2"}}
	})
	time.Sleep(500 * time.Millisecond)
	tr.show(40, by("1", "ab")) // by a broker that has not heard of it
	time.Sleep(least)
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by a version that is gone", e.Share)
	}
	began := time.Now()
	tr.becoming(experiment.Running, 1000, func() { tr.show(4, by("2", "ab")) })
	if took := time.Since(began); took < least-time.Second {
		t.Errorf("ramped %s after what ranks now was shown", took)
	}
}

// A ramp waits while a broker that is cut off from etcd goes on by the definition of
// before, and says which it is.
func TestARampWaitsForABrokerThatIsCutOff(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	old := func(r *exposure.Record, _ string) {
		r.Time = millrace.TimeOf(time.Now().Add(compare.TakenOverWithin + time.Second)) // not to wait for it
		r.Broker, r.Experiments[0].Checksum = "cut-off", "of-before"
	}
	tr.show(1, old)
	tr.show(120, nil)
	tr.coordinate("one")
	tr.says(`1 by broker "cut-off"`)
	if e := tr.now(); e.Share != 100 {
		t.Errorf("ramped to %d", e.Share)
	}
}
