package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// stateSeen is what the command shows as JSON, as its readers know it.
type stateSeen struct {
	Nodes      []millrace.NodeID
	Unanswered []struct{ Node millrace.NodeID }
	Missing    []millrace.Partition
	Uncounted  []millrace.Partition
	Types      []typeSeen
	Total      typeSeen
	Partitions []struct {
		State     string
		DiskBytes int64 `json:"disk_bytes"`
		Types     []typeSeen
	}
	DeadLetters []lettersSeen `json:"dead_letters"`
}

type typeSeen struct {
	Type                      string
	Records, Timelines, Bytes int64
	Newest                    string
	Deleted                   int64
	Cached                    int64 `json:"cached_records"`
	Stored                    int64 `json:"replica_records"`
}

type lettersSeen struct {
	Topic, Reason string
	Letters       int64
}

// state returns what the command shows as JSON.
func (o *operated) state(line string) (s stateSeen) {
	o.t.Helper()
	o.must(json.Unmarshal([]byte(o.shows("state -o json "+line)), &s))
	return s
}

// What the command shows is what there is: after records come, are deleted and
// asked for, and by type, partition and reason of dead letters.
func TestState(t *testing.T) {
	o := startOperated(t)
	o.load(
		`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`,
		`{"id":"b","author":"member:1","kind":"post","at":"2026-01-02T00:00:00Z"}`,
		`{"id":"c","author":"member:2","kind":"post","at":"2026-01-03T00:00:00Z"}`,
		`{"id":"d","author":"member:2","kind":"share","at":"2026-01-04T00:00:00Z"}`,
	)
	s := o.state("")
	if len(s.Nodes) != 2 || len(s.Types) != 2 || len(s.Partitions) != 0 || len(s.Missing)+len(s.Uncounted) > 0 {
		t.Fatalf("%+v", s)
	}
	if p := s.Types[0]; p.Type != "post" || p.Records != 3 || p.Timelines != 2 || p.Bytes < 3*20 || p.Stored != 6 || p.Cached != 0 || p.Newest != "2026-01-03T00:00:00.000Z" {
		t.Errorf("posts: %+v", p)
	}
	if s.Total.Records != 4 || s.Total.Timelines != 3 || s.Total.Bytes != s.Types[0].Bytes+s.Types[1].Bytes || s.Total.Newest != "2026-01-04T00:00:00.000Z" {
		t.Errorf("all: %+v", s.Total)
	}
	one := partition.Of("member:1")
	if s := o.state("--by partition"); len(s.Partitions) != partition.Count || s.Partitions[one].Types[0].Records != 2 || s.Partitions[one].State != "ready" || s.Partitions[one].DiskBytes < 0 {
		t.Errorf("partition %d: %+v", one, s.Partitions[one])
	}
	if s := o.state("--partition " + partitionText(one)); s.Total.Records != 2 || len(s.Types) != 1 {
		t.Errorf("partition %d alone: %+v", one, s)
	}
	if s := o.state("--type share"); s.Total.Records != 1 || len(s.Types) != 1 || s.Types[0].Type != "share" {
		t.Errorf("shares alone: %+v", s)
	}

	_, err := execute(o.ctx, "feed", "--addr", o.GRPC, "--viewer", "member:9", "--entities", "member:1")
	o.must(err)
	o.shows("record delete a --entity member:1 --apply --yes")
	_, err = execute(o.ctx, "feed", "--addr", o.GRPC, "--viewer", "member:9", "--entities", "member:1,member:2")
	o.must(err)
	s = o.state("")
	if p := s.Types[0]; p.Records != 2 || p.Deleted != 1 || p.Timelines != 2 || p.Cached != 2 || p.Newest != "2026-01-03T00:00:00.000Z" {
		t.Errorf("posts, one deleted, the others asked for: %+v", p)
	}
	o.shows("state", "TYPE", "post", "share", "all", "no dead letters", "50.0%")
	o.shows("state --by partition", "PARTITION", "ready")

	p, err := kafka.NewProducer(kafka.At(o.Kafka), "", nil)
	o.must(err)
	defer p.Close()
	p.Produce(o.ctx, kafka.Outgoing{Topic: o.ContentTopic(), Key: []byte("k"), Value: []byte("poison")})
	o.must(p.Flush(o.ctx))
	clitest.WaitFor(o.ctx, t, "the dead letter to be counted", func() bool {
		s := o.state("")
		return len(s.DeadLetters) == 1 && s.DeadLetters[0] == lettersSeen{o.ContentTopic(), "bad-framing", 1}
	})
	o.shows("state", "dead letters since", "bad-framing")
	o.shows("state --since "+time.Now().Add(30*time.Second).UTC().Format(time.RFC3339), "no dead letters") // within what clocks differ by

	for line, field := range map[string]string{
		"state --by node":                    "by",
		"state -o yaml":                      "output",
		"state --watch=1ms":                  "watch",
		"state --partition 720":              "partition",
		"state --since tomorrow":             "since",
		"state --since 2099-01-01T00:00:00Z": "since",
		"state --type " + strings.Repeat("x", millrace.MaxTypeBytes+1): "type",
	} {
		o.refuses(line, field)
	}

	o.watch()

	// What does not answer is named, and the rest is shown.
	<-o.StopNode(1)
	out, err := o.run("state -o json")
	if e := (*millrace.Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), "node-2 did not answer") {
		t.Errorf("a node is not there: %v", err)
	}
	s = stateSeen{}
	o.must(json.Unmarshal([]byte(out), &s))
	if len(s.Unanswered) != 1 || s.Unanswered[0].Node != "node-2" || s.Total.Records != 3 || len(s.Missing) > 0 {
		t.Errorf("a node is not there: %+v", s)
	}
}

func partitionText(p millrace.Partition) string {
	return fmt.Sprint(p)
}

// watch has it drawn until it is stopped, which is no error.
func (o *operated) watch() {
	o.t.Helper()
	ctx, stop := context.WithCancel(o.ctx)
	defer stop()
	out := &lookedAt{after: 2, then: stop}
	c := root()
	c.SetArgs([]string{"state", "--etcd", o.Etcd, "--watch=100ms", "-o", "json"})
	c.SetOut(out)
	if err := c.ExecuteContext(ctx); err != nil {
		o.t.Errorf("a watch that is stopped: %v", err)
	}
	n := 0
	for line := range strings.Lines(out.String()) {
		var s stateSeen
		o.must(json.Unmarshal([]byte(line), &s))
		if n++; s.Total.Records != 3 {
			o.t.Errorf("watched: %s", line)
		}
	}
	if n < 2 {
		o.t.Errorf("it was drawn %d times", n)
	}
}

// lookedAt does something after so many writes.
type lookedAt struct {
	mu sync.Mutex
	bytes.Buffer
	after int
	then  func()
}

func (l *lookedAt) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.after--; l.after == 0 {
		l.then()
	}
	return l.Buffer.Write(b)
}
