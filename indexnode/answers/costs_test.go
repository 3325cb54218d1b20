//go:build linux

package answers

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

const dearSpec = `name: dear
version: "1"
schemas: [millrace.Activity]
viewer: {taste: double}
features: {length: size(record.text) * viewer.taste}
scorer: linear
parameters: {weights: {length: 1}}
`

// dear is set while the generated code of the model of dearSpec takes a hundred times
// what its admission reckoned: of a record, and of each byte of its text.
var dear atomic.Bool

func init() {
	m, err := relevance.Parse("spec.yaml", []byte(dearSpec), relevance.ShippedSchemas())
	if err != nil {
		panic(err)
	}
	p, err := relevance.Join(m).Plan(schemas.Activity().Layout(), nil)
	if err != nil {
		panic(err)
	}
	compute.RegisterModel(compute.Model{Name: "dear", Shape: p.Shape(), Score: func(k *compute.ModelArgs) {
		limit := time.Duration(0)
		for i, row := range k.Sel {
			text := k.Rows.StringAt(k.Columns[0], int(row))
			limit += m.CostLimit() + time.Duration(len(text))*relevance.ReadLimit
			k.Out[i] = compute.Size(text) * k.Numbers[0]
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for began := threadTime(); dear.Load() && threadTime()-began < 2*race.Slower*limit; {
		}
	}})
}

// threadTime is what this thread has used of a processor.
func threadTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A version whose records take far longer than its admission reckoned is condemned
// after as many questions as it takes to be sure, however short or long their texts
// are. Its golden rows do not show it.
func TestAVersionThatIsTooDearIsCondemned(t *testing.T) {
	for name, text := range map[string]string{"short texts": "short", "long texts": strings.Repeat("\u00e4", 8_000)} {
		t.Run("alone, "+name, func(t *testing.T) { dearIsCondemned(t, text, condemnAfter, by) })
		t.Run("as the second of a draft, "+name, func(t *testing.T) {
			dearIsCondemned(t, text, condemnAfter, func(id relevance.ID, givesWay bool) *nodev1.QueryRequest {
				req := by(relevance.ID{Name: "recency"}, givesWay)
				req.Beside = []*nodev1.Model{{Name: id.Name, Version: id.Version, Sum: id.Sum}}
				return req
			})
		})
		t.Run("beside others, "+name, func(t *testing.T) { // which are not to blame for it
			dearIsCondemned(t, text, aloneOf+condemnAfter, func(id relevance.ID, givesWay bool) *nodev1.QueryRequest {
				req := by(relevance.ID{Name: "recency"}, givesWay)
				req.Beside = []*nodev1.Model{{Name: "home"}, {Name: cheap.Name, Version: cheap.Version, Sum: cheap.Sum}, {Name: id.Name, Version: id.Version, Sum: id.Sum}}
				return req
			})
		})
	}
}

// cheap is a version beside the one that is dear.
var cheap = relevance.ID{Name: "broken", Version: "2", Sum: strings.Repeat("2", 64)}

func dearIsCondemned(t *testing.T, text string, questions int, by func(relevance.ID, bool) *nodev1.QueryRequest) {
	n := authored(t, 64, fmt.Sprintf(`"text":%q`, text))
	admitBroken(t, n, cheap.Version, "2.0")
	id, err := nodetest.PackOf(t, dearSpec, `{"features":{"length":1},"score":1,"record":{"text":"a"},"viewer":{"taste":1}}`, relevance.ShippedSchemas()).Admit(n.models, strings.Repeat("d", 64), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * condemnAfter {
		if _, err := n.query(t.Context(), by(id, true)); err != nil {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); why != "" {
		t.Fatalf("condemned though it is cheap: %s", why)
	}
	dear.Store(true)
	defer dear.Store(false)
	// One that moves to another thread on its way tells nothing of its time.
	for asked := 0; asked < 3*questions && n.condemned.why(id) == ""; asked++ {
		if _, err := n.query(t.Context(), by(id, true)); err != nil && n.condemned.why(id) == "" {
			t.Fatal(err)
		}
	}
	if why := n.condemned.why(id); !strings.Contains(why, "fifty times what its admission reckoned") {
		t.Errorf("condemned: %q", why)
	}
	if why, read := n.condemned.why(id), fmt.Sprintf("and %d more that read texts and lists", len(text)); !strings.Contains(why, read) {
		t.Errorf("condemned: %q, and not %q", why, read)
	}
	if why := n.condemned.why(cheap); why != "" {
		t.Errorf("condemned with it: %q", why)
	}
}

// authored is a node with records of one author that have the same fields.
func authored(t *testing.T, records int, fields string) *node {
	t.Helper()
	n, h := openNode(t, cache.Config{})
	for i := range records {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":"member:1","verb":"post","created_at":1700000000000,"about":["v"],%s}`, i, fields))
		if err == nil {
			err = nodetest.Bring(t.Context(), h, []nodetest.Event{{Stream: kafka.Timeline, Entity: "member:1", Schema: schemas.Activity(), Body: body}}, millrace.Offset(i+1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// However long the texts of records are, and of whatever letters, the pack of
// docs/models.md is not condemned for them: who may post would take the ranking from
// all others.
func TestLongTextsCondemnNothing(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{modelpack.SpecFile, modelpack.GoldenFile, "model.txt"} {
		b, err := os.ReadFile(filepath.Join("../../docs/models", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, modelpack.CardFile), []byte("Likes.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	pack, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text    string
		records int
	}{
		"an article":              {strings.Repeat("an honest text of some length, ", 1300), 100},
		"an article in Russian":   {strings.Repeat("\u0436", 8_000), 300},
		"of as many as one takes": {strings.Repeat("\u4e16", 300_000), 12},
		"of four bytes each":      {strings.Repeat("\U0001f600", 10_000), 100},
		"one":                     {strings.Repeat("\u0436", 450_000), 1},
	} {
		t.Run(name, func(t *testing.T) {
			notCondemned(t, authored(t, c.records, fmt.Sprintf(`"text":%q`, c.text)), pack, nil)
		})
	}
}

const searchingSpec = `name: searching
version: "1"
schemas: [millrace.Activity]
viewer: {word: string}
features:
  theirs: record.text.contains(record.language)
  word: record.text.contains(viewer.word)
  again: record.country.contains(viewer.word)
  listed: 'lookup({"a key that is no short one": 1, "another such key": 2}, record.text, 0)'
  crossed: size(cross(record.language, record.text))
  same: record.text == record.country
  later: record.text > record.country
scorer: linear
parameters: {weights: {theirs: 1, word: 1, again: 1, listed: 1, crossed: 1, same: 1, later: 1}}
`

// Nor for texts of authors and viewers that are made to be slow to search, to compare
// and to look up.
func TestHostileTextsCondemnNothing(t *testing.T) {
	n := authored(t, 12, fmt.Sprintf(`"text":%q,"country":%[1]q,"language":%q`, strings.Repeat("a", 200_000), colliding(100_000)))
	row := `{"features":{"theirs":1,"word":1,"again":0,"listed":0,"crossed":3,"same":0,"later":1},"score":6,"record":{"text":"b","language":"b","country":"a"},"viewer":{"word":"b"}}`
	notCondemned(t, n, nodetest.PackOf(t, searchingSpec, row, relevance.ShippedSchemas()), map[string]*structpb.Value{"word": structpb.NewStringValue(colliding(15_000))})
}

// colliding is a text that differs from n times "a" in its end alone, and that has
// the sum by which the library searches for it: of Thue and Morse's sequence that is
// 0 modulo 2^32.
func colliding(n int) string {
	text := strings.Repeat("a", n-1024)
	for i := range 1024 {
		text += string("b`"[bits.OnesCount(uint(i))&1])
	}
	return text
}

// notCondemned asks a node by a pack until it would be condemned, alone and beside
// another model.
func notCondemned(t *testing.T, n *node, pack *modelpack.Pack, texts map[string]*structpb.Value) {
	t.Helper()
	id, err := pack.Admit(n.models, strings.Repeat("1", 64), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for _, beside := range []bool{false, true} {
		for range 2 * condemnAfter {
			req := by(id, true)
			req.Viewer = &feedv1.Viewer{Id: "v", Attributes: texts}
			if beside {
				req.Model, req.ModelVersion, req.ModelSum = "recency", "", ""
				req.Beside = []*nodev1.Model{{Name: id.Name, Version: id.Version, Sum: id.Sum}}
			}
			resp, err := n.query(t.Context(), req)
			if err != nil || len(resp.Items) == 0 || beside && len(resp.Beside[0].Items) == 0 {
				t.Fatalf("%s; %v", n.condemned.why(id), err)
			}
		}
	}
	m, err := n.models.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	if e := n.condemned.evidence(m); n.condemned.why(id) != "" || e.slowIn.Load() > 0 {
		t.Errorf("%d questions speak against it: %s", e.slowIn.Load(), n.condemned.why(id))
	}
}
