package exposures

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/schemas"
)

// TestOnRealKafka runs what depends on the broker against a real one.
func TestOnRealKafka(t *testing.T) {
	kafkatest.OnReal(t, map[string]func(*testing.T, kafkatest.Cluster){
		"exposures":   testExposures,
		"shown-again": testExposuresAgain,
		"acts":        testActs,
		"hidden":      testExposuresHidden,
		"hidden-acts": testActsHidden,
	})
}

func TestExposures(t *testing.T) { testExposures(t, kafkatest.Fake(t)) }

// testExposures: entries are in the topic once, those of a key in one partition
// and in their order; one that no topic takes is refused and takes no other with
// it.
func testExposures(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	p, err := NewProducer(k.Brokers, k.Content, nil)
	kafkatest.Must(t, err)
	defer p.Close()
	want := map[string][]string{}
	for batch := range 3 {
		var entries []exposure.Entry
		for i := range 40 {
			key, value := fmt.Sprint("viewer", i%7), fmt.Sprintf("%d/%02d", batch, i)
			entries = append(entries, exposure.Entry{Key: []byte(key), Value: []byte(value)})
			want[key] = append(want[key], value)
		}
		entries = slices.Insert(entries, 20, exposure.Entry{Key: []byte("viewer"), Value: bytes.Repeat([]byte("x"), 5<<20)})
		for i, err := range p.Produce(ctx, entries) {
			if (i == 20) != errors.Is(err, exposure.ErrRefused) || (i != 20) != (err == nil) {
				t.Errorf("batch %d, entry %d: %v", batch, i, err)
			}
		}
	}
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.ConsumeTopics(k.Content), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	kafkatest.Must(t, err)
	defer cl.Close()
	got, partitions := map[string][]string{}, map[string]int32{}
	for n := 0; n < 120; {
		fetches := cl.PollFetches(ctx)
		kafkatest.Must(t, fetches.Err())
		for r := range fetches.RecordsAll() {
			n++
			key := string(r.Key)
			if at, ok := partitions[key]; ok && at != r.Partition {
				t.Errorf("%s is in partitions %d and %d", key, at, r.Partition)
			}
			partitions[key] = r.Partition
			got[key] = append(got[key], string(r.Value))
		}
	}
	for key := range want {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("%s has %v, want %v", key, got[key], want[key])
		}
	}
}

// What says that it was shown in a time to come, or before any, is no exposure.
func TestExposuresOfNoTime(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	for at, want := range map[millrace.Time]bool{
		math.MinInt64: false, -1: false, 0: true, millrace.TimeOf(now): true, millrace.TimeOf(now.Add(maxAhead)): true, millrace.TimeOf(now.Add(maxAhead + time.Millisecond)): false,
		253_402_300_799_000: false, math.MaxInt64: false,
	} {
		body, err := (&exposure.Record{ID: "a", Feed: "f"}).Append(nil)
		kafkatest.Must(t, err)
		body = slices.Concat(body[:2], binary.AppendVarint(nil, int64(at)), body[3:]) // which Append refuses of some
		if r, err := decodeExposure(schemas.Frame(schemas.Exposure().Fingerprint(), body), now); (err == nil) != want || err == nil && r.Time != at {
			t.Errorf("at %d: %v", int64(at), err)
		}
	}
}

func TestExposuresOfATopicMadeAgain(t *testing.T) { testExposuresAgain(t, kafkatest.Fake(t)) }

// testExposuresAgain: a topic that is deleted and made again is written to again.
func testExposuresAgain(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	topic := k.Content + "-again"
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, topic, 3, nil))
	p, err := NewProducer(k.Brokers, topic, nil)
	kafkatest.Must(t, err)
	defer p.Close()
	p.lookEvery = 500 * time.Millisecond
	write := func(value string) {
		t.Helper()
		for {
			err := errors.Join(p.Produce(ctx, []exposure.Entry{{Value: []byte(value)}})...)
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
			patience.Sleep(ctx, 50*time.Millisecond)
		}
	}
	for round := range 3 {
		write(fmt.Sprint("before ", round))
		deleted, err := kafkatest.Admin(t, k.Brokers).DeleteTopics(ctx, topic)
		kafkatest.Must(t, err)
		kafkatest.Must(t, deleted.Error())
		for { // Kafka deletes when it gets to it
			if err := kafka.EnsureContentTopic(ctx, k.Brokers, topic, 3, nil); err == nil {
				break
			}
			kafkatest.Must(t, ctx.Err())
			patience.Sleep(ctx, 50*time.Millisecond)
		}
		write(fmt.Sprint("after ", round))
		s, err := kafka.OpenTopic(ctx, k.Brokers, topic, 0)
		kafkatest.Must(t, err)
		n := 0
		kafkatest.Must(t, s.Read(ctx, func(value []byte, _ error) error {
			if n++; string(value) != fmt.Sprint("after ", round) {
				t.Errorf("round %d has %q", round, value)
			}
			return nil
		}))
		if n != 1 {
			t.Errorf("round %d: %d entries", round, n)
		}
	}
}

// Whoever follows a topic knows when it has all that the topic had at that moment;
// of one that is deleted it says so, until whoever writes to it has made it again.
func TestExposuresAreWhole(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	const topic = "whole"
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, topic, 3, nil))
	p, err := NewProducer(k.Brokers, topic, nil)
	kafkatest.Must(t, err)
	defer p.Close()
	p.lookEvery = 100 * time.Millisecond
	n := 0
	write := func(last string) {
		t.Helper()
		for range 5 {
			n++
			r := exposure.Record{ID: fmt.Sprint("a", n), Feed: "f", Time: millrace.TimeOf(time.Now())}
			if last != "" {
				r.ID = last
			}
			body, err := r.Append(nil)
			kafkatest.Must(t, err)
			for errors.Join(p.Produce(ctx, []exposure.Entry{{Key: []byte(r.ID), Value: schemas.Frame(schemas.Exposure().Fingerprint(), body)}})...) != nil {
				kafkatest.Must(t, ctx.Err())
			}
		}
	}
	write("")
	l := NewReader(k.Brokers, topic, slog.New(slog.DiscardHandler))
	if _, err := l.Whole(ctx); err == nil {
		t.Error("whole before it is followed")
	}
	var mu sync.Mutex
	var got []string
	hold := make(chan struct{})
	run, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		_ = l.Follow(run, 0, func(r *exposure.Record) {
			<-hold
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.ID)
		})
	})
	defer following.Wait()
	defer stop()
	for { // it says how much it lacks
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		_, err := l.Whole(short)
		cancel()
		if err == nil {
			t.Fatal("whole, and nothing has been taken")
		}
		if strings.Contains(err.Error(), "5 entries of whole are not read yet") {
			break
		}
		kafkatest.Must(t, ctx.Err())
	}
	close(hold)
	has := func(want int) (anew int) {
		t.Helper()
		for _, err := l.Whole(ctx); err != nil; _, err = l.Whole(ctx) {
			if errors.Is(err, exposure.ErrAnew) {
				anew++
			}
			kafkatest.Must(t, ctx.Err())
			patience.Sleep(ctx, 20*time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(got) != want {
			t.Errorf("whole with %d records of %d: %q", len(got), want, got)
		}
		return anew
	}
	has(5)
	write("")
	has(10)
	first := l.Topic()
	deleted, err := kafkatest.Admin(t, k.Brokers).DeleteTopics(ctx, topic)
	kafkatest.Must(t, err)
	kafkatest.Must(t, deleted.Error())
	if _, err := l.Whole(ctx); err == nil || !strings.Contains(err.Error(), "there is no topic whole") {
		t.Errorf("%v", err)
	}
	write("again") // which makes it anew
	if anew := has(15); anew != 1 {
		t.Errorf("told %d times that it is another topic", anew)
	}
	if now := l.Topic(); first.ID == "" || now.ID == "" || now.ID == first.ID || now.Name != topic {
		t.Errorf("topic %+v was made again, and is %+v", first, now)
	}
}

// Without Kafka a call ends with its context, and says so of every entry.
func TestExposuresEndWithTheirContext(t *testing.T) {
	_, addr := kafkatest.FreePort(t)
	p, err := NewProducer(kafka.At(addr), "exposures", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []error)
	go func() { done <- p.Produce(ctx, make([]exposure.Entry, 3)) }()
	cancel()
	results := <-done
	for i, err := range results {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("entry %d: %v", i, err)
		}
	}
	if len(results) != 3 {
		t.Errorf("%d results", len(results))
	}
	if _, err := NewProducer(kafka.At(addr), "", nil); err == nil {
		t.Error("no topic is needed")
	}
}

// A log of exposures makes its topic, and writes to it what it is given before it is closed.
func TestOpenLog(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	topic := k.Content + "-new"
	log, end, err := OpenLog(k.Brokers, topic, slog.New(slog.DiscardHandler))
	kafkatest.Must(t, err)
	log.Add(&exposure.Record{ID: "a", Feed: "f", Time: millrace.TimeOf(time.Now())})
	for log.Counts().Written < 1 {
		kafkatest.Must(t, ctx.Err())
		patience.Sleep(ctx, time.Millisecond)
	}
	end()
	if n, err := kafka.Partitions(ctx, k.Brokers, topic); err != nil || n != exposurePartitions {
		t.Errorf("it has %d partitions, %v", n, err)
	}
	var got []string
	others, hidden, err := Read(ctx, k.Brokers, topic, 0, func(r *exposure.Record) { got = append(got, r.ID) })
	if err != nil || others != 0 || hidden != nil || !slices.Equal(got, []string{"a"}) {
		t.Errorf("the topic has %q, and %d others, %v, %v", got, others, hidden, err)
	}
	if _, _, err := OpenLog(k.Brokers, "", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a topic without a name is written to")
	}
	if _, _, err := OpenLog(kafka.Brokers{}, topic, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("it is written to nobody")
	}
	for name, err := range map[string]error{
		"no topic":                 func() error { _, _, err := Read(ctx, k.Brokers, "none", 0, nil); return err }(),
		"no Kafka":                 func() error { _, _, err := Read(ctx, kafka.Brokers{}, topic, 0, nil); return err }(),
		"a follower of nobody":     NewReader(kafka.Brokers{}, topic, slog.New(slog.DiscardHandler)).Follow(ctx, 0, nil),
		"one that does not follow": func() error { _, err := NewReader(k.Brokers, topic, nil).Whole(ctx); return err }(),
	} {
		if err == nil {
			t.Errorf("%s, and that is no error", name)
		}
	}
}
