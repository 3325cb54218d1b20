package partitioner

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/schemas"
)

// timelines are what index nodes make of the timeline topic, by the rules of
// ARCHITECTURE.md, in their plainest form: the winner of each record in each
// timeline.
type timelines map[string]string

// fold brings the timeline topic's records together.
func fold(t *testing.T, records []*kgo.Record) timelines {
	t.Helper()
	type winner struct {
		version int64
		deleted bool
		value   string
	}
	won := map[string]winner{}
	for _, r := range records {
		framed, err := schemas.Unframe(r.Value)
		must(t, err)
		env, err := schemas.Activity().Envelope(framed.Body)
		must(t, err)
		at := fmt.Sprintf("%s/%s %s", r.Key, env.Type, env.Record.ID)
		rec := env.Record
		best, known := won[at]
		if !known || rec.Version > best.version || rec.Version == best.version && rec.Deleted && !best.deleted {
			won[at] = winner{rec.Version, rec.Deleted, string(r.Value)}
		}
	}
	out := timelines{}
	for at, w := range won {
		if !w.deleted {
			out[at] = w.value
		}
	}
	return out
}

// reusedIDs are records of few ids: versions that come again with other
// contents and other entities, tombstones, and records that come twice.
func reusedIDs(t *testing.T, n int) [][]byte {
	rng := rand.New(rand.NewPCG(7, 11))
	all := make([][]byte, n)
	for i := range all {
		if i > 0 && rng.IntN(6) == 0 {
			all[i] = all[rng.IntN(i)]
			continue
		}
		about := []string{``, `,"about":["group:1"]`, `,"about":["group:2","tag:go"]`, `,"about":["tag:go","group:1"]`}[rng.IntN(4)]
		deleted := ""
		if rng.IntN(12) == 0 {
			deleted = `,"deleted":true`
		}
		all[i] = activity(t, fmt.Sprint("p", rng.IntN(8)), fmt.Sprint("member:", rng.IntN(2)),
			fmt.Sprintf(`,"version":%d,"likes":%d%s%s`, rng.IntN(3), rng.IntN(3), about, deleted))
	}
	return all
}

// However the records of a topic are cut into transactions, the timelines are
// the same, and none is refused.
func TestBatchingDecidesNothing(t *testing.T) {
	const records = 120
	input := reusedIDs(t, records)
	rng := rand.New(rand.NewPCG(3, 5))
	batchings := map[string]func() int{
		"one by one": func() int { return 1 },
		"two by two": func() int { return 2 },
		"random":     func() int { return 1 + rng.IntN(40) },
		"all":        func() int { return 10_000 },
	}
	var want timelines
	for name, size := range batchings {
		w := newFake(t)
		w.publish(schemas.Activity())
		for _, value := range input {
			w.produce(&kgo.Record{Topic: "posts", Value: value})
		}
		committed := make(chan struct{}, records)
		p, stop := w.start(func(p *Partitioner) {
			p.pace.records = size()
			p.batch = p.pace.records
			p.on.committed = func() {
				p.pace.records = size()
				p.batch = p.pace.records
				committed <- struct{}{}
			}
		})
		of := func(v *prometheus.CounterVec) float64 { return value(v.WithLabelValues("posts")) }
		for of(p.metrics.consumed) < records {
			<-committed
		}
		if n := of(p.metrics.published); n != records {
			t.Errorf("%s: %v of %d records published", name, n, records)
		}
		out := w.read(int(of(p.metrics.copies)))
		stop()
		for _, dead := range out["dead-letters"] {
			t.Errorf("%s: refused: %s", name, header(dead, "detail"))
		}
		got := fold(t, out["timeline"])
		if want == nil {
			want = got
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %d live records in timelines, want %d, the same", name, len(got), len(want))
		}
		if len(got) == 0 {
			t.Errorf("%s: no timelines", name)
		}
	}
}

// What route says of a record does not depend on those before it.
func TestFatesAreOfTheRecordAlone(t *testing.T) {
	input := reusedIDs(t, 200)
	together := newRouter(t)
	for i, value := range input {
		in := record(value)
		alone, err := newRouter(t).route(t.Context(), in)
		must(t, err)
		got, err := together.route(t.Context(), in)
		must(t, err)
		if got.outcome != alone.outcome || fmt.Sprint(got.entities) != fmt.Sprint(alone.entities) {
			t.Errorf("record %d: outcome %d for %v behind others, %d for %v alone", i, got.outcome, got.entities, alone.outcome, alone.entities)
		}
	}
}

// record is an input from a content topic.
func record(value []byte) groups.Input {
	return groups.Input{Source: kafka.Source{Topic: "posts"}, Time: millrace.TimeOf(now), Value: value}
}
