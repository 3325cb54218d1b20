package partitioner

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

func TestValidateTellsEverything(t *testing.T) {
	_, err := New(Config{Content: []string{"", "timeline", "posts", "posts"}, Future: -1}, slog.Default(), prometheus.NewRegistry())
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"brokers: nothing", "instance: the process has no name", "future: -1ns", "content[0]: a topic has no name", `content[1]: "timeline"`, `content[3]: "posts"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not tell %q", err, want)
		}
	}
}

func TestRouting(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity(), schemas.Features())
	plain := activity(t, "p1", "member:1", "")
	about := activity(t, "p2", "member:1", `,"about":["group:7","tag:go","group:7","member:1"]`)
	gone := activity(t, "p1", "member:1", `,"version":2,"deleted":true`)
	signals := encode(t, schemas.Features(), `{"entity":"member:3","subject":"p1","updated_at":"2026-03-01T11:00:00Z","engagement":0.5}`)
	in := []*kgo.Record{
		{Topic: "posts", Partition: 0, Value: plain},
		{Topic: "likes", Partition: 2, Key: []byte("anything"), Value: about},
		{Topic: "posts", Partition: 1, Value: gone},
		{Topic: "signals", Partition: 0, Value: signals},
	}
	w.produce(in...)
	w.start()
	out := w.read(6)

	var got []string
	for topic, all := range out {
		for _, r := range all {
			if r.Partition != int32(partition.OfBytes(r.Key)) {
				t.Errorf("key %q on partition %d", r.Key, r.Partition)
			}
			must(t, kafka.CheckCRC([]byte(header(r, kafka.HeaderCRC)), r.Value))
			got = append(got, fmt.Sprintf("%s %s %s %x", topic, r.Key, header(r, kafka.HeaderSource), r.Value))
		}
	}
	want := []string{
		fmt.Sprintf("timeline member:1 %s %x", source(in[0]), plain),
		fmt.Sprintf("timeline member:1 %s %x", source(in[1]), about),
		fmt.Sprintf("timeline group:7 %s %x", source(in[1]), about),
		fmt.Sprintf("timeline tag:go %s %x", source(in[1]), about),
		fmt.Sprintf("timeline member:1 %s %x", source(in[2]), gone),
		fmt.Sprintf("features member:3 %s %x", source(in[3]), signals),
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// commits makes a partitioner tell of its commits.
func commits(p *Partitioner) chan struct{} {
	c := make(chan struct{}, 1)
	p.on.committed = func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return c
}

// sum adds a counter over its reasons.
func sum(m *metrics, topic string) (consumed, accounted, dead float64) {
	of := func(v *prometheus.CounterVec) float64 { return value(v.WithLabelValues(topic)) }
	for _, reason := range []schemas.Reason{schemas.TrailingBytes, schemas.UnknownSchema, schemas.EmptyValue} {
		dead += value(m.deadLettered.WithLabelValues(topic, string(reason)))
	}
	return of(m.consumed), of(m.published) + of(m.ignored) + dead, dead
}

// Nothing disappears: over restarts, each input is accounted for once, in the
// metrics and in the topics.
func TestConservation(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	rng := rand.New(rand.NewPCG(1, 2))
	const rounds, each = 3, 400
	var consumed, accounted, dead, copies float64
	out := output{}
	for round := range rounds {
		records := make([]*kgo.Record, each)
		for i := range records {
			value := activity(t, fmt.Sprintf("r%d-%d", round, rng.IntN(each/2)), fmt.Sprintf("member:%d", rng.IntN(9)),
				[]string{"", "", `,"likes":1`, `,"about":["group:1"]`}[rng.IntN(4)])
			key := []byte("k")
			switch rng.IntN(10) {
			case 0:
				value = append(value, 0)
			case 1:
				value[5] ^= 1
			case 2:
				value = []byte{}
			case 3:
				value = nil
			}
			records[i] = &kgo.Record{Topic: []string{"posts", "likes"}[rng.IntN(2)], Partition: rng.Int32N(3), Key: key, Value: value}
		}
		var committed chan struct{}
		p, stop := w.start(func(p *Partitioner) { committed = commits(p) })
		w.produce(records...)
		for seen := 0.0; seen < each; {
			<-committed
			one, _, _ := sum(p.metrics, "posts")
			two, _, _ := sum(p.metrics, "likes")
			seen = one + two
		}
		stop()
		roundCopies, roundDead := 0.0, 0.0
		for _, topic := range []string{"posts", "likes"} {
			c, a, d := sum(p.metrics, topic)
			if c != a {
				t.Errorf("round %d: %s: %v consumed, %v accounted for", round, topic, c, a)
			}
			consumed, accounted, roundDead = consumed+c, accounted+a, roundDead+d
			roundCopies += value(p.metrics.copies.WithLabelValues(topic))
		}
		for topic, rs := range w.read(int(roundCopies + roundDead)) {
			out[topic] = append(out[topic], rs...)
		}
		copies, dead = copies+roundCopies, dead+roundDead
	}
	if consumed != rounds*each || accounted != consumed {
		t.Errorf("%v consumed, %v accounted for, %d produced", consumed, accounted, rounds*each)
	}
	if got := float64(len(out["timeline"])); got != copies || copies == 0 {
		t.Errorf("%v records in timeline, metrics say %v", got, copies)
	}
	if got := float64(len(out["dead-letters"])); got != dead || dead == 0 {
		t.Errorf("%v dead letters, metrics say %v", got, dead)
	}
}

// A record may overtake its schema by a little.
func TestSchemaComesLater(t *testing.T) {
	w := newFake(t)
	w.cfg.SchemaWait = time.Minute
	w.publish(schemas.Activity())
	late := encode(t, schemas.Note(), `{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z"}`)
	w.produce(&kgo.Record{Topic: "posts", Value: activity(t, "p1", "member:1", "")}, &kgo.Record{Topic: "posts", Value: late})
	waiting := make(chan struct{})
	w.start(func(p *Partitioner) {
		p.on.waiting = func() { close(waiting) }
	})
	<-waiting
	w.publish(schemas.Note())
	out := w.read(2)
	if len(out["timeline"]) != 2 {
		t.Errorf("%d of 2 records published", len(out["timeline"]))
	}
}

// Waiting for schemas that never come must not hold up what is healthy.
func TestUnknownSchemasDoNotHoldUp(t *testing.T) {
	w := newFake(t)
	w.cfg.SchemaWait = 200 * time.Millisecond
	w.publish(schemas.Activity())
	var records []*kgo.Record
	for i := range 300 {
		value := schemas.Frame(millrace.Fingerprint(1000+i), []byte("x"))
		if i%10 == 9 {
			value = activity(t, fmt.Sprint("p", i), "member:1", "")
		}
		records = append(records, &kgo.Record{Topic: "posts", Value: value})
	}
	w.produce(records...)
	waits, began := 0, time.Now()
	_, stop := w.start(func(p *Partitioner) { p.on.waiting = func() { waits++ } })
	out := w.read(300)
	stop()
	if len(out["timeline"]) != 30 || len(out["dead-letters"]) != 270 {
		t.Errorf("%d published, %d dead; want 30, 270", len(out["timeline"]), len(out["dead-letters"]))
	}
	if most := 3 + int(time.Since(began)/(idleShare*w.cfg.SchemaWait)); waits == 0 || waits > most {
		t.Errorf("waited for %d schemas, want once in %d waits' time", waits, idleShare)
	}
}

func TestPoisonPauses(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	for i := range 20 {
		w.produce(&kgo.Record{Topic: "posts", Partition: int32(i % 3), Value: []byte("poison")})
	}
	resting := make(chan struct{})
	p, stop := w.start(func(p *Partitioner) {
		p.pace.poisonRun, p.pace.pause, p.on.resting = 20, time.Hour, func() { close(resting) }
	})
	<-resting
	if value(p.metrics.paused) != 1 {
		t.Error("the gauge does not tell")
	}
	if out := w.read(20); len(out["dead-letters"]) != 20 {
		t.Errorf("%d of 20 dead letters", len(out["dead-letters"]))
	}
	stop() // at once, not after the pause
}

// Of two processes under one instance name the older stands by, and says why and
// where the other is. It does not take the name back while the other lives, and
// goes on when that is gone.
func testFenced(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	quick := func(p *Partitioner) { p.pace.standby = 10 * time.Millisecond }
	w.cfg.Address = "older:6061"
	older, _ := w.start(quick)
	one := activity(t, "p1", "member:1", "")
	produce := func() {
		w.produce(&kgo.Record{Topic: w.cfg.Content[0], Value: one})
		w.read(1)
	}
	// A real Kafka tells of the younger what the older said of itself.
	other := regexp.MustCompile(`instance one is another process, at (younger:6061 \(Kafka hears it from 127\.0\.0\.1\)|127\.0\.0\.1), and this one, at older:6061, stands by`)
	stands := func() bool {
		err := older.Ready()
		return errors.Is(err, groups.ErrFenced) && other.MatchString(err.Error())
	}
	produce()
	w.cfg.Address = "younger:6061"
	younger, stop := w.start(quick)
	for end := time.Now().Add(time.Minute); !stands(); {
		if time.Now().After(end) {
			t.Fatalf("the older never stood by for the younger: %v", older.Ready())
		}
		produce()
	}
	if n := value(older.metrics.failures); n < 1 {
		t.Error("that it was fenced is not counted")
	}
	for range 20 { // each by the younger
		produce()
		if errors.Is(younger.Ready(), groups.ErrFenced) || !stands() {
			t.Fatalf("the older: %v; the younger: %v", older.Ready(), younger.Ready())
		}
	}
	stop()
	w.untilReady(older, "")
	produce() // by the older
	if errors.Is(older.Ready(), groups.ErrFenced) {
		t.Errorf("alone again, the older says %v", older.Ready())
	}
}

func TestFenced(t *testing.T) {
	t.Parallel()
	testFenced(t, newFake(t))
}

// Until the younger has its place in the group the older goes on: were its
// transactions fenced before, it would not know why, and take the name back.
func TestFencedOnlyOnceReplaced(t *testing.T) {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(broker.Close)
	w := newWorld(t, kafka.At(broker.ListenAddrs()...), "")
	w.publish(schemas.Activity())
	older, _ := w.start()
	produce := func() {
		w.produce(&kgo.Record{Topic: "posts", Value: activity(t, "p1", "member:1", "")})
		w.read(1)
	}
	produce()
	joining, join := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	broker.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		if !held.Swap(true) {
			broker.SleepControl(func() { close(joining); <-join })
		}
		return nil, nil, false
	})
	younger, err := New(w.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	ctx, stop := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- younger.Run(ctx) }()
	<-joining
	for range 20 {
		produce()
	}
	if n := value(older.metrics.failures); n != 0 {
		t.Errorf("the older failed %v times before it was replaced", n)
	}
	stop()
	close(join)
	must(t, <-ended)
}

// Kafka goes away, while records flow and before a start, and comes back with
// what it had: nothing is lost or doubled.
func TestOutage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := kfakeOn(t, 0, dir)
	addr := broker.ListenAddrs()[0]
	_, portText, _ := net.SplitHostPort(addr)
	port, err := strconv.Atoi(portText)
	must(t, err)
	w := newWorld(t, kafka.At(addr), "")
	l := w.load()
	_, stop := w.start()
	for len(l.count) < 1000 {
		l.read()
	}
	broker.Close()
	broker = kfakeOn(t, port, dir)
	for len(l.count) < 2000 {
		l.read()
	}
	stop()
	broker.Close()
	w.start()
	kfakeOn(t, port, dir)
	w.checkOnce(l.finish(), l.count)
}

func TestRunRefusesAnotherPartitionCount(t *testing.T) {
	w := newFake(t)
	w.cfg.Topics.Timeline = "narrow"
	must(t, kafka.EnsureContentTopic(w.ctx, w.brokers, "narrow", 7, nil))
	p, err := New(w.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	if err := p.Run(w.ctx); !errors.Is(err, kafka.ErrPartitionCount) || !strings.Contains(err.Error(), "narrow has 7") {
		t.Errorf("Run: %v, want ErrPartitionCount", err)
	}
}

// A topic with Confluent framing: the id is looked up, the schema travels on
// the schemas topic, and the record in single-object encoding.
func TestConfluentFraming(t *testing.T) {
	w := newFake(t)
	var asked atomic.Int64
	registry := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		rw.Header().Set("Content-Type", "application/vnd.schemaregistry.v1+json")
		if !strings.HasPrefix(r.URL.Path, "/schemas/ids/7") {
			rw.WriteHeader(http.StatusNotFound)
			fmt.Fprint(rw, `{"error_code":40403,"message":"Schema not found"}`)
			return
		}
		json.NewEncoder(rw).Encode(map[string]string{"schema": schemas.Note().JSON()})
	}))
	defer registry.Close()
	w.cfg.SchemaRegistry = registry.URL
	single := encode(t, schemas.Note(), `{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z"}`)
	confluent := func(id uint32) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, id), single[10:]...)
	}
	w.produce(
		&kgo.Record{Topic: "posts", Value: confluent(7)},
		&kgo.Record{Topic: "posts", Value: confluent(8)},
		&kgo.Record{Topic: "posts", Value: confluent(8)},
	)
	w.start()
	out := w.read(3)
	if len(out["timeline"]) != 1 || string(out["timeline"][0].Value) != string(single) {
		t.Errorf("published %v, want the record in single-object encoding", out["timeline"])
	}
	for _, r := range out["dead-letters"] {
		if string(r.Value) != string(confluent(8)) || header(r, kafka.HeaderReason) != string(schemas.UnknownSchema) {
			t.Errorf("dead letter %x: %s", r.Value, header(r, kafka.HeaderReason))
		}
	}
	must(t, w.schemas.Refresh(w.ctx))
	if w.registry.Snapshot().ByFingerprint(schemas.Note().Fingerprint()) == nil {
		t.Error("the schema is not on the schemas topic")
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the registry was asked %d times, want once for each id", n)
	}
}

// A record under an id whose schema Millrace does not take is a dead letter, and
// what is behind it goes on.
func TestConfluentSchemaThatMillraceDoesNotTake(t *testing.T) {
	w := newFake(t)
	var asked atomic.Int64
	registry := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		text := schemas.Note().JSON()
		if strings.HasPrefix(r.URL.Path, "/schemas/ids/9") {
			asked.Add(1)
			text = `{"type":"record","name":"Plain","fields":[{"name":"id","type":"string"}]}`
		}
		json.NewEncoder(rw).Encode(map[string]string{"schema": text})
	}))
	defer registry.Close()
	w.cfg.SchemaRegistry = registry.URL
	single := encode(t, schemas.Note(), `{"id":"n1","author":"member:1","kind":"post","at":"2026-03-01T11:00:00Z"}`)
	under := func(id uint32) []byte { return append(binary.BigEndian.AppendUint32([]byte{0}, id), single[10:]...) }
	for _, id := range []uint32{9, 9, 7} {
		w.produce(&kgo.Record{Topic: "posts", Partition: 0, Value: under(id)})
	}
	w.start()
	out := w.read(3)
	if len(out["timeline"]) != 1 || string(out["timeline"][0].Value) != string(single) {
		t.Errorf("published %v, want the healthy record", out["timeline"])
	}
	for _, r := range out["dead-letters"] {
		if string(r.Value) != string(under(9)) || header(r, kafka.HeaderReason) != string(schemas.UnknownSchema) {
			t.Errorf("dead letter %x: %s", r.Value, header(r, kafka.HeaderReason))
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the registry was asked %d times for the schema, want once", n)
	}
}
