package indexnode

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/kernel"
	"github.com/millrace/millrace/relevance/weights"
	"github.com/millrace/millrace/schemas"
)

// breaking is set while the generated code of the models of brokenSpec panics, and
// stalling while it waits as if its process were stopped.
var breaking, stalling atomic.Bool

const brokenSpec = `name: broken
version: %q
schemas: [millrace.Activity]
viewer: {taste: double}
features: {liked: record.likes * viewer.taste + %s}
scorer: linear
parameters: {weights: {liked: 1}}
`

// none is what no live record has a number for, as golden rows do not show.
const none = "record.impressions / record.impressions"

// admitBroken admits a version of a model that adds a number to each score, and
// has none where the number is not.
func admitBroken(t *testing.T, n *Node, version, plus string) relevance.ID {
	t.Helper()
	score := map[string]int{"1.0": 2, "2.0": 3, none: 2}[plus]
	pack := packOf(t, fmt.Sprintf(brokenSpec, version, plus), fmt.Sprintf(`{"features":{"liked":%d},"score":%[1]d,"record":{"likes":1,"impressions":5},"viewer":{"taste":1}}`, score), relevance.ShippedSchemas())
	id, err := n.models.Admit(pack, strings.Repeat(version, 64), relevance.ShippedSchemas())
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
			kernel.Register(kernel.Generated{Model: "broken", Shape: p.Shape(), Score: func(k *kernel.Args) {
				if breaking.Load() {
					panic("a broken table")
				}
				if stalling.Load() {
					time.Sleep(tooLong + time.Millisecond)
				}
				for i := range k.Sel {
					k.Out[i] = 7
				}
			}})
		}
	}
}

func by(id relevance.ID, givesWay bool) *nodev1.QueryRequest {
	return all(func(r *nodev1.QueryRequest) {
		r.Types, r.Model, r.ModelVersion, r.ModelSum, r.GivesWay = []string{"post"}, id.Name, id.Version, id.Sum, givesWay
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
	if resp, err := n.query(t.Context(), all(func(*nodev1.QueryRequest) {})); err != nil || len(resp.Items) == 0 {
		t.Errorf("another model: %v, %v", resp, err)
	}
	// The cluster says so, and then no more: it is released.
	v := cluster.Version(id)
	n.condemned.takeOver(map[cluster.Version]cluster.Condemnation{v: {Version: v.Version, Sum: v.Sum, Why: "it panicked"}})
	n.condemned.takeOver(nil)
	if resp, err := n.query(t.Context(), by(id, true)); err != nil || resp.Items[0].Score != 7 {
		t.Errorf("released: %v, %v", resp, err)
	}
}

// A model that panics beside another is condemned, and the other is not.
func TestAVersionThatPanicsBesideAnother(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "1", "1.0")
	breaking.Store(true)
	defer breaking.Store(false)
	for range 2 {
		resp, err := n.query(t.Context(), all(func(r *nodev1.QueryRequest) {
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

// Weights of a variant that give no number are no fault of the version: what the
// version does by its own decides.
func TestWeightsCondemnNoVersion(t *testing.T) {
	n := hostileNode(t)
	id := admitBroken(t, n, "2", none)
	weighted := by(id, true)
	weighted.Weights = weights.Form(map[string]float64{"liked": 2})
	weighted.WeightsSum = weights.Sum(weighted.Weights)
	for range 2 * condemnAfter {
		if resp, err := n.query(t.Context(), weighted); err != nil || len(resp.Items) == 0 {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); why != "" {
		t.Fatal(why)
	}
	for range condemnAfter {
		if _, err := n.query(t.Context(), by(id, true)); err != nil {
			t.Fatal(err)
		}
	}
	if n.condemned.why(id) == "" {
		t.Error("by its own weights: it is not condemned")
	}
	judged := 0
	n.condemned.seen.Range(func(any, any) bool { judged++; return true })
	if judged != 1 {
		t.Errorf("%d models are judged, the same one", judged)
	}
}

// A version without a number for any candidate is condemned, unless the one that
// would rank in its place has none either.
func TestAVersionOfNaNIsCondemned(t *testing.T) {
	for name, c := range map[string]struct {
		earlier   string // what the version before adds; empty: there is none
		taste     float64
		condemned bool
	}{
		"before it one that has numbers": {"1.0", 1, true},
		"before it none":                 {"", 1, true},
		"before it one that has none":    {none, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := hostileNode(t)
			id := admitBroken(t, n, "2", none)
			earlier := func(string) (all []cluster.Version) {
				if c.earlier != "" {
					all = append(all, cluster.Version(admitBroken(t, n, "1", c.earlier)))
				}
				return all
			}
			n.condemned.earlier.Store(&earlier)
			for i := range condemnAfter {
				if why := n.condemned.why(id); why != "" {
					t.Fatalf("after %d questions: %s", i, why)
				}
				if _, err := n.query(t.Context(), by(id, true)); err != nil {
					t.Fatal(err)
				}
			}
			if why := n.condemned.why(id); (why != "") != c.condemned {
				t.Errorf("condemned: %q", why)
			}
		})
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
}

const dearSpec = `name: dear
version: "1"
schemas: [millrace.Activity]
viewer: {taste: double}
features: {length: size(record.text) * viewer.taste}
scorer: linear
parameters: {weights: {length: 1}}
`

// A version is not to blame for a process that was stopped, or a machine that was
// busy.
func TestAStoppedProcessCondemnsNothing(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	id := admitBroken(t, n, "1", "1.0")
	bringLine(t, h, kafka.Timeline, `{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000000}`, 1)
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

// A version whose records take far longer than its admission reckoned is
// condemned after as many questions as it takes to be sure. Its golden rows, and
// short texts, do not show it.
func TestAVersionThatIsTooDearIsCondemned(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	id, err := n.models.Admit(packOf(t, dearSpec, `{"features":{"length":1},"score":1,"record":{"text":"a"},"viewer":{"taste":1}}`, relevance.ShippedSchemas()), strings.Repeat("d", 64), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	line := func(id, text string) string {
		return fmt.Sprintf(`{"id":%q,"actor":"member:1","verb":"post","created_at":1700000000000,"text":%q}`, id, text)
	}
	bringLine(t, h, kafka.Timeline, line("r1", "short"), 1)
	for range 3 * condemnAfter {
		if _, err := n.query(t.Context(), by(id, true)); err != nil {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); why != "" {
		t.Fatalf("condemned though it is cheap: %s", why)
	}
	bringLine(t, h, kafka.Timeline, line("r2", strings.Repeat("ä", 400_000)), 2)
	for range condemnAfter {
		if _, err := n.query(t.Context(), by(id, true)); err != nil {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); !strings.Contains(why, "fifty times what its admission reckoned") {
		t.Errorf("condemned: %q", why)
	}
}
