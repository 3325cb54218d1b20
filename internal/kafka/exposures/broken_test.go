package exposures

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/schemas"
)

// What is behind a batch that no reader can open is followed and read, wherever it is,
// and the batch is told and counted.
func TestBrokenBatchesOfExposures(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	var said strings.Builder
	l := NewReader(k.Brokers, k.Content, slog.New(slog.NewTextHandler(&said, nil)))
	from := time.Now().Add(-time.Hour)
	kafkatest.Broken(t, k, k.Content, 0, 2, true) // where reading begins
	kafkatest.Write(t, k, k.Content, 0, string(shownTo(t, "ann", time.Now())))
	kafkatest.Broken(t, k, k.Content, 0, 3, true)
	kafkatest.Write(t, k, k.Content, 0, string(shownTo(t, "bob", time.Now())))
	kafkatest.Broken(t, k, k.Content, 1, 1, true) // the last
	kafkatest.Broken(t, k, k.Content, 2, 5, false)
	var mu sync.Mutex
	var got []string
	follow, stop := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		done <- l.Follow(follow, millrace.TimeOf(from), func(r *exposure.Record) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.Viewer)
		})
	}()
	whole := func(want ...string) {
		t.Helper()
		for began := time.Now(); ; patience.Sleep(ctx, 20*time.Millisecond) {
			limited, cancel := context.WithTimeout(ctx, time.Minute)
			at, err := l.Whole(limited)
			cancel()
			if err == nil && !at.Before(began) {
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("it has %q, want %q", got, want)
		}
	}
	whole("ann", "bob")
	kafkatest.Write(t, k, k.Content, 1, string(shownTo(t, "eve", time.Now())))
	whole("ann", "bob", "eve")
	stop()
	<-done
	if !strings.Contains(said.String(), "entries that are no exposures are not counted") || !strings.Contains(said.String(), "is broken in the log") {
		t.Errorf("it said %s", said.String())
	}
	n := 0
	if others, hidden, err := Read(ctx, k.Brokers, k.Content, millrace.TimeOf(from), func(*exposure.Record) { n++ }); n != 3 || others != 4 || hidden != nil || err != nil {
		t.Errorf("%d exposures, and %d batches that are none, %v, %v", n, others, hidden, err)
	}
}

// So is one that is fetched with another behind it, by who follows and by who reads.
func TestBrokenBatchesOfExposuresThatAreReadPast(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	told := make(saying, 9)
	l := NewReader(k.Brokers, k.Content, slog.New(slog.NewTextHandler(told, nil)))
	from := millrace.TimeOf(time.Now().Add(-time.Hour))
	kafkatest.Broken(t, k, k.Content, 0, 2, false)
	kafkatest.Write(t, k, k.Content, 0, string(shownTo(t, "ann", time.Now())))
	n := 0
	if others, hidden, err := Read(ctx, k.Brokers, k.Content, from, func(*exposure.Record) { n++ }); n != 1 || others != 1 || hidden != nil || err != nil {
		t.Errorf("%d exposures, and %d batches that are none, %v, %v", n, others, hidden, err)
	}
	follow, stop := context.WithCancel(ctx)
	got := make(chan string, 9)
	done := make(chan error)
	go func() { done <- l.Follow(follow, from, func(r *exposure.Record) { got <- r.Viewer }) }()
	if one := <-got; one != "ann" {
		t.Errorf("%q came", one)
	}
	if said := <-told; !strings.Contains(said, "entries that are no exposures are not counted") || !strings.Contains(said, "its entries do not parse") {
		t.Errorf("it said %s", said)
	}
	for range 5 { // what was read stays so
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		if _, err := l.Whole(limited); err != nil {
			t.Errorf("not all is read: %v", err)
		}
		cancel()
	}
	stop()
	<-done
}

// saying is what a log says.
type saying chan string

func (s saying) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}

// What is asked of a topic from a time on is had from there on, though Kafka does not
// find that time for a batch which is broken.
func TestATimeInABrokenBatch(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	kafkatest.Write(t, k, k.Content, 0, string(shownTo(t, "before", time.Now())))
	patience.Sleep(ctx, 5*time.Millisecond)
	from := millrace.TimeOf(time.Now())
	kafkatest.Broken(t, k, k.Content, 0, 2, true)
	kafkatest.Write(t, k, k.Content, 0, string(shownTo(t, "since", time.Now())))
	var got []string
	if others, _, err := Read(ctx, k.Brokers, k.Content, from, func(r *exposure.Record) { got = append(got, r.Viewer) }); err != nil || others != 1 || !slices.Equal(got, []string{"since"}) {
		t.Errorf("read %q, %d others, %v", got, others, err)
	}
}

// Outcomes behind a batch that no reader can open are attributed, also to exposures
// behind another.
func TestBrokenBatchesOfOutcomes(t *testing.T) {
	t.Run("where the reading stands", func(t *testing.T) { brokenOutcomes(t, true) })
	t.Run("that are read past", func(t *testing.T) { brokenOutcomes(t, false) })
}

func brokenOutcomes(t *testing.T, compressed bool) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	shown := k.Content + "-shown"
	showing(t, ctx, k, shown, schemas.Activity())
	now := time.Now().Truncate(time.Millisecond)
	clicked := func(id, viewer string) string {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id": %q, "actor": %q, "verb": "click", "created_at": %d, "object": "x"}`, id, viewer, now.UnixMilli()))
		kafkatest.Must(t, err)
		return string(schemas.Frame(schemas.Activity().Fingerprint(), body))
	}
	acts := NewActReader(ActReaderConfig{Brokers: k.Brokers, Exposures: shown, Outcomes: k.Content, Schemas: k.Topics.Schemas, AnswerField: "answer_id", Window: time.Hour, From: millrace.TimeOf(now.Add(-time.Hour))})
	kafkatest.Broken(t, k, shown, 0, 2, compressed)
	kafkatest.Write(t, k, shown, 0, string(shownTo(t, "ann", now.Add(-time.Minute))))
	kafkatest.Write(t, k, k.Content, 0, clicked("1", "nobody"))
	kafkatest.Broken(t, k, k.Content, 0, 3, compressed)
	kafkatest.Write(t, k, k.Content, 0, clicked("2", "ann"))
	var got []string
	err := acts.Read(ctx, func(a *outcome.Act) { got = append(got, a.Experiments[0].Unit) })
	if err != nil || !slices.Equal(got, []string{"ann"}) {
		t.Errorf("read %q, %v", got, err)
	}
	if acts.Faults.N != 1 || !strings.Contains(acts.Faults.First.Error(), "is broken in the log") {
		t.Errorf("%d faults, the first %v", acts.Faults.N, acts.Faults.First)
	}
}
