package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/export"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
)

const clickAVSC = `{"type": "record", "name": "Click", "namespace": "shop", "fields": [
  {"name": "event", "type": "string", "millrace": "id"},
  {"name": "who", "type": "string", "millrace": "entity"},
  {"name": "on", "type": "string", "millrace": "object"},
  {"name": "what", "type": "string", "millrace": "type"},
  {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}, "millrace": "time"},
  {"name": "answer_id", "type": ["null", "string"], "default": null}
]}`

// loadClicks loads outcomes, each of id, viewer, record, action and time, and of
// an answer.
func loadClicks(ctx context.Context, t *testing.T, addr string, clicks ...[6]string) {
	t.Helper()
	dir := t.TempDir()
	avsc, lines := filepath.Join(dir, "click.avsc"), filepath.Join(dir, "clicks.ndjson")
	var all strings.Builder
	for _, c := range clicks {
		line := map[string]any{"event": c[0], "who": c[1], "on": c[2], "what": c[3], "when": c[4]}
		if c[5] != "" {
			line["answer_id"] = c[5]
		}
		b, _ := json.Marshal(line)
		fmt.Fprintf(&all, "%s\n", b)
	}
	for name, text := range map[string]string{avsc: clickAVSC, lines: all.String()} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := execute(ctx, "load", "--brokers", addr, "--force", "--topic", "clicks", "--schema", avsc, lines); err != nil {
		t.Fatal(out, err)
	}
}

// exported runs an export in both forms, which say the same.
func exported(ctx context.Context, t *testing.T, addr string, args ...string) (rows []export.Item, told string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shown.parquet")
	args = append([]string{"export", "exposures", "--brokers", addr}, args...)
	if out, err := execute(ctx, append(slices.Clone(args), "--out", file)...); err != nil {
		t.Fatal(out, err)
	}
	rows, err := parquet.ReadFile[export.Item](file)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	c := root()
	c.SetArgs(append(slices.Clone(args), "--to", "ndjson", "--out", "-"))
	c.SetOut(&out)
	c.SetErr(&errs)
	if err := c.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	var again []export.Item
	for d := json.NewDecoder(&out); d.More(); {
		var row export.Item
		if err := d.Decode(&row); err != nil {
			t.Fatal(err)
		}
		again = append(again, row)
	}
	for _, all := range [][]export.Item{rows, again} {
		for i := range all { // a reader of Parquet makes no difference between no list and an empty one
			all[i].Experiments, all[i].HeldOut, all[i].Outcomes = nilIfEmpty(all[i].Experiments), nilIfEmpty(all[i].HeldOut), nilIfEmpty(all[i].Outcomes)
			all[i].Features = nilIfEmpty(all[i].Features)
			all[i].Time, all[i].AsOf = all[i].Time.UTC(), all[i].AsOf.UTC()
			for k := range all[i].Outcomes {
				all[i].Outcomes[k].First = all[i].Outcomes[k].First.UTC()
			}
		}
		slices.SortStableFunc(all, func(a, b export.Item) int { return strings.Compare(a.Answer, b.Answer) })
	}
	if len(rows)+len(again) > 0 && !reflect.DeepEqual(rows, again) {
		t.Fatalf("Parquet:\n%s\nNDJSON:\n%s", dump(rows), dump(again))
	}
	return rows, errs.String()
}

func nilIfEmpty[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

func dump(v any) string {
	b, _ := json.MarshalIndent(v, "", " ")
	return string(b)
}

// A row has all that the exposure said of the item, and what was done with it.
func TestExportExposures(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
	empty := clitest.ShownAt("b", "reader:2", at)
	empty.Experiments, empty.Interleaving, empty.Models, empty.Refusal = nil, nil, nil, "UNAVAILABLE"
	clitest.WriteExposures(ctx, t, addr, clitest.ShownAt("a", "reader:1", at, "x", "y", "z"), empty)
	later := at.Add(time.Minute).Format(time.RFC3339Nano)
	loadClicks(ctx, t, addr,
		[6]string{"1", "reader:1", "y", "click", later, "a"}, [6]string{"1", "reader:1", "y", "click", later, "a"}, [6]string{"2", "reader:1", "y", "click", later, ""},
		[6]string{"3", "reader:1", "y", "like", later, "a"}, [6]string{"4", "reader:2", "y", "click", later, "a"}, [6]string{"5", "reader:2", "y", "click", later, ""})
	rows, told := exported(ctx, t, addr, "--outcomes", "clicks")
	if want := `3 items of 2 answers are in standard output, with 3 outcomes; 1 answers showed nothing
of all outcomes in the topic, 3 belong to an item; 1 came twice, 1 name the answer of another viewer, 0 an answer without the record, and 1 belong to nothing that was shown
`; told != want {
		t.Errorf("told:\n%s", told)
	}
	if len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	p := func(s string) *string { return &s }
	seed, items, place, score, age := int64(math.MinInt64), int64(3), int64(22), 1., 0.5
	want := export.Item{
		Answer: "a", Time: at, Viewer: "reader:1", Feed: "home", FeedVersion: 3, Broker: "b1", AsOf: at, TimelinesAsked: 5, TimelinesAnswered: 4, Millis: 1.5,
		Experiments: []export.Variant{{Layer: "ranking", Experiment: "new", Variant: "b", Unit: "reader:1", Checksum: "c0", Probability: 0.25, ProbabilityInside: 0.5, Forced: false}}, HeldOut: []string{"ads"}, DraftSeed: &seed, Items: &items,
		Place: &place, ID: p("y"), Entity: p("member:9"), Type: p("post"), Score: &score, Model: p("next"), ModelVersion: p("2"), ModelChecksum: p("bb"), Team: p("home"),
		Outcomes: []export.Outcome{{Action: "click", Count: 2, First: at.Add(time.Minute)}, {Action: "like", Count: 1, First: at.Add(time.Minute)}},
		Features: []export.Feature{{Name: "age", Number: &age}, {Name: "kind", Text: p("post")}, {Name: "likes"}},
	}
	if !reflect.DeepEqual(rows[1], want) {
		t.Errorf("%s", dump(rows[1]))
	}
	if rows[0].Team != nil || *rows[0].Score != math.MaxFloat64 || *rows[2].Team != "next" || rows[0].Outcomes != nil {
		t.Errorf("%s\n%s", dump(rows[0]), dump(rows[2]))
	}
	if r := rows[3]; r.Answer != "b" || r.Refusal != "UNAVAILABLE" || r.ID != nil || r.Place != nil || r.DraftSeed != nil || r.Items == nil || *r.Items != 0 {
		t.Errorf("%s", dump(r))
	}
	if rows, _ := exported(ctx, t, addr, "--experiment", "new"); len(rows) != 3 || rows[1].Outcomes != nil {
		t.Errorf("%s", dump(rows))
	}
}

// A feed that no answer is of, and one that has no shadow, are told apart.
func TestShadowsOfNoFeed(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	clitest.WriteExposures(ctx, t, addr, clitest.ShownAt("a", "reader:1", time.Now(), "x"))
	for feed, want := range map[string]string{
		"nowhere": "feed: exposures has no answer of feed nowhere; known are home",
		"home":    "no shadow has ranked an answer of feed home",
	} {
		if _, err := execute(ctx, "feed", "shadows", feed, "--brokers", addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", feed, err, want)
		}
	}
}

// Entries that are no outcomes are counted, and keep no export from what the others say;
// clicks under one id for all are not lost.
func TestExportBesideWhatIsNoOutcome(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
	clitest.WriteExposures(ctx, t, addr, clitest.ShownAt("a", "reader:1", at, "x", "y"), clitest.ShownAt("b", "reader:2", at, "x"))
	later := at.Add(time.Minute).Format(time.RFC3339Nano)
	loadClicks(ctx, t, addr, [6]string{"click", "reader:1", "x", "click", later, "a"}, [6]string{"click", "reader:1", "y", "click", later, "a"}, [6]string{"click", "reader:2", "x", "click", later, "b"})
	p, err := kafka.NewProducer(kafka.At(addr), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Produce(ctx, kafka.Outgoing{Topic: "clicks", Value: []byte("no outcome")})
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	rows, told := exported(ctx, t, addr, "--outcomes", "clicks")
	if n := len(slices.DeleteFunc(slices.Clone(rows), func(r export.Item) bool { return r.Outcomes == nil })); n != 3 {
		t.Errorf("%d rows have outcomes", n)
	}
	if !strings.Contains(told, "\n1 entries of clicks are no outcomes, and are not counted; the first: ") || !strings.Contains(told, "3 belong to an item; 0 came twice, ") {
		t.Errorf("told:\n%s", told)
	}
}

// A part of the time has the rows that the whole has of it, outcomes and all.
func TestExportOfAPartOfTheTime(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	now := time.Now().Truncate(time.Millisecond)
	when := func() time.Time { return now.Add(-time.Duration(rnd.IntN(7200)) * time.Second) }
	var shown []*exposure.Record
	for i := range 60 {
		shown = append(shown, clitest.ShownAt(fmt.Sprintf("a%02d", i), fmt.Sprint("reader:", rnd.IntN(3)), when(), []string{"x", "y", "z"}[:1+rnd.IntN(3)]...))
	}
	clitest.WriteExposures(ctx, t, addr, shown...)
	var clicks [][6]string
	for i := range 200 {
		clicks = append(clicks, [6]string{fmt.Sprint(i), fmt.Sprint("reader:", rnd.IntN(3)), string("xyz"[rnd.IntN(3)]), "click", when().UTC().Format(time.RFC3339), ""})
	}
	loadClicks(ctx, t, addr, clicks...)
	args := []string{"--outcomes", "clicks", "--window", "20m"}
	whole, _ := exported(ctx, t, addr, args...)
	if n := len(slices.DeleteFunc(slices.Clone(whole), func(r export.Item) bool { return r.Outcomes == nil })); n < 20 {
		t.Fatalf("only %d of %d rows have outcomes", n, len(whole))
	}
	for range 5 {
		a, b := when(), when()
		if b.Before(a) {
			a, b = b, a
		}
		want := slices.DeleteFunc(slices.Clone(whole), func(r export.Item) bool { return r.Time.Before(a) || !r.Time.Before(b) })
		got, _ := exported(ctx, t, addr, append(slices.Clone(args), "--since", a.Format(time.RFC3339Nano), "--until", b.Add(time.Second).Add(-time.Second).Format(time.RFC3339Nano))...)
		if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("from %s to %s: %s\nwant %s", a, b, dump(got), dump(want))
		}
	}
}

// What cannot be exported is refused with the flag and the way out, and leaves
// no file.
func TestExportRefuses(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	clitest.WriteExposures(ctx, t, addr, clitest.ShownAt("a", "reader:1", time.Now(), "x"))
	note := filepath.Join(t.TempDir(), "notes.ndjson")
	if err := os.WriteFile(note, []byte(`{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := execute(ctx, "load", "--brokers", addr, "--force", "--topic", "posts", "--schema", "note", note); err != nil {
		t.Fatal(out, err)
	}
	loadClicks(ctx, t, addr, [6]string{"1", "reader:1", "x", "click", time.Now().UTC().Format(time.RFC3339), ""})
	file := filepath.Join(t.TempDir(), "shown.parquet")
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"a form":          {[]string{"--to", "csv"}, []string{"to:", "csv", "parquet or ndjson"}},
		"a window":        {[]string{"--window", "-1s"}, []string{"window:", "such as 24h"}},
		"since":           {[]string{"--since", "yesterday"}, []string{"since:", "such as 90m"}},
		"until":           {[]string{"--until", "tomorrow"}, []string{"until:", "such as 90m"}},
		"no time":         {[]string{"--since", "1h", "--until", "2h"}, []string{"until:", "come after --since"}},
		"no topic":        {[]string{"--topic", "none"}, []string{"topic:", "there is no topic none"}},
		"no outcomes":     {[]string{"--outcomes", "none"}, []string{"topic", "there is no topic none"}},
		"exposures again": {[]string{"--outcomes", "exposures"}, []string{"outcomes:", "1 entries of exposures are no outcomes", "not in the schemas topic", "roles"}},
		"no experiment":   {[]string{"--experiment", "nope"}, []string{"experiment: exposures has no answer of experiment nope; known are new"}},
		"another time":    {[]string{"--experiment", "new", "--until", "2020-01-01T00:00:00Z"}, []string{"experiment: exposures has no answer of experiment new until 2020-01-01T00:00:00", "there may be some of another time"}},
		"a time to come":  {[]string{"--since", "2099-01-01T00:00:00Z"}, []string{"since:", "has not come yet"}},
		"a field":         {[]string{"--outcomes", "clicks", "--answer-field", "zzz"}, []string{"no schema of topic clicks has a field zzz", "leave it out"}},
		"no such field":   {[]string{"--answer-field", "answer_id"}, []string{"answer-field: it is about outcomes", "--outcomes"}},
		"no window":       {[]string{"--window", "1h"}, []string{"window: it is about outcomes", "--outcomes"}},
		"no exposures":    {[]string{"--topic", "clicks"}, []string{"topic: 1 entries of clicks are no exposures, and nothing else is in it"}},
		"a role":          {[]string{"--outcomes", "posts"}, []string{"outcomes:", "no field of millrace.Note has the role object"}},
	} {
		out, err := execute(ctx, append([]string{"export", "exposures", "--brokers", addr, "--out", file}, c.args...)...)
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q, %v lacks %q", name, out, err, part)
			}
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("%s: there is a file", name)
		}
	}
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	// It is refused before anything is read, or found wrong by that.
	if _, err := execute(ctx, "export", "exposures", "--brokers", addr, "--outcomes", "none", "--out", file); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("over a file: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "mine" {
		t.Errorf("the file has %q", b)
	}
}
