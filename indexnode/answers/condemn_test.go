package answers

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
	"github.com/millrace/millrace/schemas"
)

// breaking is set while the generated code of the models of brokenSpec panics,
// stalling while it waits as if its process were stopped, and crawling while it
// reads slowly for each of crawled records.
var (
	breaking, stalling, crawling atomic.Bool
	crawled                      atomic.Int64
	slowly                       = make([]byte, 1<<20)
)

const brokenSpec = `name: broken
version: %q
schemas: [millrace.Activity]
viewer: {taste: double}
features: {liked: record.likes * viewer.taste + %s}
scorer: linear
parameters: {weights: {liked: 1}}
`

// What golden rows do not show of live records.
const (
	none      = "record.impressions / record.impressions" // NaN
	infinite  = "5.0 * record.likes / record.impressions"
	sometimes = "3.0 / (4.0 - record.likes)" // infinite for one of them
)

// admitBroken admits a version of a model that adds a number to each score, and
// has none where the number is not.
func admitBroken(t *testing.T, n *node, version, plus string) relevance.ID {
	t.Helper()
	score := map[string]int{"1.0": 2, "2.0": 3, none: 2, infinite: 2, sometimes: 2}[plus]
	pack := nodetest.PackOf(t, fmt.Sprintf(brokenSpec, version, plus), fmt.Sprintf(`{"features":{"liked":%d},"score":%[1]d,"record":{"likes":1,"impressions":5},"viewer":{"taste":1}}`, score), relevance.ShippedSchemas())
	id, err := pack.Admit(n.models, strings.Repeat(version, 64), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Of the version that adds 1, alone and beside the built-in model home, there is
// generated code, which panics while it is told to.
func init() {
	m, err := relevance.Parse("spec.yaml", fmt.Appendf(nil, brokenSpec, "1", "1.0"), relevance.ShippedSchemas())
	if err != nil {
		panic(err)
	}
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		panic(err)
	}
	for _, j := range []*relevance.Joint{relevance.Join(m), relevance.Join(m, home)} {
		for _, entity := range []*column.Layout{nil, schemas.Features().Layout()} {
			p, err := j.Plan(schemas.Activity().Layout(), entity)
			if err != nil {
				panic(err)
			}
			compute.RegisterModel(compute.Model{Name: "broken", Shape: p.Shape(), Score: func(k *compute.ModelArgs) {
				if breaking.Load() {
					panic("a broken table")
				}
				if stalling.Load() {
					time.Sleep(tooLong + time.Millisecond)
				}
				if crawling.Load() {
					crawled.Add(int64(len(k.Sel)))
					for range len(k.Sel) * race.Slower {
						crc32.ChecksumIEEE(slowly)
					}
				}
				for i := range k.Sel {
					k.Out[i] = 7
				}
			}})
		}
	}
}

func by(id relevance.ID, givesWay bool) *nodev1.QueryRequest {
	return nodetest.All(func(r *nodev1.QueryRequest) {
		r.Types, r.Model, r.ModelVersion, r.ModelSum, r.GivesWay = []string{"post"}, id.Name, id.Version, id.Sum, givesWay
		r.AsOfMs = time.Now().UnixMilli()
		r.Viewer = &feedv1.Viewer{Id: "v", Features: map[string]float64{"taste": 1}}
	})
}

// A version that panics once is asked for no more by brokers that give way, and
// the panic is an error for who does not. Others rank on.
func TestAVersionThatPanicsIsCondemned(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "1", "1.0")
	if resp, err := n.query(t.Context(), by(id, true)); err != nil || len(resp.Items) != 2 || resp.Items[0].Score != 7 {
		t.Fatalf("before it breaks: %v, %v", resp, err)
	}
	breaking.Store(true)
	defer breaking.Store(false)
	_, err := n.Query(t.Context(), by(id, true))
	var e *millrace.Error
	if !errors.As(rpcerr.FromStatus(err), &e) || e.Reason != millrace.ReasonCondemned || !strings.Contains(e.Detail, "a broken table") || strings.Contains(e.Detail, "goroutine") {
		t.Fatalf("the first question: %v", err)
	}
	breaking.Store(false)
	if _, err := n.query(t.Context(), by(id, true)); !errors.As(err, &e) || e.Reason != millrace.ReasonCondemned {
		t.Errorf("the second question: %v", err)
	}
	if resp, err := n.query(t.Context(), by(id, false)); err != nil || resp.Items[0].Score != 7 {
		t.Errorf("a broker that does not give way: %v, %v", resp, err)
	}
	if resp, err := n.query(t.Context(), nodetest.All(func(*nodev1.QueryRequest) {})); err != nil || len(resp.Items) == 0 {
		t.Errorf("another model: %v, %v", resp, err)
	}
	// The cluster says so, and then no more: it is released.
	v := artefacts.Version(id)
	n.condemned.takeOver(map[artefacts.Version]artefacts.Condemnation{v: {Version: v.Version, Sum: v.Sum, Why: "it panicked"}})
	n.condemned.takeOver(nil)
	if resp, err := n.query(t.Context(), by(id, true)); err != nil || resp.Items[0].Score != 7 {
		t.Errorf("released: %v, %v", resp, err)
	}
	// One that was dropped before the cluster was told may be pushed again.
	n.condemned.condemn(id, causePanic, "it panicked")
	n.condemned.dropped(id)
	if why := n.condemned.why(id); why != "" {
		t.Errorf("dropped: %s", why)
	}
}

// A model that panics beside another is condemned, and the other is not.
func TestAVersionThatPanicsBesideAnother(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "1", "1.0")
	breaking.Store(true)
	defer breaking.Store(false)
	for range 2 {
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
			r.Types, r.Viewer.Features = []string{"post"}, map[string]float64{"taste": 1}
			r.Beside = []*nodev1.Model{{Name: id.Name, Version: id.Version, Sum: id.Sum}, {Name: "home"}}
		}))
		if err != nil || len(resp.Items) != 2 || !strings.Contains(resp.Beside[0].GetError(), "a broken table") || len(resp.Beside[1].Items) == 0 {
			t.Fatalf("%v, %v", resp.GetBeside(), err)
		}
	}
	if why := n.condemned.why(id); !strings.Contains(why, "it panicked") {
		t.Errorf("condemned: %q", why)
	}
	if all := *n.condemned.here.Load(); len(all) != 1 {
		t.Errorf("condemned: %v", all)
	}
}

// Weights of a variant that give no finite number are no fault of the version, and
// those of a version that has none by its own weights do not hide it.
func TestWeightsCondemnNoVersion(t *testing.T) {
	n := hostileNode(t)
	good, bad := admitBroken(t, n, "1", "2.0"), admitBroken(t, n, "2", none)
	asked := 0
	earlier := func(string) []artefacts.Version { asked++; return []artefacts.Version{artefacts.Version(good)} }
	n.condemned.earlier.Store(&earlier)
	weighted := func(id relevance.ID, weight float64) *nodev1.QueryRequest {
		req := by(id, true)
		req.Weights = weights.Form(map[string]float64{"liked": weight})
		req.WeightsSum = weights.Sum(req.Weights)
		return req
	}
	lookups := func() uint64 {
		s := n.CacheStats()
		return s.FatHits + s.SkinnyHits + s.Misses
	}
	var each uint64 // look-ups of one question
	for range 2 {
		before := lookups()
		if _, err := n.query(t.Context(), weighted(good, 2)); err != nil {
			t.Fatal(err)
		}
		each = lookups() - before
	}
	before := lookups()
	for range 3 * condemnAfter {
		if resp, err := n.query(t.Context(), weighted(good, 1e308)); err != nil || len(resp.Items) == 0 || !math.IsInf(resp.Items[0].Score, 1) {
			t.Fatal(resp, err)
		}
	}
	if why := n.condemned.why(good); why != "" {
		t.Fatal(why)
	}
	if questions := (lookups() - before) / each; questions != 3*condemnAfter+3 {
		t.Errorf("for %d questions by weights, %d are asked by its own", 3*condemnAfter, questions-3*condemnAfter)
	}
	m, err := n.models.Find(good)
	if err != nil {
		t.Fatal(err)
	}
	if e := n.condemned.evidence(m); e.nan.Load() != 0 || e.weighted.Load() != 3*condemnAfter {
		t.Errorf("%d answers speak against it, of %d by weights", e.nan.Load(), e.weighted.Load())
	}
	for i := range condemnAfter {
		if why := n.condemned.why(bad); why != "" {
			t.Fatalf("after %d questions: %s", i, why)
		}
		if _, err := n.query(t.Context(), weighted(bad, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if n.condemned.why(bad) == "" || asked != 1 {
		t.Errorf("it has no number by its own weights, and is not condemned; the other was asked %d times", asked)
	}
	judged := 0
	n.condemned.seen.Range(func(any, any) bool { judged++; return true })
	if judged != 2 {
		t.Errorf("%d models are judged, of two versions", judged)
	}
}

// A version without a finite number for any candidate is condemned, unless the one
// that would rank in its place has none either; also as the second of a draft.
func TestAVersionOfNaNIsCondemned(t *testing.T) {
	for name, c := range map[string]struct {
		plus      string // what the version adds
		earlier   string // what the version before adds; empty: there is none
		taste     float64
		condemned bool
	}{
		"before it one that has numbers":  {none, "1.0", 1, true},
		"before it none":                  {none, "", 1, true},
		"before it one that has none":     {none, none, 1, false},
		"infinite, before it numbers":     {infinite, "1.0", 1, true},
		"NaN, before it one of infinity":  {none, infinite, 1, false},
		"infinite, and before it NaN too": {infinite, none, 1, false},
		"infinite now and then":           {sometimes, "1.0", 1, false},
	} {
		t.Run(name, func(t *testing.T) { nanIsCondemned(t, c.plus, c.earlier, c.taste, c.condemned, false) })
		t.Run(name+", beside another", func(t *testing.T) { nanIsCondemned(t, c.plus, c.earlier, c.taste, c.condemned, true) })
	}
}

func nanIsCondemned(t *testing.T, plus, before string, taste float64, condemned, beside bool) {
	n := hostileNode(t)
	id := admitBroken(t, n, "2", plus)
	earlier := func(string) (all []artefacts.Version) {
		if before != "" {
			all = append(all, artefacts.Version(admitBroken(t, n, "1", before)))
		}
		return all
	}
	n.condemned.earlier.Store(&earlier)
	req := by(id, true)
	if beside {
		req.Model, req.ModelVersion, req.ModelSum = "recency", "", ""
		req.Beside = []*nodev1.Model{{Name: id.Name, Version: id.Version, Sum: id.Sum}, {Name: "home"}}
	}
	req.Viewer.Features["taste"] = taste
	for i := range condemnAfter {
		if why := n.condemned.why(id); why != "" {
			t.Fatalf("after %d questions: %s", i, why)
		}
		if _, err := n.query(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); (why != "") != condemned {
		t.Errorf("condemned: %q", why)
	}
}

// Whom a version has no number for is the callers' choice: a version that has
// numbers for viewers of its golden rows is condemned for others only where nobody
// was given one for a while.
func TestCallersCondemnNoVersion(t *testing.T) {
	for name, c := range map[string]struct {
		golden    string        // viewers of golden rows
		silence   time.Duration // 0: it is over
		condemned bool
	}{
		"has numbers for its golden viewers":             {`{"taste":1}`, time.Hour, false},
		"and for nobody else for a while":                {`{"taste":1}`, 0, true},
		"has none for its golden viewers by live fields": {`{"taste":0}`, time.Hour, true}, // 0 of likes divided by it
	} {
		t.Run(name, func(t *testing.T) {
			n := hostileNode(t)
			none := func(string) []artefacts.Version { return nil }
			n.condemned.earlier.Store(&none)
			n.condemned.silence = c.silence
			const spec = "name: picky\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {taste: double}\nfeatures: {liked: (record.likes + record.impressions) / (viewer.taste + record.impressions)}\nscorer: linear\nparameters: {weights: {liked: 1}}\n"
			row := `{"features":{"liked":1},"score":1`
			switch c.golden {
			case `{"taste":1}`:
				row += `,"record":{"likes":1,"impressions":5},"viewer":{"taste":1}`
			case `{"taste":0}`:
				row += `,"record":{"likes":0,"impressions":5},"viewer":{"taste":0}`
			}
			pack := nodetest.PackOf(t, spec, row+"}", relevance.ShippedSchemas())
			id, err := pack.Admit(n.models, strings.Repeat("c", 64), relevance.ShippedSchemas())
			if err != nil {
				t.Fatal(err)
			}
			req := by(id, false)
			ask := func(taste map[string]float64, times int) {
				t.Helper()
				req.Viewer.Features = taste
				for range times {
					if _, err := n.query(t.Context(), req); err != nil {
						t.Fatal(err)
					}
				}
			}
			if c.silence > 0 && c.golden != `{"taste":0}` {
				ask(map[string]float64{"taste": 1}, 1)
			}
			if c.silence > 0 { // that nobody asked for a day says nothing of the version
				m, err := n.models.Find(id)
				if err != nil {
					t.Fatal(err)
				}
				n.condemned.evidence(m).since.Store(time.Now().Add(-24 * time.Hour).UnixNano())
			}
			ask(nil, 3*condemnAfter)
			if why := n.condemned.why(id); (why != "") != c.condemned {
				t.Errorf("condemned: %q", why)
			}
		})
	}
}

// A version that nobody asks by is not condemned for what the one behind it is asked, and
// as it has no number for that either, nor is that one: the question is at fault.
func TestTheVersionBeforeIsNotCondemnedUnasked(t *testing.T) {
	n := hostileNode(t)
	n.condemned.silence = 0
	var ids []relevance.ID
	for i := range 2 {
		spec := fmt.Sprintf("name: picky\nversion: \"%d\"\nschemas: [millrace.Activity]\nviewer: {taste: double}\nfeatures: {liked: (record.likes + record.impressions) / (viewer.taste + record.impressions)}\nscorer: linear\nparameters: {weights: {liked: 1}}\n", i+1)
		pack := nodetest.PackOf(t, spec, `{"features":{"liked":1},"score":1,"record":{"likes":1,"impressions":5},"viewer":{"taste":1}}`, relevance.ShippedSchemas())
		id, err := pack.Admit(n.models, strings.Repeat(fmt.Sprint(i+1), 64), relevance.ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	earlier := func(string) []artefacts.Version { return []artefacts.Version{artefacts.Version(ids[0])} }
	n.condemned.earlier.Store(&earlier)
	req := by(ids[1], false)
	req.Viewer.Features = nil
	for range 15 * condemnAfter {
		if _, err := n.query(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if why := n.condemned.why(id); why != "" {
			t.Errorf("%s is condemned: %s", id, why)
		}
	}
}

// The seconds in which a version had no number for anybody are those in which it was
// asked: not those since a node tried it by an earlier question, nor a quiet night
// after a few.
func TestQuietSecondsCondemnNothing(t *testing.T) {
	n := hostileNode(t)
	n.condemned.silence = time.Hour
	id := admitBroken(t, n, "2", "2.0")
	m, err := n.models.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	e := n.condemned.evidence(m)
	req := by(id, false)
	req.Viewer.Features = nil
	n.asked.Store(req)
	if _, candidates, err := n.uncovered(t.Context(), id); err != nil || candidates == 0 {
		t.Fatal(candidates, err)
	}
	if n := e.nan.Load(); n != 0 {
		t.Errorf("what the node asked itself counts as %d questions", n)
	}
	ask := func(times int) {
		t.Helper()
		for range times {
			if _, err := n.query(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask(condemnAfter / 2)
	night := time.Now().Add(-8 * time.Hour).UnixNano()
	e.since.Store(night)
	e.last.Store(night)
	ask(2 * condemnAfter)
	if why := n.condemned.why(id); why != "" {
		t.Errorf("after a quiet night: %s", why)
	}
	e.since.Store(night) // and it was asked all night
	ask(condemnAfter)
	if why := n.condemned.why(id); why == "" {
		t.Error("it has had a number for nobody all night, and is not condemned")
	}
}

// Questions of a time that no page is of, as one caller may ask them, speak neither
// against a version nor for it.
func TestAnotherTimeCondemnsNothing(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "2", none)
	ask := func(asOf time.Time, times int) {
		t.Helper()
		req := by(id, true)
		req.AsOfMs = asOf.UnixMilli()
		for range times {
			if _, err := n.query(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	now := time.Now()
	ask(now, condemnAfter/2)
	for _, asOf := range []time.Time{time.UnixMilli(0), time.UnixMilli(1), now.AddDate(-3, 0, 0), now.AddDate(0, 0, -2), now.AddDate(0, 0, 2), now.AddDate(3, 0, 0)} {
		ask(asOf, 2*condemnAfter)
	}
	if why := n.condemned.why(id); why != "" {
		t.Errorf("condemned: %s", why)
	}
	ask(now.Add(-23*time.Hour), condemnAfter-condemnAfter/2) // of a page
	if n.condemned.why(id) == "" {
		t.Error("not condemned by what pages are of")
	}
}

// One number among all that is none clears a version.
func TestANumberNowAndThenClearsAVersion(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "1", "2.0")
	for i := range 3 * condemnAfter {
		req := by(id, true)
		if i%condemnAfter != 0 {
			req.Viewer.Features = nil // without it nothing has a score
		}
		if _, err := n.query(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); why != "" {
		t.Errorf("condemned: %s", why)
	}
	m := modelOf(t, n, id)
	if n.condemned.evidence(m).nan.Load() != condemnAfter-1 {
		t.Errorf("%d questions in a row speak against it", n.condemned.evidence(m).nan.Load())
	}
}

// A version is not to blame for a process that was stopped, or a machine that was
// busy.
func TestAStoppedProcessCondemnsNothing(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	id := admitBroken(t, n, "1", "1.0")
	nodetest.BringLine(t, h, kafka.Timeline, `{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000000}`, 1)
	stalling.Store(true)
	defer stalling.Store(false)
	for range 3 {
		if resp, err := n.query(t.Context(), by(id, true)); err != nil || len(resp.Items) != 1 || resp.Items[0].Score != 7 {
			t.Fatal(resp, err)
		}
	}
	if why := n.condemned.why(id); why != "" {
		t.Errorf("condemned: %s", why)
	}
}

// Questions that are asked at once do not each rank to their end by a version that
// is far too slow: what some of them take condemns it, and all of them are over.
// Who does not give way has an answer.
func TestQuestionsByADearVersionEnd(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	id := admitBroken(t, n, "1", "1.0")
	const records, questions = 4000, 40
	var all []nodetest.Event
	for i := range records {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":"member:1","verb":"post","created_at":1700000000000}`, i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, nodetest.Event{Stream: kafka.Timeline, Entity: "member:1", Schema: schemas.Activity(), Body: body})
	}
	if err := nodetest.Bring(t.Context(), h, all, records); err != nil {
		t.Fatal(err)
	}
	crawled.Store(0)
	crawling.Store(true)
	defer crawling.Store(false)
	refused := make(chan bool, questions)
	for range questions {
		go func() {
			_, err := n.query(t.Context(), by(id, true))
			var e *millrace.Error
			refused <- errors.As(err, &e) && e.Reason == millrace.ReasonCondemned
		}()
	}
	answered := 0
	for range questions {
		if !<-refused {
			answered++
		}
	}
	if all := crawled.Load(); answered > 0 || all == 0 || all > records*questions/8 {
		t.Errorf("%d of %d questions were answered by it, by %d records", answered, questions, all)
	}
	crawling.Store(false)
	if resp, err := n.query(t.Context(), by(id, false)); err != nil || len(resp.Items) == 0 {
		t.Errorf("a broker that does not give way: %v, %v", resp, err)
	}
}

// Models that go alone, since one beside them was slow, each have their own
// ranking.
func TestModelsBesideThatGoAlone(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "2", "2.0")
	ask := func() []*nodev1.Ranking {
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
			r.Types, r.Viewer.Features = []string{"post"}, map[string]float64{"taste": 1}
			r.Beside = []*nodev1.Model{{Name: "recency"}, {Name: id.Name, Version: id.Version, Sum: id.Sum}, {Name: "home"}}
		}))
		if err != nil {
			t.Fatal(err)
		}
		return resp.Beside
	}
	n.condemned.joint.Store(1)
	want := ask()
	m, err := n.models.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	n.condemned.evidence(m).slow.Store(1)
	got := ask()
	if n.condemned.suspect(m) {
		t.Error("it is suspected still")
	}
	for i, r := range want {
		if len(r.Items) != 2 || !proto.Equal(got[i], r) {
			t.Errorf("%v, want %v", got[i], r)
		}
	}
}
