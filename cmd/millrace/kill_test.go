package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// kills is how often the partitioner and an index node are killed while a load
// is under way.
const kills = 5

// TestNothingIsLostByKills loads the sample, and the tweets when they are
// there, while the partitioner and an index node are killed and started again.
// Afterwards every replica has every record once.
func TestNothingIsLostByKills(t *testing.T) {
	t.Run("kfake", func(t *testing.T) {
		k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		testKills(t, k.Addr())
	})
	t.Run("kafka", func(t *testing.T) {
		addr := os.Getenv("MILLRACE_KAFKA")
		if addr == "" {
			t.Skip("no real Kafka: run make kafka and set MILLRACE_KAFKA to its address")
		}
		testKills(t, addr)
	})
}

// everything yields the sample, then the tweets if they are there.
func everything(yield func([]byte, error) bool) {
	for line := range sample.Records() {
		if !yield(line, nil) {
			return
		}
	}
	for line, err := range sample.Tweets() {
		if errors.Is(err, sample.ErrAbsent) || !yield(line, err) {
			return
		}
	}
}

func testKills(t *testing.T, kafkaAddr string) {
	limited, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	ctx, failed := context.WithCancelCause(limited)
	prefix := fmt.Sprintf("kills-%d-", rand.Uint32())
	etcd, err := minicluster.StartEtcd(ctx, t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	run(t, "cluster", "assign", "--etcd", etcd.Addr(), "--nodes", "node-1,node-2", "--replicas", "2")

	topics := kafka.Prefixed(prefix)
	if err := errors.Join(
		kafka.EnsureTopics(ctx, []string{kafkaAddr}, topics),
		kafka.EnsureContentTopic(ctx, []string{kafkaAddr}, prefix+"activity", 4),
	); err != nil {
		t.Fatal(err)
	}
	addrs := []string{freeAddr(t), freeAddr(t)}
	nodes := make([]*process, len(addrs))
	for i, addr := range addrs {
		id := fmt.Sprintf("node-%d", i+1)
		nodes[i] = start(t, failed, id, "indexnode", "--config", writeConfig(t, id,
			"id: %s\ndata: %s\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nlisten: %q\n", id, t.TempDir(), kafkaAddr, prefix, etcd.Addr(), addr))
	}
	parts := start(t, failed, "partitioner", "partitioner", "--config", writeConfig(t, "partitioner",
		"brokers: [%q]\ntopic_prefix: %s\ncontent: [%sactivity]\ngroup: %sgroup\ninstance: %sone\n", kafkaAddr, prefix, prefix, prefix, prefix))

	truth := loadWithKills(ctx, t, kafkaAddr, prefix, func() {
		parts.kill()
		nodes[0].kill()
		parts.restart()
		nodes[0].restart()
	})
	for i, addr := range addrs {
		verifyNode(ctx, t, fmt.Sprintf("node-%d", i+1), addr, truth)
	}
}

// loadWithKills produces everything, calling kill while the partitioner is at
// work on each part, and returns what was produced.
func loadWithKills(ctx context.Context, t *testing.T, kafkaAddr, prefix string, kill func()) *oracle.Feed {
	t.Helper()
	topics := kafka.Prefixed(prefix)
	registry, err := schemas.NewRegistry(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	known, err := kafka.OpenSchemaLog(ctx, kafka.SchemaLogConfig{Brokers: []string{kafkaAddr}, Topic: topics.Schemas, Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	activity := schemas.Activity()
	if err := known.Publish(ctx, activity); err != nil {
		t.Fatal(err)
	}
	producer, err := kafka.NewProducer([]string{kafkaAddr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	look, err := kafka.NewInspector([]string{kafkaAddr})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()

	truth := oracle.New()
	total := 0
	for range everything {
		total++
	}
	next, stop := iter.Pull2(iter.Seq2[[]byte, error](everything))
	defer stop()
	for part := range kills + 1 {
		for range (total + kills) / (kills + 1) {
			line, err, ok := next()
			if !ok {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := truth.Load(activity, line); err != nil {
				t.Fatal(err)
			}
			body, err := activity.EncodeJSON(line)
			if err != nil {
				t.Fatal(err)
			}
			producer.Produce(ctx, kafka.Outgoing{Topic: prefix + "activity", Partition: int32(rand.IntN(4)), Value: schemas.Frame(activity.Fingerprint(), body)})
		}
		before := sum(ctx, t, look, topics.Timeline)
		if err := producer.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if part < kills {
			waitFor(ctx, t, "the partitioner to publish", func() bool { return sum(ctx, t, look, topics.Timeline) > before })
			kill()
		}
	}
	return truth
}

func sum(ctx context.Context, t *testing.T, look *kafka.Inspector, topic string) (n int64) {
	t.Helper()
	ends, err := look.Ends(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range ends {
		n += int64(end)
	}
	return n
}

// waitFor asks again and again until done.
func waitFor(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// verifyNode waits until a node has as many records as were loaded, and then
// reads every timeline of it.
func verifyNode(ctx context.Context, t *testing.T, name, addr string, truth *oracle.Feed) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	node := nodev1.NewNodeServiceClient(conn)

	var entities []millrace.Entity
	want := 0
	for _, tl := range truth.Timelines() {
		entities = append(entities, tl.Entity)
		want += len(truth.Live(tl))
	}
	entities = slices.Compact(entities)

	got := int64(-1)
	defer func() { t.Logf("%s has %d records of %d", name, got, want) }()
	waitFor(ctx, t, name+" to catch up", func() bool {
		resp, err := node.Query(ctx, nodeRequest(entities, millrace.MinTime, millrace.MaxTime))
		if err != nil {
			return false // it is starting
		}
		if len(resp.Partitions.Missing) > 0 {
			return false
		}
		got = resp.Stages.Candidates
		if got > int64(want) {
			t.Fatalf("%s has %d records, %d were loaded", name, got, want)
		}
		return got == int64(want)
	})
	for _, tl := range truth.Timelines() {
		var ids []millrace.RecordID
		for _, r := range truth.Live(tl) {
			ids = append(ids, r.ID)
		}
		if got := readTimeline(ctx, t, node, tl, millrace.MinTime, millrace.MaxTime); !slices.Equal(got, ids) {
			t.Fatalf("%s: %s has %d records, not the %d that were loaded", name, tl, len(got), len(ids))
		}
	}
}

func nodeRequest(entities []millrace.Entity, from, to millrace.Time, types ...string) *nodev1.QueryRequest {
	var packed []byte
	for _, e := range entities {
		packed = append(binary.AppendUvarint(packed, uint64(len(e))), e...)
	}
	return &nodev1.QueryRequest{
		Entities: packed, Types: types, FromMs: int64(from), ToMs: int64(to), Model: "recency", Limit: 1000, Viewer: &feedv1.Viewer{Id: "nobody"},
	}
}

// readTimeline returns the ids of a timeline, newest first, in windows that
// each fit into one answer.
func readTimeline(ctx context.Context, t *testing.T, node nodev1.NodeServiceClient, tl millrace.Timeline, from, to millrace.Time) []millrace.RecordID {
	t.Helper()
	resp, err := node.Query(ctx, nodeRequest([]millrace.Entity{tl.Entity}, from, to, string(tl.Type)))
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Items) == 1000 && to-from > 1 {
		mid := from + (to-from)/2
		return append(readTimeline(ctx, t, node, tl, mid, to), readTimeline(ctx, t, node, tl, from, mid)...)
	}
	ids := make([]millrace.RecordID, len(resp.Items))
	for i, it := range resp.Items {
		ids[i] = millrace.RecordID(it.Id)
	}
	return ids
}
