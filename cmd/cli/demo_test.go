package cli

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// A table names its records, tells a score of recency as the time it is, and
// says why it is empty.
func TestPrintFeed(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	table := func(model string, score float64) string {
		var out strings.Builder
		resp := &feedv1.GetFeedResponse{
			Items:    []*feedv1.Item{{Id: "n17", Entity: "member:1", Type: "post", Time: timestamppb.New(at), Score: score, Object: "n17", Explain: &feedv1.ItemExplain{Node: "node-1", Base: score}}},
			Coverage: &feedv1.Coverage{TimelinesAsked: 1, TimelinesAnswered: 1},
			Receipt:  &feedv1.Receipt{Model: model, ModelVersion: "1", Execution: "generated"},
		}
		printFeed(&out, resp, func(e millrace.Entity) string { return string(e) })
		printReasons(&out, resp)
		return out.String()
	}
	want := `#  SCORE                     ID   WHO       WHAT  WHEN              WHY  ABOUT
1  2026-01-02T03:04:05.678Z  n17  member:1  post  2026-01-02 03:04       n17

1 items; 1 of 1 timelines answered; model recency 1, generated

1. n17 scores 2026-01-02T03:04:05.678Z on node-1
`
	if got := table("recency", float64(at.UnixMilli())); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := table("likes", 0.14351); !strings.Contains(got, "1  0.1435  n17  ") || !strings.Contains(got, "1. n17 scores 0.1435 on node-1: +0.1435\n") {
		t.Errorf("got\n%s", got)
	}
	var out strings.Builder
	printContributions(&out, &feedv1.ItemExplain{Base: 1, Features: []*feedv1.Contribution{{Feature: "small", Contribution: 1e-6}, {Feature: "likes", Contribution: 2}, {Feature: "rate", Contribution: math.NaN()}}})
	if got := out.String(); got != ": +1, rate NaN, likes +2" {
		t.Errorf("of a feature that is no number: %q", got)
	}
	out.Reset()
	printFeed(&out, &feedv1.GetFeedResponse{Hints: []string{"nobody is there"}}, nil)
	if !strings.HasSuffix(out.String(), "\nhint: nobody is there\n") {
		t.Errorf("got\n%s", out.String())
	}
}

// dev reads the topics that it is told, also those that a later start adds.
func TestDevReadsFurtherTopics(t *testing.T) {
	startsProcesses(t)
	t.Parallel()
	ctx, failed := context.WithCancelCause(t.Context())
	dir, grpc, kafka, admin := t.TempDir(), freeAddr(t), freeAddr(t), freeAddr(t)
	dev := func(name string, more ...string) *process {
		t.Helper()
		p := start(t, failed, name, append([]string{"dev", "--data", filepath.Join(dir, "data"), "--nodes", "1", "--grpc", grpc,
			"--kafka-listen", kafka, "--http", freeAddr(t), "--etcd-listen", freeAddr(t), "--admin", admin}, more...)...)
		waitFor(ctx, t, "dev to be ready", func() bool {
			text, err := os.ReadFile(p.log)
			return err == nil && strings.Contains(string(text), "stays up until Ctrl-C")
		})
		return p
	}
	load := func(topic, schema, line string) string {
		t.Helper()
		file := filepath.Join(dir, topic+".ndjson")
		if err := os.WriteFile(file, []byte(line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := output("load", "--topic", topic, "--schema", schema, "--brokers", kafka, "--wait", "20s", file)
		if err != nil {
			return out + err.Error()
		}
		return "loaded"
	}
	has := func(id string) {
		t.Helper()
		waitFor(ctx, t, id+" to be in the feed", func() bool {
			out, err := output("feed", "--addr", grpc, "--viewer", "me", "--entities", "member:1")
			return err == nil && strings.Contains(out, " "+id+" ")
		})
	}
	first := dev("first")
	if got := load("notes", "note", `{"id":"n1","author":"member:1","kind":"post","at":"2026-01-01T08:00:00Z"}`); !strings.Contains(got, "those that run consume activity, entity-features") {
		t.Errorf("a topic that dev does not read: %s", got)
	}
	first.end()
	second := dev("second", "--content", "activity,notes", "--features", "entity-features,signals")
	for topic, l := range map[string][2]string{
		"notes":    {"note", `{"id":"n2","author":"member:1","kind":"post","at":"2026-01-01T08:00:00Z"}`},
		"activity": {"activity", `{"id":"a1","actor":"member:1","verb":"post","created_at":"2026-01-01T09:00:00Z"}`},
		"signals":  {"features", `{"entity":"member:1","subject":"member:1","updated_at":"2026-03-01T11:00:00Z","engagement":0.5}`},
	} {
		if got := load(topic, l[0], l[1]); got != "loaded" {
			t.Errorf("load into %s: %s", topic, got)
		}
	}
	has("n2")
	has("a1")
	second.end()
}
