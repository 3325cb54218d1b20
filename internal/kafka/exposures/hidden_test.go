package exposures

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/schemas"
)

// shownTo is an exposure as it is written.
func shownTo(t *testing.T, viewer string, at time.Time) []byte {
	t.Helper()
	r := &exposure.Record{
		ID: viewer + "'s", Time: millrace.TimeOf(at), Viewer: viewer, Feed: "f", Experiments: []exposure.Experiment{{Experiment: "e", Variant: "v", Unit: viewer, Probability: 1, ProbabilityInside: 1}},
		Models: []exposure.Model{{Name: "m"}}, Items: []exposure.Item{{Place: 1, ID: "x", Entity: "x", Team: -1}},
	}
	body, err := r.Append(nil)
	kafkatest.Must(t, err)
	return schemas.Frame(schemas.Exposure().Fingerprint(), body)
}

func TestExposuresAreHidden(t *testing.T) { testExposuresHidden(t, kafkatest.Fake(t)) }

// testExposuresHidden: exposures in and behind a transaction that is open lack to who
// follows the topic, and the end of the transaction, with no entry behind it, makes it
// whole; what cannot be opened is passed over.
func testExposuresHidden(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	l := NewReader(k.Brokers, k.Content, slog.New(slog.DiscardHandler))
	var mu sync.Mutex
	var got []string
	run, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		_ = l.Follow(run, 0, func(r *exposure.Record) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.Viewer)
		})
	})
	defer following.Wait()
	defer stop()
	show := func(partition int32, viewer string) {
		t.Helper()
		kafkatest.Write(t, k, k.Content, partition, string(shownTo(t, viewer, time.Now())))
	}
	looks := func(enough func(time.Time, error) bool) {
		t.Helper()
		for at, err := l.Whole(ctx); !enough(at, err); at, err = l.Whole(ctx) {
			if ctx.Err() != nil {
				t.Fatal(err)
			}
			patience.Sleep(ctx, 20*time.Millisecond)
		}
	}
	has := func(want ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("it has %q, want %q", got, want)
		}
	}
	whole := func(want ...string) {
		t.Helper()
		began := time.Now()
		looks(func(at time.Time, err error) bool { return err == nil && !at.Before(began) })
		has(want...)
	}
	hidden := func(places string) {
		t.Helper()
		for range 3 {
			looks(func(_ time.Time, err error) bool {
				_, ok := errors.AsType[*kafka.Hidden](err)
				if err == nil || ok && !(strings.Contains(err.Error(), "not read yet: "+places) && strings.Contains(err.Error(), " on, where a transaction is open since ")) {
					t.Fatalf("%v, want that %s are hidden", err, places)
				}
				return ok
			})
		}
	}
	show(0, "ann")
	show(1, "bob")
	whole("ann", "bob")

	end := kafkatest.Begin(t, k, k.Content, map[int32][]byte{1: shownTo(t, "who aborts", time.Now())})
	show(1, "behind")
	show(2, "beside")
	hidden(k.Content + "/1 from offset 1 on")
	has("ann", "beside", "bob")
	end(kgo.TryAbort)
	whole("ann", "behind", "beside", "bob")
	kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: []byte("no exposure"), 2: []byte("no exposure")})(kgo.TryAbort)
	whole("ann", "behind", "beside", "bob")

	end = kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: shownTo(t, "zoe", time.Now())})
	hidden(k.Content + "/0 from offset ")
	end(kgo.TryCommit)
	whole("ann", "behind", "beside", "bob", "zoe")

	// Of two that follow each other, what one hid is there once it has ended.
	end = kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: []byte("first")})
	hidden(k.Content + "/0 from offset ")
	next := kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: []byte("second")})
	between := time.Now()
	end(kgo.TryCommit)
	looks(func(at time.Time, err error) bool {
		if err == nil && at.After(between) {
			t.Errorf("whole as of %v behind the next", at.Sub(between))
		}
		return err == nil
	})
	hidden(k.Content + "/0 from offset ")
	next(kgo.TryCommit)

	kafkatest.Bomb(t, k, k.Content, 1)
	kafkatest.Bomb(t, k, k.Content, 2)
	whole("ann", "behind", "beside", "bob", "zoe")
	show(1, "zora")
	whole("ann", "behind", "beside", "bob", "zoe", "zora")
	others, lacks, err := Read(ctx, k.Brokers, k.Content, 0, func(*exposure.Record) {})
	if others != 4 || lacks != nil || err != nil {
		t.Errorf("%d entries are no exposures, %v, %v", others, lacks, err)
	}
}

func TestActsAreHidden(t *testing.T) { testActsHidden(t, kafkatest.Fake(t)) }

// testActsHidden: outcomes that a transaction hides are told, and counted once it ends,
// as are those whose answers were hidden, for however long; what cannot be opened is no
// outcome.
func testActsHidden(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	shown := k.Content + "-shown"
	showing(t, ctx, k, shown, schemas.Activity())
	now := time.Now().Truncate(time.Millisecond)
	clicked := func(id, viewer string) []byte {
		t.Helper()
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id": %q, "actor": %q, "verb": "click", "created_at": %d, "object": "x"}`, id, viewer, now.UnixMilli()))
		kafkatest.Must(t, err)
		return schemas.Frame(schemas.Activity().Fingerprint(), body)
	}
	acts := NewActReader(ActReaderConfig{Brokers: k.Brokers, Exposures: shown, Outcomes: k.Content, Schemas: k.Topics.Schemas, AnswerField: "answer_id", Window: time.Hour, From: millrace.TimeOf(now.Add(-time.Hour))})
	read := func(hides string, want ...string) {
		t.Helper()
		began, was := time.Now(), acts.Whole()
		var got []string
		err := acts.Read(ctx, func(a *outcome.Act) { got = append(got, a.Experiments[0].Unit) })
		if _, ok := errors.AsType[*kafka.Hidden](err); ok != (hides != "") || ok != (err != nil) || ok && !strings.Contains(err.Error(), hides) {
			t.Errorf("%v, want that %q is hidden", err, hides)
		}
		if at := acts.Whole(); err == nil && at.Before(began) || err != nil && !at.Equal(was) {
			t.Errorf("all is read as of %v, and was as of %v", at.Sub(began), was.Sub(began))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("read %q, want %q", got, want)
		}
	}
	for _, viewer := range []string{"ann", "bob", "eve"} {
		kafkatest.Write(t, k, shown, 0, string(shownTo(t, viewer, now.Add(-time.Minute))))
	}
	kafkatest.Write(t, k, k.Content, 0, string(clicked("1", "ann")))
	read("", "ann")
	end := kafkatest.Begin(t, k, k.Content, map[int32][]byte{1: clicked("2", "bob")})
	kafkatest.Write(t, k, k.Content, 0, string(clicked("3", "eve")))
	read(k.Content+"/1 from offset 0 on", "ann", "eve")
	read(k.Content+"/1 from offset 0 on", "eve")
	read(k.Content + "/1 from offset 0 on")
	end(kgo.TryCommit)
	read("", "bob")
	kafkatest.Begin(t, k, k.Content, map[int32][]byte{1: clicked("4", "bob")})(kgo.TryAbort)
	read("", "bob")
	read("")

	end = kafkatest.Begin(t, k, shown, map[int32][]byte{2: shownTo(t, "late", now.Add(-time.Minute))})
	kafkatest.Write(t, k, k.Content, 0, string(clicked("5", "late")))
	for range 4 {
		read(shown + "/2 from offset 0 on")
	}
	end(kgo.TryCommit)
	read("", "late")
	read("", "late")
	read("")

	kafkatest.Bomb(t, k, k.Content, 0)
	kafkatest.Bomb(t, k, shown, 0)
	kafkatest.Write(t, k, k.Content, 0, string(clicked("6", "eve")))
	read("", "eve")
	if acts.Faults.N != 1 || !strings.Contains(acts.Faults.First.Error(), "bytes once it is decompressed") {
		t.Errorf("%d faults, the first %v", acts.Faults.N, acts.Faults.First)
	}
}
