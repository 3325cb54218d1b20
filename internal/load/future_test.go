package load

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// futureLoad is a load of three notes: of now, a day and an hour ahead, and two
// days ahead.
func futureLoad(t *testing.T, brokers kafka.Brokers, topic string) Options {
	t.Helper()
	var file bytes.Buffer
	for i, ahead := range []time.Duration{0, 25 * time.Hour, 48 * time.Hour} {
		fmt.Fprintf(&file, `{"id":"n%d","author":"member:1","kind":"post","at":%q}`+"\n", i, time.Now().Add(ahead).UTC().Format(time.RFC3339))
	}
	name := filepath.Join(t.TempDir(), "future.ndjson")
	must(t, os.WriteFile(name, file.Bytes(), 0o644))
	return Options{Brokers: brokers, Topic: topic, Schema: schemas.Note(), File: name}
}

// A line that partitioners would refuse for its time is rejected before it is
// sent.
func TestTimesInTheFutureAreRejected(t *testing.T) {
	ctx, brokers := setUp(t)
	o := futureLoad(t, brokers, "posts")
	o.Force = true
	r, err := Run(ctx, o)
	must(t, err)
	if r.Loaded != 1 || r.Rejected != 2 || len(r.Faults) != 2 {
		t.Fatalf("%+v", r)
	}
	for i, f := range r.Faults {
		if got := f.String(); !strings.HasPrefix(got, fmt.Sprintf(`line %d: field "at": `, i+2)) || !strings.Contains(got, "more than 24h0m0s after") {
			t.Errorf("fault %d: %q", i, got)
		}
	}
}

// The bound is the one that the partitioners say that they have.
func TestTheFutureIsThatOfThePartitioners(t *testing.T) {
	ctx, brokers := setUp(t)
	must(t, kafka.EnsureContentTopic(ctx, brokers, "posts", 2, nil))
	partitioner(t, ctx, brokers, "posts")
	progress, err := progress.Open(progress.Config{Brokers: brokers, Topic: kafka.Topics{}.WithDefaults().Progress})
	must(t, err)
	defer progress.Close()
	beating, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		groups.NewHeartbeat(groups.HeartbeatConfig{
			Brokers: brokers, Progress: progress, Group: "partitioner", Instance: "one", Inputs: []string{"posts"}, Future: 30 * time.Hour,
		}).Run(beating)
	}()
	defer func() { stop(); <-ended }()
	o := futureLoad(t, brokers, "posts")
	o.Wait = time.Minute
	r, err := Run(ctx, o)
	must(t, err)
	if r.Loaded != 2 || r.Rejected != 1 || !strings.Contains(r.Faults[0].String(), "more than 30h0m0s after") {
		t.Errorf("%+v", r)
	}
}
