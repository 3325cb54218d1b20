package partitioner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// newRouter knows the shipped schemas, and waits for no other.
func newRouter(tb testing.TB) *router {
	tb.Helper()
	registry, err := registry.New(nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		if _, err := registry.Admit(s); err != nil {
			tb.Fatal(err)
		}
	}
	return &router{
		features: map[string]bool{"signals": true},
		resolver: fresh(newResolver(registry, nil)),
		future:   schemas.DefaultFuture,
	}
}

func fresh(r *resolver) *resolver { r.fresh = true; return r }

// A Confluent schema that cannot follow those of its name is refused once in a
// while, and not by a look at the schemas topic for each of its records.
func TestRefusedConfluentSchemasAreRemembered(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Note())
	other, err := schemas.Parse([]byte(strings.Replace(schemas.Note().JSON(), `"name": "stars", "type": "int", "default": 0`, `"name": "stars", "type": "string", "default": ""`, 1)))
	must(t, err)
	asked := 0
	known, err := registry.New(nil, func(context.Context, uint32) (*schemas.Schema, error) { asked++; return other, nil })
	must(t, err)
	log, err := schemalog.Open(schemalog.Config{Brokers: w.brokers, Topic: w.cfg.Topics.Schemas, Registry: known})
	must(t, err)
	r := newResolver(known, log)
	_, first := r.writer(w.ctx, schemas.Framed{Confluent: true, ID: 7})
	if !unknown(first) || !strings.Contains(first.Error(), "stars") {
		t.Errorf("%v; want it refused for its field", first)
	}
	log.Close()
	if _, again := r.writer(w.ctx, schemas.Framed{Confluent: true, ID: 7}); !unknown(again) || again.Error() != first.Error() {
		t.Errorf("without the schemas topic: %v; want what was said before", again)
	}
	r.refused[7] = refusal{until: time.Now()}
	if _, later := r.writer(w.ctx, schemas.Framed{Confluent: true, ID: 7}); !errors.Is(later, kafka.ErrClosed) {
		t.Errorf("later: %v; want the schemas topic to be asked again", later)
	}
	if asked != 1 {
		t.Errorf("the registry was asked %d times", asked)
	}
}

// Records that name ever new ids of a registry which it does not have cost a request each
// only so often. Those that are known go on, and once the bad ones have ended, others do.
func TestEverNewSchemaIDsAreBounded(t *testing.T) {
	w := newFake(t)
	asked := 0
	known, err := registry.New(nil, func(_ context.Context, id uint32) (*schemas.Schema, error) {
		asked++
		if id <= 2 {
			return schemas.Note(), nil
		}
		return nil, &schemas.Error{Reason: schemas.UnknownSchema, Detail: fmt.Sprintf("schema registry: id %d: not found", id)}
	})
	must(t, err)
	log, err := schemalog.Open(schemalog.Config{Brokers: w.brokers, Topic: w.cfg.Topics.Schemas, Registry: known})
	must(t, err)
	defer log.Close()
	r := newResolver(known, log)
	unasked := 0
	r.unasked = func() { unasked++ }
	write := func(id uint32) error {
		_, err := r.writer(w.ctx, schemas.Framed{Confluent: true, ID: id})
		return err
	}
	must(t, write(1))
	const bad = 10 * misses
	for id := range uint32(bad) {
		if err := write(1000 + id); !unknown(err) {
			t.Fatalf("id %d: %v", id, err)
		}
	}
	if asked < misses || asked > 2*misses || asked+unasked != bad+1 {
		t.Errorf("asked for %d of %d ids, and not for %d", asked, bad+1, unasked)
	}
	must(t, write(1)) // which is known
	if err := write(2); !unknown(err) || !strings.Contains(err.Error(), "was not asked for id 2") || !strings.Contains(err.Error(), "replay") {
		t.Errorf("a new one meanwhile: %v", err)
	}
	r.misses = newResolver(known, log).misses // as it is a while later
	must(t, write(2))
}

// FuzzRoute: whatever comes in has an outcome, and comes out as it was.
func FuzzRoute(f *testing.F) {
	fp := schemas.Note().Fingerprint()
	f.Add(false, schemas.Frame(fp, note("n1", "member:1", "post", now.UnixMilli(), "hello")))
	f.Add(false, schemas.Frame(fp, note("n1", "member:1", "post", -1, "\xff")))
	f.Add(true, signal(0.5))
	f.Add(false, []byte{})
	f.Add(false, []byte{0, 0, 0, 0, 1, 2})
	r := newRouter(f)
	f.Fuzz(func(t *testing.T, features bool, value []byte) {
		in := record(value)
		if features {
			in.Topic = "signals"
		}
		v, err := r.route(t.Context(), in)
		switch {
		case err != nil:
			t.Errorf("undecided: %v", err)
		case v.outcome == dead && (v.refusal.Reason == "" || v.refusal.Detail == ""):
			t.Errorf("refused without saying why: %+v", v.refusal)
		case v.outcome == published && (len(v.entities) == 0 || v.entities[0] == "" || !bytes.Equal(v.value, value)):
			t.Errorf("published to %q as %x", v.entities, v.value)
		case v.outcome != dead && v.outcome != published:
			t.Errorf("outcome %d of a single record", v.outcome)
		}
	})
}

// What one record costs before Kafka has its share.
func BenchmarkRoute(b *testing.B) {
	r := newRouter(b)
	const n = 1000
	var values [n][]byte
	for i := range values {
		values[i] = schemas.Frame(schemas.Note().Fingerprint(),
			note(strconv.Itoa(i), "member:1", "post", now.UnixMilli(), "some text of the usual length, or nearly so"))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		in := groups.Input{Source: kafka.Source{Topic: "posts", Partition: 1, Offset: 123456}, Time: millrace.TimeOf(now), Value: values[i%n]}
		v, err := r.route(b.Context(), in)
		if err != nil || v.outcome != published {
			b.Fatal(err, v.refusal)
		}
		for _, e := range v.entities {
			kafka.ToStream("timeline", e, v.value, in.Source)
		}
	}
}

// A schema that is not known is waited for as long as the configuration says, but not once it
// is refused, and not again soon after a wait in vain. What cannot be decided now is no
// refusal.
func TestWaitsForSchemas(t *testing.T) {
	w := newFake(t)
	ctx, stop := context.WithCancel(w.ctx)
	defer stop()
	waits := 0
	r := newResolver(w.registry, w.schemas)
	r.waiting = func() { waits++ }
	ask := func(fp millrace.Fingerprint) error {
		t.Helper()
		_, err := r.writer(ctx, schemas.Framed{Fingerprint: fp})
		return err
	}
	must(t, schemalog.Refuse(w.ctx, w.brokers, w.cfg.Topics.Schemas, 7, "ann"))
	for i, c := range []struct {
		wait time.Duration
		fp   millrace.Fingerprint
		want int // waits so far
	}{{0, 1, 0}, {-1, 1, 0}, {time.Hour, 7, 0}, {time.Millisecond, 1, 1}, {time.Hour, 1, 1}} {
		r.wait = c.wait
		r.polled()
		if err := ask(c.fp); !unknown(err) || waits != c.want || !r.fresh {
			t.Errorf("case %d: %v after %d waits", i, err, waits)
		}
		if i == 3 {
			if left := time.Until(r.nextWait); left > idleShare*c.wait {
				t.Errorf("it waits no more for %v", left)
			}
			r.nextWait = r.nextWait.Add(time.Hour)
		}
	}
	r.nextWait = time.Time{}
	r.waiting = func() { // meanwhile it is refused
		if err := schemalog.Refuse(w.ctx, w.brokers, w.cfg.Topics.Schemas, 8, "ann"); err != nil {
			t.Error(err)
		}
	}
	if err := ask(8); !unknown(err) || !r.nextWait.IsZero() {
		t.Errorf("refused meanwhile: %v", err)
	}
	r.waiting = func() { // meanwhile it comes
		if err := w.schemas.Publish(w.ctx, schemas.Note()); err != nil {
			t.Error(err)
		}
	}
	if s, err := r.writer(ctx, schemas.Framed{Fingerprint: schemas.Note().Fingerprint()}); err != nil || s.Name() != schemas.Note().Name() {
		t.Errorf("one that came meanwhile: %v", err)
	}
	r.waiting = stop
	if err := ask(9); !errors.Is(err, context.Canceled) || unknown(err) {
		t.Errorf("ended meanwhile: %v", err)
	}
	r.polled()
	if err := ask(9); !errors.Is(err, context.Canceled) || unknown(err) {
		t.Errorf("ended before: %v", err)
	}
}
