package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// partitioner joins a group that consumes topics, as partitioners do.
func partitioner(t *testing.T, ctx context.Context, brokers kafka.Brokers, topics ...string) *groups.Session {
	t.Helper()
	s, err := groups.OpenSession(ctx, groups.SessionConfig{Brokers: brokers, Group: "partitioner", Instance: "one", Topics: topics, DeadLetters: "dead-letters"})
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// oneNote is a load of one record.
func oneNote(t *testing.T, brokers kafka.Brokers, topic string) Options {
	t.Helper()
	name := filepath.Join(t.TempDir(), "one.ndjson")
	must(t, os.WriteFile(name, fmt.Appendf(nil, good+"\n", 1, 1), 0o644))
	return Options{Brokers: brokers, Topic: topic, Schema: schemas.Note(), File: name, Wait: time.Second}
}

// ends is how many records a topic got.
func ends(t *testing.T, ctx context.Context, brokers kafka.Brokers, topic string) (n int64) {
	t.Helper()
	look, err := kafka.NewInspector(brokers)
	must(t, err)
	defer look.Close()
	all, err := look.Ends(ctx, topic)
	must(t, err)
	for _, end := range all {
		n += int64(end)
	}
	return n
}

// Nothing is loaded into a topic that no partitioner consumes, whether one is
// at work on other topics or none at all.
func TestRefusesATopicThatNobodyConsumes(t *testing.T) {
	ctx, brokers := setUp(t)
	refused := func(want string) {
		t.Helper()
		r, err := Run(ctx, oneNote(t, brokers, "postz"))
		var e *millrace.Error
		if !errors.As(err, &e) || e.Field != "topic" || !strings.Contains(e.Detail, want) || !strings.Contains(e.WayOut, "--force") || r.Loaded != 0 {
			t.Errorf("%v, %+v; want a refusal with %q", err, r, want)
		}
		if n := ends(t, ctx, brokers, "postz"); n != 0 {
			t.Errorf("%d records are in the topic", n)
		}
	}
	refused(`no partitioner consumes "postz"`)
	must(t, kafka.EnsureContentTopic(ctx, brokers, "posts", 2, nil))
	first := partitioner(t, ctx, brokers, "posts")
	refused("those that run consume posts")

	r, err := Run(ctx, oneNote(t, brokers, "posts"))
	if err != nil || r.Loaded != 1 {
		t.Fatalf("a topic that is consumed: %v, %+v", err, r)
	}
	must(t, first.Begin())
	for n := 0; n < 1; {
		in, _, err := first.Poll(ctx, 10)
		must(t, err)
		n += len(in)
	}
	must(t, first.Commit(ctx))
	forced := oneNote(t, brokers, "postz")
	forced.Force, forced.Wait = true, time.Minute
	if r, err := Run(ctx, forced); err != nil || r.Loaded != 1 {
		t.Errorf("forced: %v, %+v", err, r)
	}
}

// Features are not loaded into a topic of content, nor content into one of
// features, since partitioners would keep each record aside.
func TestRefusesTheOtherKindOfTopic(t *testing.T) {
	ctx, brokers := setUp(t)
	must(t, kafka.EnsureContentTopic(ctx, brokers, "posts", 2, nil))
	must(t, kafka.EnsureContentTopic(ctx, brokers, "facts", 2, nil))
	partitioner(t, ctx, brokers, "posts", "facts")
	progress, err := progress.Open(progress.Config{Brokers: brokers, Topic: kafka.Topics{}.WithDefaults().Progress})
	must(t, err)
	defer progress.Close()
	beating, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		groups.NewHeartbeat(groups.HeartbeatConfig{
			Brokers: brokers, Progress: progress, Group: "partitioner", Instance: "one", Inputs: []string{"posts", "facts"}, Features: []string{"facts"},
		}).Run(beating)
	}()
	defer func() { stop(); <-ended }()
	facts := filepath.Join(t.TempDir(), "facts.ndjson")
	must(t, os.WriteFile(facts, []byte(`{"entity":"member:1","subject":"member:1","updated_at":1700000000000,"followers":7}`+"\n"), 0o644))
	for topic, loads := range map[string]string{"posts": "content", "facts": "features"} {
		for _, schema := range []string{"content", "features"} {
			o := oneNote(t, brokers, topic)
			o.Wait = time.Minute
			if schema == "features" {
				o.Schema, o.File = schemas.Features(), facts
			}
			r, err := Run(ctx, o)
			if schema == loads {
				if err != nil || r.Loaded != 1 {
					t.Errorf("%s into %s: %v, %+v", schema, topic, err, r)
				}
				continue
			}
			e, ok := errors.AsType[*millrace.Error](err)
			if !ok || e.Field != "topic" || !strings.Contains(e.Detail, "take what is in "+topic+" for "+loads) || !strings.Contains(e.WayOut, "under "+schema) {
				t.Errorf("%s into %s: %v", schema, topic, err)
			}
		}
		if n := ends(t, ctx, brokers, topic); n != 1 {
			t.Errorf("%d records are in %s", n, topic)
		}
	}
}

// told is a Progress that says on a channel when it has been told something.
type told struct {
	word string
	seen chan struct{}
}

func (w *told) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.word) && w.seen != nil {
		close(w.seen)
		w.seen = nil
	}
	return len(b), nil
}

// A load that comes first waits for Kafka, creates its topic, and waits for
// the partitioner.
func TestWaitsForKafkaAndPartitioner(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	brokers := kafka.At(l.Addr().String())
	must(t, l.Close())

	o := oneNote(t, brokers, "posts")
	o.Wait = 5 * time.Minute
	kafkaWanted, partitionerWanted := make(chan struct{}), make(chan struct{})
	o.Progress = io.MultiWriter(&told{"waiting for Kafka", kafkaWanted}, &told{"waiting for a partitioner", partitionerWanted})
	done := make(chan error, 1)
	var r Report
	go func() {
		var err error
		r, err = Run(ctx, o)
		done <- err
	}()
	await := func(event <-chan struct{}) {
		t.Helper()
		select {
		case <-event:
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		case <-ctx.Done():
			t.Fatal("did not tell that it waits")
		}
	}
	await(kafkaWanted)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
	must(t, err)
	t.Cleanup(c.Close)
	await(partitionerWanted)
	must(t, kafka.EnsureTopics(ctx, brokers, kafka.Topics{}, nil))
	partitioner(t, ctx, brokers, "posts")
	if err := <-done; err != nil || r.Loaded != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

// A Kafka that never comes is told by its address and the way out.
func TestTellsThatThereIsNoKafka(t *testing.T) {
	o := oneNote(t, kafka.At("127.0.0.1:1"), "posts")
	o.Wait = 50 * time.Millisecond
	_, err := Run(t.Context(), o)
	if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "brokers" || !strings.Contains(e.WayOut, "--wait") {
		t.Errorf("%v", err)
	}
}

// Partitioners under another prefix read other topics.
func TestTellsThatThePrefixIsWrong(t *testing.T) {
	ctx, brokers := setUp(t)
	must(t, kafka.EnsureContentTopic(ctx, brokers, "posts", 2, nil))
	partitioner(t, ctx, brokers, "posts")
	o := oneNote(t, brokers, "posts")
	o.Topics = kafka.Prefixed("other-")
	_, err := Run(ctx, o)
	if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "topic-prefix" {
		t.Errorf("%v", err)
	}
}

// A load of which no line fits fails.
func TestFailsWhenNoLineFits(t *testing.T) {
	ctx, brokers := setUp(t)
	o := oneNote(t, brokers, "posts")
	o.Schema, o.Force = schemas.Activity(), true
	r, err := Run(ctx, o)
	if err == nil || !strings.Contains(err.Error(), "none of 1 lines fits schema") || r.Rejected != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}
