package experiments_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

type anything struct{}

func (anything) HasFeed(string) bool            { return true }
func (anything) IsPrivate(string) (bool, error) { return false, nil }
func (anything) HasModel(string) bool           { return true }
func (anything) CheckFilter(string) error       { return nil }

func (anything) CheckWeights(string, string, map[string]float64) error { return nil }

// stores are of one cluster, each as another process has it.
func stores(t testing.TB, n int) (all []*experiments.Store) {
	t.Helper()
	etcd, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	for i := range n {
		cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd.Addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cl.Close() })
		documents, err := artefacts.Watch(t.Context(), cl, experiments.Kind)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &experiments.Store{Documents: documents, Known: anything{}, Who: fmt.Sprint("somebody-", i)})
	}
	return all
}

// document has a layer, or takes another document's, and one experiment.
func document(layer bool, experiment string, from, to int) string {
	layers := ""
	if layer {
		layers = "layers: [{name: l, salt: s, unit: viewer}]\n"
	}
	return fmt.Sprintf("%sexperiments: [{name: %s, layer: l, feeds: [f], state: draft, slots: [%d-%d], share: 10000, variants: [{name: v, weight: 10000}]}]\n", layers, experiment, from, to)
}

// Of changes at one time that contradict each other one is made, and those that
// do not are all made.
func TestDefinedAtOneTime(t *testing.T) {
	all := stores(t, 4)
	if _, err := all[0].Define(t.Context(), "base", []byte(document(true, "base", 0, 999))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		from func(i int) int
		made int
	}{
		{"the same slots", func(int) int { return 1000 }, 1},
		{"slots of their own", func(i int) int { return 3000 + 1000*i }, 4},
	} {
		var g sync.WaitGroup
		errs := make([]error, len(all))
		for i, s := range all {
			g.Go(func() {
				name := fmt.Sprintf("e%d-%d", c.from(0), i)
				_, errs[i] = s.Define(t.Context(), name, []byte(document(false, name, c.from(i), c.from(i)+999)))
			})
		}
		g.Wait()
		made := 0
		for _, err := range errs {
			if err == nil {
				made++
			} else if !strings.Contains(err.Error(), "experiments[0].slots") {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		if made != c.made {
			t.Errorf("%s: %d of %d are made: %v", c.what, made, len(all), errs)
		}
	}
	st, err := all[1].Read(t.Context())
	if err != nil || len(st.Faults) > 0 || len(st.Set.Experiments()) != 6 {
		t.Errorf("%v, %v", err, st.Faults)
	}
	// Who was refused leaves nothing.
	for name, versions := range all[1].Documents.All() {
		if v, serves := all[1].Documents.Served(name); !serves || len(versions) != 1 || versions[0] != v {
			t.Errorf("document %s has %v, and %v serves", name, versions, v)
		}
	}
}

// While somebody drops documents one after the other, whoever looks at them looks
// anew, and does not fail for one that goes.
func TestReadWhileDocumentsGo(t *testing.T) {
	all := stores(t, 2)
	if _, err := all[0].Define(t.Context(), "base", []byte(document(true, "base", 0, 9))); err != nil {
		t.Fatal(err)
	}
	const n = 40
	for i := range n {
		name := fmt.Sprint("e", i)
		if _, err := all[0].Define(t.Context(), name, []byte(document(false, name, 10+i, 10+i))); err != nil {
			t.Fatal(err)
		}
	}
	gone := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		defer close(gone)
		for i := range n {
			if err := all[0].Drop(t.Context(), fmt.Sprint("e", i)); err != nil {
				t.Error(err)
			}
		}
	})
	for reads := 0; ; reads++ {
		if _, err := all[1].Read(t.Context()); err != nil {
			t.Fatalf("at reading %d: %v", reads, err)
		}
		select {
		case <-gone:
			g.Wait()
			return
		default:
		}
	}
}

// to is what a person wants; a share below 0 is what there is.
// A layer that other documents use goes after them, and what has stopped is not ramped.
func TestWhatIsUsedOrOver(t *testing.T) {
	s := stores(t, 1)[0]
	for i, d := range []string{"lay", "third"} {
		if _, err := s.Define(t.Context(), d, []byte(document(d == "lay", "e"+d, 1000*i, 1000*i+999))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Steer(t.Context(), "elay", to(experiment.Stopped, 10_000)); err != nil {
		t.Fatal(err)
	}
	if err := s.Drop(t.Context(), "lay"); err == nil || !strings.Contains(err.Error(), "has experiment ethird in document third, draft; stop these and drop their documents first") {
		t.Errorf("%v", err)
	}
	if _, err := s.Steer(t.Context(), "elay", to(experiment.Stopped, 5000)); err == nil || !strings.Contains(err.Error(), "elay is stopped, and never runs again") {
		t.Errorf("%v", err)
	}
}

func to(state experiment.State, share int) func(experiment.Experiment) (experiment.State, int, error) {
	return func(now experiment.Experiment) (experiment.State, int, error) {
		if share < 0 {
			return state, now.Share, nil
		}
		return state, share, nil
	}
}

// Two who steer one experiment at one time both get what they asked for, or a
// refusal.
func TestSteeredAtOneTime(t *testing.T) {
	all := stores(t, 3)
	if _, err := all[0].Define(t.Context(), "d", []byte(document(true, "e", 0, 999))); err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for i, s := range all {
		g.Go(func() {
			if _, err := s.Steer(t.Context(), "e", to(experiment.Draft, 1000*(i+1))); err != nil && !errors.Is(err, artefacts.ErrMoved) {
				t.Error(err)
			}
		})
	}
	g.Wait()
	if _, err := all[0].Steer(t.Context(), "e", to(experiment.Running, 5000)); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		_, err := s.Steer(t.Context(), "e", to(experiment.Running, 4000))
		if err == nil || !strings.Contains(err.Error(), "pause it first") {
			t.Error(err)
		}
	}
	var e *millrace.Error
	if _, err := all[2].Steer(t.Context(), "nosuch", to(experiment.Running, -1)); !errors.As(err, &e) || e.Reason != millrace.ReasonUnknown {
		t.Error(err)
	}
	if err := all[1].Drop(t.Context(), "d"); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Error(err)
	}
	if _, err := all[1].Steer(t.Context(), "e", to(experiment.Stopped, -1)); err != nil {
		t.Fatal(err)
	}
	if err := all[2].Drop(t.Context(), "d"); err != nil {
		t.Error(err)
	}
}

// A pause beside a ramp of the same experiment, or of another one in the
// document, stays, and so does the ramp.
func TestPausedBesideARamp(t *testing.T) {
	all := stores(t, 3)
	two := document(true, "e", 0, 999) + strings.TrimPrefix(document(false, "other", 1000, 1999), "experiments: ")
	two = strings.Replace(two, "}]}]\n[{", "}]}, {", 1)
	if _, err := all[0].Define(t.Context(), "d", []byte(strings.ReplaceAll(strings.ReplaceAll(two, "draft", "running"), "share: 10000", "share: 1000"))); err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		share := 2000 + 100*i
		more := func(now experiment.Experiment) (experiment.State, int, error) { return now.State, share, nil }
		var g sync.WaitGroup
		for _, do := range []func() error{
			func() error { _, err := all[0].Steer(t.Context(), "e", to(experiment.Paused, -1)); return err },
			func() error { _, err := all[1].Steer(t.Context(), "e", more); return err },
			func() error { _, err := all[2].Steer(t.Context(), "other", more); return err },
		} {
			g.Go(func() {
				if err := do(); err != nil {
					t.Error(err)
				}
			})
		}
		g.Wait()
		st, err := all[i%3].Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, state := range map[string]experiment.State{"e": experiment.Paused, "other": experiment.Running} {
			d, err := st.Find(name)
			if err != nil || d.Experiment.State != state || d.Experiment.Share != share {
				t.Fatalf("round %d: %s is %s with %d, %v; want %s with %d", i, name, d.Experiment.State, d.Experiment.Share, err, state, share)
			}
		}
		if _, err := all[0].Steer(t.Context(), "e", to(experiment.Running, -1)); err != nil {
			t.Fatal(err)
		}
	}
}

// without knows no model, and all else.
type without struct{ anything }

func (without) HasModel(string) bool { return false }

// An experiment that does not fit any more is found, ends by its command, and keeps
// its slots until then.
func TestAnUnfitExperimentIsSteered(t *testing.T) {
	s := stores(t, 1)[0]
	running := strings.NewReplacer("draft", "running", "{name: v, weight: 10000}", "{name: v, weight: 10000, set: {model: m}}").Replace(document(true, "e", 0, 999))
	if _, err := s.Define(t.Context(), "d", []byte(running)); err != nil {
		t.Fatal(err)
	}
	s.Known = without{}
	st, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d, err := st.Find("e")
	if _, left := st.LeftOut("d"); err != nil || left || !strings.Contains(d.Unfit, "no model m serves") || !strings.Contains(fmt.Sprint(st.Faults["d"]), "no model m serves") {
		t.Errorf("%v, %v, %+v, %v", err, left, d, st.Faults)
	}
	if _, err := s.Define(t.Context(), "taker", []byte(document(false, "taker", 900, 1100))); err == nil || !strings.Contains(err.Error(), "experiment e in d has slots 900-999 of layer l") {
		t.Errorf("its slots: %v", err)
	}
	if err := s.Drop(t.Context(), "d"); err == nil || !strings.Contains(err.Error(), "experiment e is running") {
		t.Errorf("drop: %v", err)
	}
	if _, err := s.Define(t.Context(), "beside", []byte(document(false, "beside", 1000, 1100))); err != nil {
		t.Errorf("other slots: %v", err)
	}
	if _, err := s.Define(t.Context(), "d", []byte(running+"# again\n")); err == nil || !strings.Contains(err.Error(), "no model m serves") {
		t.Errorf("it is defined again: %v", err)
	}
	for _, step := range []struct {
		state experiment.State
		fault string
	}{{experiment.Paused, ""}, {experiment.Running, "no model m serves"}, {experiment.Stopped, ""}} {
		if _, err := s.Steer(t.Context(), "e", to(step.state, -1)); step.fault == "" && err != nil || step.fault != "" && (err == nil || !strings.Contains(err.Error(), step.fault)) {
			t.Errorf("%s: %v, want %q", step.state, err, step.fault)
		}
	}
	if st, err := s.Read(t.Context()); err != nil || len(st.Faults) > 0 {
		t.Errorf("%v, %v", err, st.Faults)
	}
}

// A document that cannot be taken into the set is found all the same, as far as it
// can be read, with the ways out.
func TestALeftOutDocumentIsTold(t *testing.T) {
	s := stores(t, 1)[0]
	put := func(name, text string) {
		t.Helper()
		v, _, err := s.Documents.Publish(t.Context(), name, "", []byte(text), "somebody")
		if err == nil {
			err = s.Documents.Serve(t.Context(), v, nil, "somebody")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	running := strings.Replace(document(true, "e", 0, 999), "draft", "running", 1)
	put("a", running)
	put("b", strings.Replace(document(false, "twin", 500, 1999), "draft", "running", 1))
	put("c", strings.Replace(document(false, "odd", 3000, 3999), "state: draft", "state: asleep", 1))
	put("d", "experiments: {")
	st, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const drop = "; or take it out with millrace experiment drop "
	for name, want := range map[string][]string{
		"twin":   {"experiment twin stands in document b, which is left out: ", "experiment e in a has slots 500-999", "state: stopped", drop + "b"},
		"odd":    {"experiment odd stands in document c, which is left out: ", `"asleep" is no state`, drop + "c"},
		"nosuch": {`there is no experiment "nosuch"`, drop + "d"},
	} {
		_, err := st.Find(name)
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, which lacks %q", name, err, part)
			}
		}
	}
	if left, is := st.LeftOut("b"); !is || len(left) != 1 || left[0].State != experiment.Running {
		t.Errorf("%v, %+v", is, left)
	}
	// What nobody has started does not begin to assign because another ends.
	to := func(state experiment.State) func(experiment.Experiment) (experiment.State, int, error) {
		return func(now experiment.Experiment) (experiment.State, int, error) { return state, now.Share, nil }
	}
	_, stop := s.Steer(t.Context(), "e", to(experiment.Stopped))
	_, define := s.Check(t.Context(), "a", []byte(strings.Replace(running, "running", "stopped", 1)))
	for what, err := range map[string]error{"stop": stop, "define": define} {
		if e, ok := errors.AsType[*millrace.Error](err); !ok || !strings.Contains(e.Detail, "document b, which is left out, would begin to assign") || !strings.Contains(e.WayOut, "experiment drop b") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Steer(t.Context(), "e", to(experiment.Paused)); err != nil {
		t.Errorf("pause: %v", err)
	}
	if err := s.Drop(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	if _, err := s.Steer(t.Context(), "e", to(experiment.Stopped)); err != nil {
		t.Errorf("stop, once the other is gone: %v", err)
	}
}

// A file that is defined again starts nothing that a guard or a person has paused since;
// the history says what was done, of what people do too.
func TestDefinitionsStartNothingThatIsPaused(t *testing.T) {
	s := stores(t, 1)[0]
	running := []byte(strings.Replace(document(true, "e", 0, 99), "draft", "running", 1))
	if _, err := s.Define(t.Context(), "a", running); err != nil {
		t.Fatal(err)
	}
	to := func(state experiment.State) func(experiment.Experiment) (experiment.State, int, error) {
		return func(now experiment.Experiment) (experiment.State, int, error) { return state, now.Share, nil }
	}
	if _, err := s.Steer(t.Context(), "e", to(experiment.Paused)); err != nil {
		t.Fatal(err)
	}
	_, checked := s.Check(t.Context(), "a", running)
	_, defined := s.Define(t.Context(), "a", running)
	for what, err := range map[string]error{"check": checked, "define": defined} {
		if e, ok := errors.AsType[*experiment.Error](err); !ok || !strings.Contains(e.Error(), "experiments[0].state: experiment e is paused, and a definition starts nothing that is; write state: paused; ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Define(t.Context(), "a", []byte(strings.Replace(string(running), "running", "paused", 1))); err != nil {
		t.Error(err)
	}
	pausedBy := func() string {
		st, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d, err := st.Find("e")
		if err != nil {
			t.Fatal(err)
		}
		by, ok, err := s.PausedBy(t.Context(), &d)
		if err != nil || !ok {
			return ""
		}
		return by.Who
	}
	if by := pausedBy(); !strings.HasPrefix(by, s.Who+": experiment e: state running → paused") {
		t.Errorf("paused by %q", by)
	}
	if _, err := s.Steer(t.Context(), "e", to(experiment.Running)); err != nil {
		t.Error(err)
	}
	if by := pausedBy(); by != "" { // a pause of before
		t.Errorf("started, and paused by %q", by)
	}
	all, err := s.Documents.History(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, e := range all {
		if e.What == ledger.Served {
			told = append(told, e.Who)
		}
	}
	for _, want := range []string{"it is new, running", "state running → paused", "state paused → running"} {
		if !slices.ContainsFunc(told, func(who string) bool {
			return strings.HasPrefix(who, s.Who+": ") && strings.Contains(who, "experiment e: "+want)
		}) {
			t.Errorf("%q is not among %q", want, told)
		}
	}
}

// A document that had more versions than are kept is the one that it was: an
// experiment in it is as old as it is, and what others in it become does not change it.
func TestExperimentsOfManyVersions(t *testing.T) {
	store := stores(t, 1)[0]
	text := func(to int) []byte {
		both := strings.TrimSuffix(document(true, "a", 0, 99), "]\n") + ", " + strings.TrimPrefix(document(false, "b", 100, to), "experiments: [")
		return []byte(both)
	}
	for i := range 35 {
		if _, err := store.Define(t.Context(), "d", text(200+i)); err != nil {
			t.Fatal(err)
		}
	}
	st, err := store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of, err := st.Find("a")
	if err != nil {
		t.Fatal(err)
	}
	events, err := store.Documents.History(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	first := slices.IndexFunc(events, func(e ledger.Event) bool { return e.What == ledger.Served })
	if begun, err := store.Begun(t.Context(), &of); err != nil || !begun.Equal(events[first].When) {
		t.Errorf("it began %s, %v, and not %s", begun, err, events[first].When)
	}
	all := store.Documents.All()["d"]
	a, b := all[len(all)-2], all[len(all)-1]
	for name, want := range map[string]bool{"a": true, "b": false, "none": false} {
		if same, err := store.Same(t.Context(), a, b, name); err != nil || same != want {
			t.Errorf("%s is the same: %v, %v", name, same, err)
		}
	}
	if same, err := store.Same(t.Context(), artefacts.Version{Name: "d", Version: "1", Sum: events[first].Sum}, b, "a"); err != nil || same {
		t.Errorf("as in a version that is gone: %v, %v", same, err)
	}
}

// Since when an experiment is there is not known once the history of its document has
// forgotten that, wherever the history is cut.
func TestNobodyKnowsWhenAnExperimentOfACutHistoryBegan(t *testing.T) {
	store := stores(t, 1)[0]
	for i, cut := 0, false; !cut; i++ {
		if _, err := store.Define(t.Context(), "d", []byte(document(true, "a", 0, 99+i))); err != nil {
			t.Fatal(err)
		}
		if i < 40 {
			continue
		}
		events, err := store.Documents.History(t.Context(), "d")
		if err != nil {
			t.Fatal(err)
		}
		cut = events[0].What == ledger.Published && events[0].Version != "1"
	}
	st, err := store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of, err := st.Find("a")
	if err != nil {
		t.Fatal(err)
	}
	if begun, err := store.Begun(t.Context(), &of); err != nil || !begun.IsZero() {
		t.Errorf("it began %s, %v", begun, err)
	}
}

// An experiment runs since it was started last, whatever else its document becomes.
func TestRunsSince(t *testing.T) {
	store := stores(t, 1)[0]
	if _, err := store.Define(t.Context(), "d", []byte(strings.Replace(document(true, "a", 0, 99), "draft", "running", 1))); err != nil {
		t.Fatal(err)
	}
	of := func() *experiment.Defined {
		st, err := store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d, err := st.Find("a")
		if err != nil {
			t.Fatal(err)
		}
		return &d
	}
	served := func() (when time.Time) {
		events, err := store.Documents.History(t.Context(), "d")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.What == ledger.Served {
				when = e.When
			}
		}
		return when
	}
	runs := func(want, before time.Time) {
		t.Helper()
		if since, err := store.Runs(t.Context(), of(), before); err != nil || !since.Equal(want) {
			t.Errorf("it runs since %s, %v, and not since %s", since, err, want)
		}
	}
	steer := func(state experiment.State, share int) time.Time {
		t.Helper()
		if _, err := store.Steer(t.Context(), "a", func(experiment.Experiment) (experiment.State, int, error) { return state, share, nil }); err != nil {
			t.Fatal(err)
		}
		return served()
	}
	first := served()
	runs(first, time.Time{})
	if _, err := store.Define(t.Context(), "d", []byte("# again\n"+strings.Replace(document(true, "a", 0, 99), "draft", "running", 1))); err != nil {
		t.Fatal(err)
	}
	last := served()
	runs(first, time.Time{})
	runs(last, last.Add(time.Hour)) // what was before is not asked about
	steer(experiment.Paused, 10_000)
	again := steer(experiment.Running, 10_000)
	runs(again, time.Time{})
}
