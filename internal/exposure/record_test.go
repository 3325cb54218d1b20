package exposure

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	hamba "github.com/hamba/avro/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// record returns a small record that is right.
func record() *Record {
	return &Record{
		ID: "r-1", Time: 1_700_000_000_123, Viewer: "member:1", Feed: "home", FeedVersion: 3, Broker: "broker-2", AsOf: 1_700_000_000_000,
		ServedBefore: 20, TimelinesAsked: 30, TimelinesAnswered: 29,
		Experiments: []Experiment{{"ranking", "newer", "b", "member:1", "c0ffee", 0.05, 0.5, false}, {"ads", "none", "c", "member:1", "beef", 0, 0, true}},
		HeldOut:     []string{"design"}, ShadowShare: 0.01, Millis: 3.5,
		Interleaving: &Interleaving{"newer", 1<<63 + 5, 18, []string{"a", "b"}},
		Models:       []Model{{"home", "3", "abc", []string{"likes", "verb"}}, {"home", "4", "def", nil}},
		Shadows:      []Model{{"next", "1", "fed", nil}},
		ScoringNanos: 12_000, Looked: 2, Lacking: []Lacked{{"likes", 1}},
		ShadowRankings: []ShadowRanking{{0.5, 0.25, 0.75, math.NaN(), 100, 10, 300, 11, 2, []Lacked{{"taste", 2}}, []ShadowItem{{"n7", "member:4", "post", 2.5}}}},
		Items: []Item{
			{1, "n6", "member:3", "post", 1.5, 0, 1, []float64{0.25}, []Value{Number(2), Text("post")}},
			{2, "n5", "member:3", "post", -0.5, 1, -1, nil, nil},
		},
	}
}

// randomRecord returns any record that is right.
func randomRecord(rng *rand.Rand) *Record {
	text := func() string { return strings.Repeat("aé∑𝄞"[:[]int{0, 1, 3, 6, 10}[rng.IntN(5)]], rng.IntN(30)) }
	number := func() float64 {
		switch rng.IntN(6) {
		case 0:
			return math.NaN()
		case 1:
			return 0
		case 2:
			return math.MaxFloat64
		}
		return rng.NormFloat64() * math.Exp(rng.NormFloat64()*20)
	}
	texts := func() (list []string) {
		for range rng.IntN(4) {
			list = append(list, text())
		}
		return list
	}
	models := func(least int) (list []Model) {
		for range least + rng.IntN(3) {
			list = append(list, Model{text(), text(), text(), texts()})
		}
		return list
	}
	r := &Record{
		ID: "r" + text(), Time: millrace.Time(rng.Int64N(int64(millrace.MaxTime))), Viewer: text(), Feed: "f" + text(), FeedVersion: rng.Int64() - rng.Int64(), Broker: text(),
		AsOf: millrace.Time(rng.Int64()), ServedBefore: rng.IntN(math.MaxInt32), TimelinesAsked: rng.IntN(1000), TimelinesAnswered: rng.IntN(1000),
		HeldOut: texts(), ShadowShare: rng.Float64(), Models: models(1), Shadows: models(0), FeaturesLeftOut: rng.IntN(2) == 0, Millis: rng.Float64() * 100, Refusal: []string{"", "UNAVAILABLE"}[rng.IntN(2)],
		ScoringNanos: rng.Int64(), Looked: rng.IntN(100),
	}
	lacking := func() (list []Lacked) {
		for range rng.IntN(3) {
			list = append(list, Lacked{text(), rng.IntN(math.MaxInt32)})
		}
		return list
	}
	r.Lacking = lacking()
	if rng.IntN(2) == 0 {
		for range r.Shadows {
			x := ShadowRanking{rng.Float64(), rng.Float64(), rng.Float64(), number(), rng.Int64(), rng.Int64(), rng.Int64(), rng.Int64(), rng.IntN(100), lacking(), nil}
			for range rng.IntN(5) {
				x.Items = append(x.Items, ShadowItem{text(), text(), text(), number()})
			}
			r.ShadowRankings = append(r.ShadowRankings, x)
		}
	}
	for range rng.IntN(4) {
		e := Experiment{text(), text(), text(), text(), text(), 1 - rng.Float64(), 1 - rng.Float64(), false}
		if rng.IntN(3) == 0 {
			e.Probability, e.ProbabilityInside, e.Forced = 0, 0, true
		}
		r.Experiments = append(r.Experiments, e)
	}
	teams := 0
	if rng.IntN(2) == 0 {
		r.Interleaving = &Interleaving{text(), rng.Uint64(), rng.Uint64(), texts()}
		teams = len(r.Interleaving.Teams)
	}
	for range rng.IntN(20) {
		it := Item{Place: 1 + rng.IntN(math.MaxInt32), ID: text(), Entity: text(), Type: text(), Score: number(), Model: rng.IntN(len(r.Models)), Team: rng.IntN(teams+1) - 1}
		if rng.IntN(2) == 0 {
			for range r.Shadows {
				it.Shadows = append(it.Shadows, number())
			}
		}
		if rng.IntN(2) == 0 && !r.FeaturesLeftOut {
			for range r.Models[it.Model].Features {
				if rng.IntN(3) == 0 {
					it.Features = append(it.Features, Text(text()))
				} else {
					it.Features = append(it.Features, Number(number()))
				}
			}
		}
		r.Items = append(r.Items, it)
	}
	return r
}

// comparable returns r in a form in which NaN equals NaN.
func comparable(r *Record) any {
	if r == nil {
		return nil
	}
	draft := Interleaving{}
	if r.Interleaving != nil {
		draft = *r.Interleaving
	}
	flat := *r
	flat.Interleaving = nil
	return fmt.Sprintf("%#v %t %#v", flat, r.Interleaving != nil, draft)
}

// library is the schema as hamba/avro reads it, which knows nothing of our codec.
func library(t testing.TB) hamba.Schema {
	t.Helper()
	s, err := hamba.ParseBytesWithCache([]byte(schemas.Exposure().JSON()), "", &hamba.SchemaCache{})
	must(t, err)
	return s
}

// Random records: hamba/avro reads what is written, and writes the same bytes
// again; what it writes in several blocks, with their sizes, is read as the record
// that was written; and no cut of a body is a body.
func TestRecordsAreAvro(t *testing.T) {
	s := library(t)
	plain := hamba.Config{DisableBlockSizeHeader: true}.Freeze() // one block an array, as we write them
	blocks := hamba.Config{BlockLength: 2}.Freeze()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		r := randomRecord(rng)
		body, err := r.Append([]byte("before"))
		must(t, err)
		if string(body[:6]) != "before" {
			t.Fatalf("%q does not begin as it was", body)
		}
		body = body[6:]
		var generic any
		must(t, hamba.Unmarshal(s, body, &generic))
		again, err := plain.Marshal(s, generic)
		must(t, err)
		if string(again) != string(body) {
			t.Fatalf("%s\nis  %x\nnot %x", comparable(r), body, again)
		}
		got, err := Decode(schemas.Exposure().Fingerprint(), body)
		must(t, err)
		if comparable(got) != comparable(r) {
			t.Fatalf("read\n%v\nwritten\n%v", comparable(got), comparable(r))
		}
		blocked, err := blocks.Marshal(s, generic)
		must(t, err)
		if got, err = Decode(schemas.Exposure().Fingerprint(), blocked); err != nil || comparable(got) != comparable(r) {
			t.Fatalf("in blocks, %v:\n%v\nwritten\n%v", err, comparable(got), comparable(r))
		}
		if _, err := Decode(schemas.Exposure().Fingerprint(), body[:rng.IntN(len(body))]); err == nil {
			t.Fatalf("a cut of %x is read", body)
		}
	}
}

// What the schema calls things, by the JSON of a record.
func TestRecordAsJSON(t *testing.T) {
	body, err := record().Append(nil)
	must(t, err)
	got, err := schemas.Exposure().JSONValue(body)
	must(t, err)
	list := func(x ...any) []any { return append([]any{}, x...) }
	want := map[string]any{
		"id": "r-1", "time": "2023-11-14T22:13:20.123Z", "viewer": "member:1", "feed": "home", "feed_version": int64(3), "broker": "broker-2", "as_of": "2023-11-14T22:13:20.000Z",
		"served_before": int64(20), "timelines_asked": int64(30), "timelines_answered": int64(29),
		"experiments": list(
			map[string]any{"layer": "ranking", "experiment": "newer", "variant": "b", "unit": "member:1", "checksum": "c0ffee", "probability": 0.05, "probability_inside": 0.5, "forced": false},
			map[string]any{"layer": "ads", "experiment": "none", "variant": "c", "unit": "member:1", "checksum": "beef", "probability": 0.0, "probability_inside": 0.0, "forced": true}),
		"held_out": list("design"), "shadow_share": 0.01,
		"interleaving": map[string]any{"experiment": "newer", "seed": "-9223372036854775803", "turns": int64(18), "teams": list("a", "b")},
		"models": list(
			map[string]any{"name": "home", "version": "3", "checksum": "abc", "features": list("likes", "verb")},
			map[string]any{"name": "home", "version": "4", "checksum": "def", "features": list()}),
		"shadows": list(map[string]any{"name": "next", "version": "1", "checksum": "fed", "features": list()}),
		"items": list(
			map[string]any{"place": int64(1), "id": "n6", "entity": "member:3", "type": "post", "score": 1.5, "model": int64(0), "team": int64(1), "shadow_scores": list(0.25), "features": list(2.0, "post")},
			map[string]any{"place": int64(2), "id": "n5", "entity": "member:3", "type": "post", "score": -0.5, "model": int64(1), "team": int64(-1), "shadow_scores": list(), "features": list()}),
		"features_left_out": false, "millis": 3.5, "refusal": "",
		"scoring_nanos": int64(12_000), "looked": int64(2), "lacking": list(map[string]any{"feature": "likes", "items": int64(1)}),
		"shadow_rankings": list(map[string]any{
			"overlap_10": 0.5, "overlap": 0.25, "rbo": 0.75, "tau": nil, "served_nanos": int64(100), "served_scored": int64(10), "nanos": int64(300), "scored": int64(11), "looked": int64(2),
			"lacking": list(map[string]any{"feature": "taste", "items": int64(2)}), "items": list(map[string]any{"id": "n7", "entity": "member:4", "type": "post", "score": 2.5})}),
	}
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s: %#v, want %#v", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d fields, want %d", len(got), len(want))
	}
	// A topic of exposures is one of records: what was shown to viewers.
	env, err := schemas.Exposure().Envelope(body)
	must(t, err)
	if env.Entity != "member:1" || env.Type != "home" || env.Record.ID != "r-1" || env.Record.Time != 1_700_000_000_123 {
		t.Errorf("as a record: %+v", env)
	}
}

// What brokers of before wrote is read, and their readers find all of theirs in
// what is written now: by Avro's resolution both ways.
func TestRecordsOfBefore(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	earlier, now := schemas.EarlierExposure(), schemas.Exposure()
	for range 100 {
		r := randomRecord(rng)
		r.ScoringNanos, r.Looked, r.Lacking, r.ShadowRankings = 0, 0, nil, nil
		body, err := r.Append(nil)
		must(t, err)
		const added = 4 // bytes, of what there was not
		got, err := Decode(earlier.Fingerprint(), body[:len(body)-added])
		must(t, err)
		if comparable(got) != comparable(r) {
			t.Fatalf("read\n%v\nwritten\n%v", comparable(got), comparable(r))
		}
	}
	for _, pair := range [][2]*schemas.Schema{{earlier, now}, {now, earlier}} {
		if _, err := schemas.NewDecoder(pair[0], pair[1]); err != nil {
			t.Error(err)
		}
	}
	if _, err := Decode(schemas.Note().Fingerprint(), nil); err == nil {
		t.Error("a note is an exposure")
	}
}

// Numbers that are none, or have no end, are written as Avro's readers take them.
func TestNumbersWithoutEnd(t *testing.T) {
	r := record()
	r.Items[0].Score, r.Items[0].Shadows[0], r.Items[0].Features[0] = math.Inf(1), math.Inf(-1), Missing()
	r.Items[1].Score = math.NaN()
	body, err := r.Append(nil)
	must(t, err)
	got, err := Decode(schemas.Exposure().Fingerprint(), body)
	must(t, err)
	it := got.Items[0]
	if it.Score != math.MaxFloat64 || it.Shadows[0] != -math.MaxFloat64 || !math.IsNaN(it.Features[0].Number) || it.Features[0].IsText || !math.IsNaN(got.Items[1].Score) {
		t.Errorf("%+v", got.Items)
	}
	for score, finite := range map[float64]bool{math.Inf(1): false, math.Inf(-1): false, math.NaN(): false, 1e308: true, -1e308: true, 0: true} {
		r.Items[0].Score = score
		body, err := r.Append(nil)
		must(t, err)
		got, err := Decode(schemas.Exposure().Fingerprint(), body)
		must(t, err)
		if r.Items[0].Finite() != finite || got.Items[0].Finite() != finite {
			t.Errorf("%v: %v, and read %v", score, r.Items[0].Finite(), got.Items[0].Finite())
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(r *Record)
	}{
		{"id", func(r *Record) { r.ID = "" }},
		{"feed", func(r *Record) { r.Feed = "" }},
		{"shadow_share", func(r *Record) { r.ShadowShare = 1.5 }},
		{"shadow_share", func(r *Record) { r.ShadowShare = math.NaN() }},
		{"experiments[0].probability", func(r *Record) { r.Experiments[0].Probability = -0.1 }},
		{"experiments[0].probability", func(r *Record) { r.Experiments[0].ProbabilityInside = 1.1 }},
		{"experiments[0].forced", func(r *Record) { r.Experiments[0].Probability = 0 }},
		{"experiments[1].forced", func(r *Record) { r.Experiments[1].Forced = false }},
		{"models[0]", func(r *Record) { r.Models[0].Version = strings.Repeat("1", 1025) }},
		{"shadows[0]", func(r *Record) { r.Shadows[0].Checksum = strings.Repeat("a", 1025) }},
		{"models", func(r *Record) { r.Models = make([]Model, 1001) }},
		{"shadows", func(r *Record) { r.Shadows = make([]Model, 1001) }},
		{"shadow_rankings", func(r *Record) { r.ShadowRankings = append(r.ShadowRankings, ShadowRanking{}) }},
		{"shadow_rankings[0].overlap", func(r *Record) { r.ShadowRankings[0].RBO = 1.1 }},
		{"items[1].place", func(r *Record) { r.Items[1].Place = 0 }},
		{"items[1].model", func(r *Record) { r.Items[1].Model = 2 }},
		{"items[0].team", func(r *Record) { r.Items[0].Team = 2 }},
		{"items[0].team", func(r *Record) { r.Interleaving = nil }},
		{"items[0].shadow_scores", func(r *Record) { r.Items[0].Shadows = []float64{1, 2} }},
		{"items[0].features", func(r *Record) { r.Items[0].Features = []Value{Number(1)} }},
		// What the schema sees.
		{"time", func(r *Record) { r.Time = -1 }},
		{"viewer", func(r *Record) { r.Viewer = "\xff" }},
		{"served_before", func(r *Record) { r.ServedBefore = 1 << 31 }},
		{"items[].id", func(r *Record) { r.Items[0].ID = "a\xc0" }},
		{"", func(r *Record) { r.Broker = strings.Repeat("x", millrace.MaxBodyBytes) }},
	} {
		r := record()
		c.change(r)
		dst, err := r.Append([]byte("as it was"))
		field := "none"
		if e := (*millrace.Error)(nil); errors.As(err, &e) && e.WayOut != "" {
			field = e.Field
		} else if e := (*schemas.Error)(nil); errors.As(err, &e) {
			field = e.Field
		}
		if field != c.field || string(dst) != "as it was" {
			t.Errorf("%s: %v, %q", c.field, err, dst)
		}
	}
}

// Whoever writes to the topic of exposures may name as many models as a record has bytes
// for. Readers compare each with the others, and so take none of that.
func TestRecordsOfManyModelsAreRefused(t *testing.T) {
	for field, change := range map[string]func(*Record, []Model){
		"models":  func(r *Record, m []Model) { r.Models = m },
		"shadows": func(r *Record, m []Model) { r.Shadows = m },
	} {
		many := make([]Model, 150_000)
		for i := range many {
			many[i].Name = fmt.Sprint(i % 1000)
		}
		r := &Record{ID: "r-1", Feed: "home"}
		change(r, many)
		body := r.append(nil)
		if err := schemas.Exposure().Check(body); err != nil || len(body) > millrace.MaxBodyBytes {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
		_, err := Decode(schemas.Exposure().Fingerprint(), body)
		if e := (*millrace.Error)(nil); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%d %s: %v", len(many), field, err)
		}
		if change(r, many[:1000]); r.check() != nil {
			t.Errorf("1000 %s: %v", field, r.check())
		}
	}
}

// FuzzDecode: any bytes are refused or are a record, which is written as the same
// record again.
func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 5 {
		body, err := randomRecord(rng).Append(nil)
		must(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := Decode(schemas.Exposure().Fingerprint(), body)
		if err != nil {
			return
		}
		again, err := r.Append(nil)
		must(t, err)
		if got, err := Decode(schemas.Exposure().Fingerprint(), again); err != nil || comparable(got) != comparable(r) {
			t.Fatalf("%v: read\n%v\nwritten\n%v", err, comparable(got), comparable(r))
		}
	})
}
