package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	experimentcli "github.com/millrace/millrace/cmd/cli/experiments"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/slot"
	"github.com/millrace/millrace/schemas"
)

// ramped is an experiment that a coordinator would ramp, by weights of a version.
var ramped = strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 100", "limit: 30", "weights: {clicks: 3}").Replace(clitest.Fresher) +
	"    ramp: {steps: [100, 10000], viewers: 50}\n    guards: {refused: 2}\n"

// A coordinator, as its command starts it and as dev does, waits with the next step
// while the weights of a variant do not rank, and status says so.
func TestCoordinatorsWaitForWeights(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	for name, begin := range map[string]func(ctx context.Context, s *stage, k string) error{
		"coordinator": func(ctx context.Context, s *stage, k string) error {
			c := root()
			c.SetArgs([]string{"coordinator", "--config", clitest.WriteConfig(s.T, "coordinator", "etcd: [%q]\ncluster: millrace\nname: coordinator-1\nexposures: exposures\nbrokers: [%q]\nadmin: %q\n", s.Etcd[0], k, clitest.FreeAddr(s.T))})
			return c.ExecuteContext(ctx)
		},
		"dev": func(ctx context.Context, s *stage, k string) error {
			const any = "127.0.0.1:0"
			c := root()
			c.SetArgs([]string{"dev", "--data", s.TempDir(), "--nodes", "1", "--etcd", s.Etcd[0], "--kafka", k, "--kafka-listen", any, "--etcd-listen", any, "--http", any, "--grpc", any, "--admin", any})
			c.SetOut(io.Discard)
			return c.ExecuteContext(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &stage{clitest.NewStageOf(t, "millrace", "n1")} // as that of dev is called
			s.Answer("n1", clitest.Admits)
			k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
			s.Check(err)
			t.Cleanup(k.Close)
			s.must("model", "push", s.RatePack("1", "likes"), "--timeout", "1m")
			s.must("feed", "define", s.File("home.yaml", "name: home\nmodel: rate\nlimit: 10\n"))
			s.must("model", "push", s.RatePack("2", "clicks"), "--timeout", "1m")
			s.must("experiment", "define", s.File("ranking.yaml", ramped))
			bad, _ := s.Models.Served("rate")
			s.Check(s.Failed.Condemn(t.Context(), s.Models, bad, "it panicked", "n1", time.Now()))
			s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), "exposures", 1, nil))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- begin(ctx, s, k.Addr()) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}()
			const why = "variant treatment is not applied: rate 2, whose weights it sets, is condemned, and rate 1, which ranks in its place, lacks them"
			clitest.WaitFor(t.Context(), t, "the coordinator to say what it waits for", func() bool {
				return strings.Contains(s.must("experiment", "status", "fresher", "--brokers", k.Addr()), " ago: "+why+"\n")
			})
			if out := s.must("experiment", "status", "fresher", "--brokers", k.Addr()); !strings.Contains(out, "\nexperiment fresher, running: "+why+"; its answers count for no variant until another version serves, or that one is asked for again\n") {
				t.Errorf("status says\n%s", out)
			}
		})
	}
}

// What speaks against the numbers of a report is told beside them, with who holds
// the ramp.
func TestStatusTellsWhatIsOdd(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	s.Check(err)
	t.Cleanup(k.Close)
	garbage := func(topic, value string) {
		t.Helper()
		s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), topic, 1, nil))
		p, err := exposures.NewProducer(kafka.At(k.Addr()), topic, nil)
		s.Check(err)
		defer p.Close()
		s.Check(errors.Join(p.Produce(t.Context(), []exposure.Entry{{Value: []byte(value)}})...))
	}
	s.Check(kafka.EnsureTopics(t.Context(), kafka.At(k.Addr()), kafka.Prefixed(""), nil))
	garbage("exposures", "no record")
	garbage("clicks", "no record")
	late, err := clitest.ShownAt("q9999", "cid", time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), "a").Append(nil)
	s.Check(err)
	garbage("exposures", string(schemas.Frame(schemas.Exposure().Fingerprint(), late)))
	drafted := strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 10000", "limit: 30", "interleave: [recency, home]").Replace(clitest.Fresher)
	drafted += "    guards: {refused: 2}\n    outcomes: {topic: clicks, actions: [click]}\n"
	out, err := s.run("experiment", "define", s.File("ranking.yaml", drafted))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all []*exposure.Record
	shown := func(unit, variant string, forced bool) {
		r := clitest.ShownAt(fmt.Sprint("q", len(all)), unit, time.Now(), "a")
		r.Interleaving, r.HeldOut, r.ServedBefore = nil, nil, 0
		r.Items[0].Team = -1
		r.Experiments = []exposure.Experiment{{Layer: "ranking", Experiment: "fresher", Variant: variant, Unit: unit, Checksum: "c0", Probability: 0.5, ProbabilityInside: 0.5, Forced: forced}}
		if forced {
			r.Experiments[0].Probability, r.Experiments[0].ProbabilityInside = 0, 0
		}
		all = append(all, r)
	}
	for i := range 60 {
		shown(dealtTo(fmt.Sprint("viewer:", i), "control"), "control", false)
	}
	shown(dealtTo("cid", "treatment"), "treatment", false)
	for i := range 3 {
		shown(dealtTo(fmt.Sprint("forged:", i), "control"), "treatment", false)
	}
	shown("ann", "treatment", true)
	shown("bob", "gone", false)
	clitest.WriteExposures(t.Context(), t, k.Addr(), all...)
	if out, err := s.run("experiment", "hold", "fresher", "--why", "a sale"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = s.run("experiment", "status", "fresher", "--brokers", k.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"experiment fresher is running, with 100% of its slots; document ranking, version 1\n",
		"\ncontrol    50%     60       60       0 ", "\ntreatment  50%     1        1        1 ",
		"\n1 answers of treatment were not drafted: only the first model ranked them; their receipts say why\n",
		"\nVIEWERS DO NOT FIT THE WEIGHTS (p ", ": something but the hash decides who is in; believe nothing above before you know what\n",
		"\n3 answers are of viewers whom the hash deals another variant, and do not count: something but brokers writes to the topic\n", "\n1 answers are of variants that the definition does not have\n",
		"\nit runs since ", " ago, and no coordinator has looked at it since; one does within 30s\n",
		"\nHELD by " + clusters.Who() + " since ", ": a sale; to let it go on: millrace experiment resume fresher\n",
		"\n2 entries of exposures are no exposures that this version reads, of a time that has not come, or batches that cannot be opened\n", "\n1 entries of clicks are no outcomes, and are not counted; the first: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not say %q:\n%s", want, out)
		}
	}

	of := kafkatest.Cluster{Brokers: kafka.At(k.Addr())}
	kafkatest.Bomb(t, of, "exposures", 0)
	kafkatest.Bomb(t, of, "clicks", 0)
	s.Check(kafka.EnsureContentTopic(t.Context(), of.Brokers, "taps", 1, nil))
	kafkatest.Bomb(t, of, "taps", 0)
	kafkatest.Begin(t, of, "exposures", map[int32][]byte{0: []byte("shown")})
	kafkatest.Begin(t, of, "clicks", map[int32][]byte{0: []byte("clicked")})
	const open = ", where a transaction is open"
	hides := "NOT ALL: 1 entries of exposures are not %s: kafka: not read yet: exposures/0 from offset "
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"experiment", "status", "fresher", "--etcd", s.Etcd[0], "--cluster", s.Name}, []string{
			fmt.Sprintf(hides, "compared"), "NO OUTCOMES, or not all: kafka: not read yet: clicks/0 from offset ", open,
			"\n3 entries of exposures are no exposures", "\n2 entries of clicks are no outcomes",
		}},
		{[]string{"export", "exposures", "--outcomes", "taps", "--to", "ndjson", "--out", filepath.Join(t.TempDir(), "rows")}, []string{fmt.Sprintf(hides, "in it"), open, "\n3 entries of exposures are no exposures", "\n1 entries of taps are no outcomes, and are not counted; the first: kafka: the batch of taps/0 from offset 0 to 0 is of more than "}},
		{[]string{"feed", "shadows", "home"}, []string{fmt.Sprintf(hides, "in the report"), open}},
	} {
		var told strings.Builder
		run := root()
		run.SetArgs(append(c.args, "--brokers", k.Addr()))
		run.SetOut(&told)
		run.SetErr(&told)
		err := run.ExecuteContext(s.Context())
		out := told.String()
		if err != nil && c.args[0] != "feed" { // which has no answer
			t.Errorf("%v: %v", c.args, err)
		}
		for _, want := range c.wants {
			if !strings.Contains(out, want) {
				t.Errorf("%v does not say %q:\n%s", c.args, want, out)
			}
		}
	}
}

// Clicks on pages that two models drafted, of which one is in the log before its
// answer and one twice, credit what was shown: by impression, by viewer, and by
// first item.
func TestStatusCreditsDrafts(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	s.Check(err)
	t.Cleanup(k.Close)
	s.Check(kafka.EnsureTopics(t.Context(), kafka.At(k.Addr()), kafka.Prefixed(""), nil))
	s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), "exposures", 1, nil))
	drafted := strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 10000", "limit: 30", "interleave: [recency, home]").Replace(clitest.Fresher)
	out, err := s.run("experiment", "define", s.File("ranking.yaml", drafted+"    outcomes: {topic: clicks, actions: [click]}\n"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	began := time.Now().Add(time.Second) // what was shown before is of another of its name
	shown := func(id, viewer string, second int) *exposure.Record {
		r := clitest.ShownAt(id, viewer, began.Add(time.Duration(second)*time.Second), id+" nobody's", id+" recency's", id+" home's")
		r.HeldOut, r.ServedBefore = nil, 0
		r.Interleaving.Experiment, r.Interleaving.Teams = "fresher", []string{"recency", "home"}
		r.Experiments[0].Experiment, r.Experiments[0].Variant, r.Experiments[0].Unit = "fresher", "treatment", dealtTo(viewer, "treatment")
		return r
	}
	n := 0
	click := func(viewer, record string, second int, answer string) [6]string {
		n++
		return [6]string{fmt.Sprint(n), viewer, record, "click", began.Add(time.Duration(second) * time.Second).UTC().Format(time.RFC3339), answer}
	}
	twice := click("ann", "a1 home's", 20, "")
	loadClicks(t.Context(), t, k.Addr(),
		click("ann", "a2 recency's", 40, "a2"), twice, twice, click("ann", "a1 home's", 25, "a1"),
		click("bob", "b1 recency's", 20, ""), click("bob", "b1 nobody's", 10, "b1"), click("cid", "c1 nobody's", 20, ""))
	clitest.WriteExposures(t.Context(), t, k.Addr(), shown("a1", "ann", 1), shown("a2", "ann", 30), shown("b1", "bob", 1), shown("c1", "cid", 1), shown("d1", "dan", 1))
	out, err = s.run("experiment", "status", "fresher", "--brokers", k.Addr())
	if want := `
treatment, drafted by recency and home; home wins by more of its items:
ACTION  BY          WINS  LOSSES  TIES  Δ
click   impression  1     2       1     -0.125
click   viewer      0     1       2     -0.167
click   first item  1     1             no difference seen: `; err != nil || !strings.Contains(out, want) {
		t.Errorf("%v; status does not say %q:\n%s", err, want, out)
	}
}

// A name that is used again is another experiment: what was shown under it before,
// and decided, is not told as its own. Its evidence is told with its age, and if
// nobody watches, doctor and list say so too.
func TestStatusOfANameUsedAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	s.Check(err)
	t.Cleanup(k.Close)
	s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), "exposures", 1, nil))
	running := strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 10000").Replace(clitest.Fresher) + "    guards: {refused: 2}\n"
	shown := func(unit string, at time.Time) *exposure.Record {
		r := clitest.ShownAt(unit, unit, at, "a")
		r.Interleaving, r.HeldOut, r.ServedBefore = nil, nil, 0
		r.Items[0].Team = -1
		r.Experiments = []exposure.Experiment{{Layer: "ranking", Experiment: "fresher", Variant: "treatment", Unit: dealtTo(unit, "treatment"), Checksum: "c0", Probability: 0.5, ProbabilityInside: 0.5}}
		return r
	}
	s.must("experiment", "define", s.File("ranking.yaml", running))
	var old []*exposure.Record
	for i := range 40 {
		old = append(old, shown(fmt.Sprint("old", i), time.Now()))
	}
	clitest.WriteExposures(t.Context(), t, k.Addr(), old...)
	s.must("experiment", "stop", "fresher")
	s.must("experiment", "drop", "ranking", "--apply", "--yes")
	s.must("experiment", "define", s.File("ranking.yaml", running))
	clitest.WriteExposures(t.Context(), t, k.Addr(), shown("new", time.Now().Add(time.Second)))
	out := s.must("experiment", "status", "fresher", "--brokers", k.Addr())
	if !strings.Contains(out, "\ntreatment  50%     1        1 ") || strings.Contains(out, "DO NOT FIT") {
		t.Errorf("status says\n%s", out)
	}
	if out := s.must("experiment", "list"); strings.Contains(out, "NOT WATCHED") { // it has just begun
		t.Errorf("list says\n%s", out)
	}
	trails, err := experiments.OpenTrails(t.Context(), s.Client)
	s.Check(err)
	now := time.Now()
	s.Check(trails.Look(t.Context(), nil, "fresher", experiments.Look{When: now, By: "c1", Says: "no guard says stop", Whole: now.Add(-48 * time.Second), Newest: now.Add(-50 * time.Second), Blind: "guards are blind: there is no topic", Outcomes: &experiments.OutcomesLook{Topic: "clicks", Whole: now, Newest: now.Add(-time.Hour)}}))
	clitest.WaitFor(t.Context(), t, "the look to be told", func() bool {
		out = s.must("experiment", "status", "fresher", "--brokers", k.Addr())
		return strings.Contains(out, "\nNOT WATCHED: guards are blind: there is no topic\nc1 looked ")
	})
	if out := s.must("experiment", "list"); !strings.Contains(out, "\nexperiment fresher is NOT WATCHED: guards are blind: there is no topic") {
		t.Errorf("list says\n%s", out)
	}
	if !strings.Contains(out, "    outcomes: all of clicks were read ") || !strings.Contains(out, " ago; the newest that belongs to what was shown is ") || !strings.Contains(out, "    evidence: all that was written was read ") || !strings.Contains(out, "; the newest answer is ") {
		t.Errorf("status says\n%s", out)
	}
	clitest.WaitFor(t.Context(), t, "how old outcomes are to be told, as doctor does", func() bool {
		now := time.Now() // a look counts for a while
		s.Check(trails.Look(t.Context(), nil, "fresher", experiments.Look{When: now, By: "c1", Says: "no guard says stop", Whole: now, Outcomes: &experiments.OutcomesLook{Topic: "clicks", Whole: now, Newest: now.Add(-time.Hour)}}))
		says, _, err := experimentcli.Faults(t.Context(), s.Client)
		s.Check(err)
		return says == "1 in 1 documents; outcomes of fresher: the newest that belongs to what was shown is 1h0m0s old"
	})
	for _, id := range []string{"first", "second"} {
		_, err := trails.Reads(t.Context(), nil, "fresher", "c1", experiments.Sources{Since: millrace.TimeOf(now), Exposures: exposure.Topic{Name: "exposures", ID: id}})
		s.Check(err)
	}
	clitest.WaitFor(t.Context(), t, "a cut of the evidence to be told", func() bool {
		return strings.Contains(s.must("experiment", "status", "fresher", "--brokers", k.Addr()), "c1 found evidence of fresher cut: kafka: topic exposures ") &&
			strings.Contains(s.must("experiment", "history", "fresher"), "found evidence of fresher cut  -        c1: kafka: topic exposures ")
	})
}

// dealtTo returns a name that begins so whom fresher deals a variant.
func dealtTo(name, variant string) string {
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s.%d", name, i)
		if draw := slot.Draw("ranking-2026", "fresher", id); (draw < 5000) == (variant == "control") {
			return id
		}
	}
}

// silentKafka is the address of what takes connections, and answers nothing, as a
// Kafka that is frozen.
func silentKafka(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String() // the kernel takes them
}

// What coordinators know is told at once, out of etcd, also if Kafka is frozen or dead:
// then there is no comparison, and the command fails and names Kafka.
func TestStatusWithoutKafka(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	out, err := s.run("experiment", "define", s.File("ranking.yaml", strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 500").Replace(clitest.Fresher)+"    guards: {refused: 2}\n"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	trails, err := experiments.OpenTrails(t.Context(), s.Client)
	s.Check(err)
	now := time.Now()
	s.Check(trails.Look(t.Context(), nil, "fresher", experiments.Look{When: now, By: "c1", Says: "what was shown is not all known since 48s", Share: 300, Whole: now.Add(-48 * time.Second), Blind: "guards are blind: Kafka is frozen"}))
	for name, kafkaAt := range map[string]string{"frozen": silentKafka(t), "dead": clitest.FreeAddr(t)} {
		out, err := s.run("experiment", "status", "fresher", "--brokers", kafkaAt)
		if err == nil || !strings.Contains(err.Error(), "how the variants do is not known: kafka: read exposures: ") || !strings.Contains(err.Error(), kafkaAt) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range []string{"experiment fresher is running, with 5% of its slots; document ranking, version 1\n", "\nNOT WATCHED: guards are blind: Kafka is frozen\n", "\nc1 looked ", " ago, when it had 3% of its slots: what was shown is not all known since 48s\n", "    evidence: all that was written was read "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: status does not say %q:\n%s", name, want, out)
			}
		}
		out, err = s.run("experiment", "status", "fresher", "-o", "json", "--brokers", kafkaAt)
		var shown map[string]any
		if err == nil || json.Unmarshal([]byte(out), &shown) != nil || shown["unwatched"] == nil || shown["exposures_unread"] == nil || shown["state"] != "running" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	for _, args := range [][]string{{"topics", "show"}, {"feed", "shadows", "home"}} {
		silent := silentKafka(t)
		var out strings.Builder
		c := root()
		c.SetArgs(append(args, "--brokers", silent))
		c.SetOut(&out)
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "kafka: ") || !strings.Contains(err.Error(), "no answer from "+silent) {
			t.Errorf("%v: %v\n%s", args, err, out.String())
		}
	}
}

// Why there are no outcomes is told in the report, and not beside it alone.
func TestStatusWithoutOutcomes(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	s.Check(err)
	t.Cleanup(k.Close)
	s.Check(kafka.EnsureTopics(t.Context(), kafka.At(k.Addr()), kafka.Prefixed(""), nil))
	s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), "exposures", 1, nil))
	_, err = s.run("experiment", "define", s.File("ranking.yaml", clitest.Fresher+"    outcomes: {topic: clicks, actions: [click]}\n"))
	s.Check(err)
	out, err := s.run("experiment", "status", "fresher", "--brokers", k.Addr())
	if err == nil || !strings.Contains(out, "\nNO OUTCOMES, or not all: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// What became of outcomes is told as an export does it. One id for all is no repetition;
// where most name the answer of another viewer, nothing is to be believed.
func TestStatusTellsWhatBecameOfOutcomes(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	s.Check(err)
	t.Cleanup(k.Close)
	s.Check(kafka.EnsureTopics(t.Context(), kafka.At(k.Addr()), kafka.Prefixed(""), nil))
	s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), "exposures", 1, nil))
	_, err = s.run("experiment", "define", s.File("ranking.yaml", strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 10000").Replace(clitest.Fresher)+"    outcomes: {topic: clicks, actions: [click]}\n"))
	s.Check(err)
	shown := time.Now().Add(time.Second)
	at := shown.Add(-5 * time.Minute) // by the clock of who logs them
	var all []*exposure.Record
	var clicks [][6]string
	click := func(viewer, record, answer string) {
		clicks = append(clicks, [6]string{"click", viewer, record, "click", at.Format(time.RFC3339), answer})
	}
	for i := range 30 {
		variant := []string{"control", "treatment"}[i%2]
		viewer := dealtTo(fmt.Sprint("viewer:", i), variant)
		r := clitest.ShownAt(fmt.Sprint("answer", i), viewer, shown, "a")
		r.Interleaving, r.HeldOut, r.ServedBefore = nil, nil, 0
		r.Items[0].Team = -1
		r.Experiments = []exposure.Experiment{{Layer: "ranking", Experiment: "fresher", Variant: variant, Unit: viewer, Checksum: "c0", Probability: 0.5, ProbabilityInside: 0.5}}
		all = append(all, r)
		if i < 12 {
			click(viewer, "a", r.ID)
		}
	}
	clitest.WriteExposures(t.Context(), t, k.Addr(), all...)
	clicks = append(clicks, clicks[0])
	for i := range 20 { // of viewers in no experiment
		click(fmt.Sprint("other", i), "a", "")
	}
	loadClicks(t.Context(), t, k.Addr(), clicks...)
	status := func() string {
		t.Helper()
		out, err := s.run("experiment", "status", "fresher", "--brokers", k.Addr())
		s.Check(err)
		return out
	}
	if out := status(); strings.Contains(out, "BROKEN") || !strings.Contains(out, "\nof all outcomes in clicks, by what fresher showed, 12 belong to an item; 1 came twice, 0 name the answer of another viewer, 0 an answer without the record, and 20 belong to nothing that was shown\n") || !strings.Contains(out, "  40%\n") {
		t.Errorf("%s", out)
	}
	clicks = nil
	broken := at.Truncate(time.Second)
	for i := range 20 {
		click("proxy", "a", fmt.Sprint("answer", i))
		click(all[i].Viewer, "b", all[i].ID)
	}
	loadClicks(t.Context(), t, k.Addr(), clicks...)
	told := "40 name the answer of another viewer, or one without their record, and 12 belong to an item, "
	if out := status(); !strings.Contains(out, "\nBROKEN OUTCOMES: of clicks "+told+"since "+millrace.TimeOf(broken).String()+"; believe nothing ") {
		t.Errorf("%s", out)
	}
	// Once they are whole again that is over, and it is said until when, however many right
	// ones come.
	until := millrace.TimeOf(broken.Add(time.Second)).String()
	told = "of clicks " + told + "from " + millrace.TimeOf(broken).String() + " to " + until + "; since then they are whole, and --since " + until + " tells that apart"
	for range 5 {
		clicks, at = nil, at.Add(10*time.Second)
		for _, r := range all[12:24] {
			clicks = append(clicks, [6]string{at.String(), r.Viewer, "a", "click", at.Format(time.RFC3339), r.ID})
		}
		loadClicks(t.Context(), t, k.Addr(), clicks...)
		if out := status(); strings.Contains(out, "BROKEN") || !strings.Contains(out, "\noutcomes were broken: "+told+"\n") {
			t.Errorf("%s", out)
		}
	}
	out, err := s.run("experiment", "status", "fresher", "--brokers", k.Addr(), "-o", "json")
	s.Check(err)
	if want := fmt.Sprintf("\"outcomes_were_broken\":%q", strings.TrimPrefix(told, "of clicks ")); !strings.Contains(out, want) || !strings.Contains(out, "\"attributed\":72") {
		t.Errorf("%s does not have %s", out, want)
	}
}
