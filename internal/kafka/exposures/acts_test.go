package exposures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

func TestActs(t *testing.T) { testActs(t, kafkatest.Fake(t)) }

// Whose schemas are not there, as under a mistyped prefix, is told so.
func TestActsWithoutSchemas(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	shown := k.Content + "-shown"
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, shown, 3, nil))
	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Value: []byte("x")})
	kafkatest.Must(t, p.Flush(ctx))
	err = NewActReader(ActReaderConfig{Brokers: k.Brokers, Exposures: shown, Outcomes: k.Content, Schemas: "typo-schemas", Window: time.Hour}).Read(ctx, func(*outcome.Act) {})
	if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "topic_prefix" || e.Detail != "there is no topic typo-schemas" {
		t.Errorf("%v", err)
	}
}

// However often a topic is read, a schema is kept once, as it is known at last.
func TestActsKeepEachSchemaOnce(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	shown := k.Content + "-shown"
	showing(t, ctx, k, shown, schemas.Activity())
	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	acts := NewActReader(ActReaderConfig{Brokers: k.Brokers, Exposures: shown, Outcomes: k.Content, Schemas: k.Topics.Schemas, AnswerField: "answer_id", Window: time.Hour})
	for i := range 3 {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id": "c%d", "actor": "ann", "verb": "click", "created_at": %d, "object": "x"}`, i, time.Now().UnixMilli()))
		kafkatest.Must(t, err)
		p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Value: schemas.Frame(schemas.Activity().Fingerprint(), body)})
		kafkatest.Must(t, p.Flush(ctx))
		kafkatest.Must(t, acts.Read(ctx, func(*outcome.Act) {}))
	}
	if acts.newest == 0 || len(acts.seen) != 1 {
		t.Errorf("%d schemas are kept of outcomes up to %d", len(acts.seen), acts.newest)
	}
}

// showing makes a topic of exposures, and publishes the schema of outcomes.
func showing(t *testing.T, ctx context.Context, k kafkatest.Cluster, shown string, of *schemas.Schema) {
	t.Helper()
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, shown, 3, nil))
	registry, err := registry.New(nil, nil)
	kafkatest.Must(t, err)
	publisher, err := schemalog.Open(schemalog.Config{Brokers: k.Brokers, Topic: k.Topics.Schemas, Registry: registry})
	kafkatest.Must(t, err)
	defer publisher.Close()
	kafkatest.Must(t, publisher.Publish(ctx, of))
}

// testActs: each reading goes on where the one before ended, and finds an answer
// that comes after its outcome; what is no outcome is told; nothing is passed
// over by a reading that fails.
func testActs(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	shown := k.Content + "-shown"
	showing(t, ctx, k, shown, schemas.Activity())
	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	answers, err := NewProducer(k.Brokers, shown, nil)
	kafkatest.Must(t, err)
	defer answers.Close()

	now := time.Now().Truncate(time.Millisecond)
	show := func(viewer string, at time.Time) {
		t.Helper()
		r := &exposure.Record{
			ID: viewer + "'s", Time: millrace.TimeOf(at), Viewer: viewer, Feed: "f", Experiments: []exposure.Experiment{{Experiment: "e", Variant: "v", Unit: viewer, Probability: 1, ProbabilityInside: 1}},
			Models: []exposure.Model{{Name: "m"}}, Items: []exposure.Item{{Place: 1, ID: "x", Entity: "x", Team: -1}},
		}
		body, err := r.Append(nil)
		kafkatest.Must(t, err)
		kafkatest.Must(t, errors.Join(answers.Produce(ctx, []exposure.Entry{{Value: schemas.Frame(schemas.Exposure().Fingerprint(), body)}})...))
	}
	n := 0
	click := func(viewer string, at time.Time) {
		t.Helper()
		n++
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id": "c%d", "actor": %q, "verb": "click", "created_at": %d, "object": "x"}`, n, viewer, at.UnixMilli()))
		kafkatest.Must(t, err)
		p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Partition: int32(n % 3), Value: schemas.Frame(schemas.Activity().Fingerprint(), body)})
		kafkatest.Must(t, p.Flush(ctx))
	}
	cfg := ActReaderConfig{Brokers: k.Brokers, Exposures: shown, Outcomes: k.Content, Schemas: k.Topics.Schemas, AnswerField: "answer_id", Window: time.Hour, From: millrace.TimeOf(now.Add(-time.Hour))}
	acts := NewActReader(cfg)
	read := func(want ...string) {
		t.Helper()
		var got []string
		kafkatest.Must(t, acts.Read(ctx, func(a *outcome.Act) { got = append(got, a.Experiments[0].Unit) }))
		if !slices.Equal(got, want) {
			t.Errorf("read %q, want %q", got, want)
		}
	}
	read()
	if acts.Newest() != 0 || acts.Course().Newest() != 0 {
		t.Error("the newest of none")
	}
	show("ann", now.Add(-10*time.Minute))
	show("old", now.Add(-61*time.Minute)) // before the time that is asked for
	click("ann", now.Add(-8*time.Minute))
	click("old", now.Add(-8*time.Minute))
	click("bob", now.Add(-9*time.Minute))
	click("eve", now.Add(-9*time.Minute))
	read("ann")
	if newest := acts.Newest(); newest != millrace.TimeOf(now.Add(-8*time.Minute)) {
		t.Errorf("the newest is of %s", newest)
	}
	show("bob", now.Add(-10*time.Minute)) // late
	read("bob", "ann")
	show("eve", now.Add(-10*time.Minute)) // too late
	read()
	for i := range 20 {
		click("ann", now.Add(-time.Duration(i)*time.Second))
	}
	p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Value: []byte("no outcome")})
	kafkatest.Must(t, p.Flush(ctx))
	good := acts.cfg.Exposures
	acts.cfg.Exposures = shown + "-none"
	if err := acts.Read(ctx, func(*outcome.Act) {}); err == nil {
		t.Error("no topic of exposures")
	}
	acts.cfg.Exposures = good
	read("ann")
	click("none", now.Add(time.Hour)) // by a clock that is wrong
	read("ann")
	// One each of bob and ann belong to what was shown, and 20 more of ann's, under ids of
	// their own; old's answer is before the time, eve's came too late, and none was shown
	// nothing.
	if told, want := acts.Told(), (outcome.Report{Attributed: 22, Nothing: 3}); told != want {
		t.Errorf("told is %+v, want %+v", told, want)
	}
	if newest := acts.Newest(); newest < millrace.TimeOf(now) || newest > millrace.TimeOf(time.Now()) {
		t.Errorf("the newest is of %s", newest)
	}
	if acts.Faults.N == 0 {
		t.Error("what is no outcome is not told")
	}
	read() // all has been looked at twice
	faults := acts.Faults.N
	if read(); acts.Faults.N != faults || acts.Told() != (outcome.Report{Attributed: 22, Nothing: 3}) {
		t.Errorf("%d are no outcomes, after %d; told is %+v", acts.Faults.N, faults, acts.Told())
	}

	// A topic that was made again says so once, and is read from its beginning.
	deleted, err := kafkatest.Admin(t, k.Brokers).DeleteTopics(ctx, k.Content)
	kafkatest.Must(t, err)
	kafkatest.Must(t, deleted.Error())
	for kafka.EnsureContentTopic(ctx, k.Brokers, k.Content, 3, nil) != nil { // Kafka deletes when it gets to it
		kafkatest.Must(t, ctx.Err())
		patience.Sleep(ctx, 50*time.Millisecond)
	}
	again, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer again.Close()
	p = again
	click("bob", now.Add(-8*time.Minute))
	if err := acts.Read(ctx, func(*outcome.Act) { t.Error("of a topic that was not known to be another one") }); !errors.Is(err, exposure.ErrAnew) {
		t.Errorf("of another topic: %v", err)
	}
	read("bob")

	cfg.Outcomes += "-none"
	if e := (*millrace.Error)(nil); !errors.As(NewActReader(cfg).Read(ctx, nil), &e) || e.Field != "outcomes.topic" {
		t.Errorf("no topic of outcomes: %v", e)
	}
}
