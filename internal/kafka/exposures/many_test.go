package exposures

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/schemas"
)

const clicked = `{"type": "record", "name": "Click", "namespace": "shop", "fields": [
  {"name": "event", "type": "string", "millrace": "id"},
  {"name": "who", "type": "string", "millrace": "entity"},
  {"name": "on", "type": "string", "millrace": "object"},
  {"name": "what", "type": "string", "millrace": "type"},
  {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}, "millrace": "time"},
  {"name": "answer_id", "type": ["null", "string"], "default": null}
]}`

// deed is an outcome of the tests' schema.
type deed struct {
	who, on, what, answer string
	at                    time.Time
}

// acting writes answers and outcomes, the latter as whoever logs clicks might: in
// batches that are compressed well.
func acting(t *testing.T, ctx context.Context, k kafkatest.Cluster, answers []*exposure.Record, n int, next func(i int) deed) ActReaderConfig {
	t.Helper()
	shown := k.Content + "-shown"
	schema, err := schemas.Parse([]byte(clicked))
	kafkatest.Must(t, err)
	showing(t, ctx, k, shown, schema)
	log, err := NewProducer(k.Brokers, shown, nil)
	kafkatest.Must(t, err)
	defer log.Close()
	for _, r := range answers {
		body, err := r.Append(nil)
		kafkatest.Must(t, err)
		kafkatest.Must(t, errors.Join(log.Produce(ctx, []exposure.Entry{{Key: []byte(r.Viewer), Value: schemas.Frame(schemas.Exposure().Fingerprint(), body)}})...))
	}
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	kafkatest.Must(t, err)
	defer cl.Close()
	for i := range n {
		d := next(i)
		answer := "null"
		if d.answer != "" {
			answer = fmt.Sprintf("%q", d.answer)
		}
		body, err := schema.EncodeJSON(fmt.Appendf(nil, `{"event": "c%d", "who": %q, "on": %q, "what": %q, "when": %d, "answer_id": %s}`, i, d.who, d.on, d.what, d.at.UnixMilli(), answer))
		kafkatest.Must(t, err)
		cl.Produce(ctx, &kgo.Record{Topic: k.Content, Partition: int32(i % 3), Value: schemas.Frame(schema.Fingerprint(), body)}, func(_ *kgo.Record, err error) { kafkatest.Must(t, err) })
	}
	kafkatest.Must(t, cl.Flush(ctx))
	return ActReaderConfig{Brokers: k.Brokers, Exposures: shown, Outcomes: k.Content, Schemas: k.Topics.Schemas, AnswerField: "answer_id", Window: 10 * time.Minute, Actions: []string{"click"}}
}

// What is found does not depend on how many outcomes are looked for at a time, whoever
// they are of and in whatever order they come.
func TestActsInPassages(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	ctx := kafkatest.Deadline(t)
	began := time.Now().Add(-2 * time.Hour)
	at := func() time.Time { return began.Add(time.Duration(rnd.IntN(7200)) * time.Second) }
	var answers []*exposure.Record
	for i := range 100 {
		who := fmt.Sprint("v", rnd.IntN(30))
		r := &exposure.Record{
			ID: fmt.Sprint("a", i), Time: millrace.TimeOf(at()), Viewer: who, Feed: "f", Experiments: []exposure.Experiment{{Experiment: "e", Variant: "v", Unit: who, Probability: 1, ProbabilityInside: 1}},
			Models: []exposure.Model{{Name: "m"}},
		}
		for j := range 3 {
			r.Items = append(r.Items, exposure.Item{Place: j + 1, ID: fmt.Sprint("x", rnd.IntN(4)), Entity: "x", Team: -1})
		}
		answers = append(answers, r)
	}
	cfg := acting(t, ctx, kafkatest.Fake(t), answers, 2000, func(int) deed {
		d := deed{fmt.Sprint("v", rnd.IntN(60)), fmt.Sprint("x", rnd.IntN(4)), []string{"click", "view"}[rnd.IntN(2)], "", at()}
		switch rnd.IntN(4) {
		case 0:
			d.answer = fmt.Sprint("a", rnd.IntN(200))
		case 1:
			r := answers[rnd.IntN(100)]
			d.who, d.on, d.at, d.answer = r.Viewer, r.Items[rnd.IntN(3)].ID, r.Time.Std().Add(time.Duration(rnd.IntN(700))*time.Second), r.ID
		}
		return d
	})
	// Kafka has all of them of now, so that every passage has every answer.
	found := func(most int) map[outcome.Place]millrace.Time {
		all := map[outcome.Place]millrace.Time{}
		a := NewActReader(cfg)
		a.most = most
		kafkatest.Must(t, a.Read(ctx, func(a *outcome.Act) {
			if a.Action != "click" {
				t.Errorf("%s is not asked for", a.Action)
			}
			if was, ok := all[a.Item]; !ok || a.At < was {
				all[a.Item] = a.At
			}
		}))
		return all
	}
	want := found(maxActs)
	if len(want) < 10 {
		t.Fatalf("%d acts", len(want))
	}
	for _, most := range []int{1, 7, 100} {
		if got := found(most); !maps.Equal(got, want) {
			t.Errorf("%d at a time: %d acts, %v\nwant %d, %v", most, len(got), got, len(want), want)
		}
	}
}

// The memory of a reading does not grow with how many outcomes there are of viewers
// who were shown nothing.
func TestMemoryOfActs(t *testing.T) {
	ctx := kafkatest.Deadline(t)
	now := time.Now()
	answers := []*exposure.Record{{ID: "a", Time: millrace.TimeOf(now), Viewer: "ann", Feed: "f", Models: []exposure.Model{{Name: "m"}}, Items: []exposure.Item{{Place: 1, ID: "x", Entity: "x", Team: -1}}}}
	long := strings.Repeat("stranger", 20)
	cfg := acting(t, ctx, kafkatest.Fake(t), answers, 300_000, func(i int) deed {
		return deed{who: fmt.Sprint(long, i), on: "x", what: "click", at: now}
	})
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before, most := heap(), 0
	a := NewActReader(cfg)
	a.most = 20_000
	done := make(chan error)
	go func() { done <- a.Read(ctx, func(*outcome.Act) { t.Error("of whom?") }) }()
	for {
		select {
		case err := <-done:
			kafkatest.Must(t, err)
			if most > 80<<20 { // Kafka's own is among it
				t.Errorf("%d MB", most>>20)
			}
			return
		default:
			most = max(most, heap()-before)
		}
	}
}

// How outcomes came along is counted once of each, however often it is looked at and however
// many readings fail; and one that has come now does not hide behind a clock that is behind.
func TestCourseOfActs(t *testing.T) {
	ctx := kafkatest.Deadline(t)
	k := kafkatest.Fake(t)
	now := time.Now()
	answers := []*exposure.Record{{ID: "a", Time: millrace.TimeOf(now.Add(-5 * time.Minute)), Viewer: "ann", Feed: "f", Models: []exposure.Model{{Name: "m"}}, Items: []exposure.Item{{Place: 1, ID: "x", Entity: "x", Team: -1}}}}
	cfg := acting(t, ctx, k, answers, 10, func(i int) deed {
		if i == 9 {
			return deed{"ann", "x", "click", "a", now.Add(-4 * time.Minute)}
		}
		return deed{fmt.Sprint("eve", i), "x", "click", "a", now.Add(-time.Minute)}
	})
	a := NewActReader(cfg)
	a.most = 1
	for range 5 {
		failing, fail := context.WithCancel(ctx)
		if err := a.Read(failing, func(*outcome.Act) { fail() }); err == nil {
			t.Error("it does not fail")
		}
		fail()
	}
	read := func() *outcome.Stretch {
		t.Helper()
		kafkatest.Must(t, a.Read(ctx, func(*outcome.Act) {}))
		return a.Course().Now()
	}
	for range 3 {
		if s := read(); s != nil || a.Course().Newest() != millrace.TimeOf(now.Add(-4*time.Minute)) {
			t.Errorf("%v, newest %s", s, a.Course().Newest())
		}
	}
	acting(t, ctx, k, nil, 1, func(int) deed { return deed{"mallory", "x", "click", "a", now.Add(-time.Hour)} })
	for range 3 {
		if s := read(); s == nil || s.Wrong != 10 || s.Right != 0 {
			t.Errorf("%v", s)
		}
	}
}
