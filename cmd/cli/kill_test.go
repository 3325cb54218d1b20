package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/internal/sample/tweets"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// kills is how often the partitioner and an index node are killed while a load
// is under way.
const kills = 5

// TestNothingIsLostByKills loads the sample, and the tweets when they are
// there, while the partitioner and an index node are killed and started again.
// Afterwards every replica has every record once.
func TestNothingIsLostByKills(t *testing.T) { onEachKafka(t, testKills) }

// TestNothingIsLostByRebalances does so while partitioners of one group come
// and go.
func TestNothingIsLostByRebalances(t *testing.T) { onEachKafka(t, testRebalances) }

func onEachKafka(t *testing.T, test func(t *testing.T, kafkaAddr string)) {
	clitest.StartsProcesses(t)
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		test(t, k.Addr())
	})
	t.Run("kafka", func(t *testing.T) {
		addr := os.Getenv("MILLRACE_KAFKA")
		if addr == "" {
			t.Skip("no real Kafka: run make kafka and set MILLRACE_KAFKA to its address")
		}
		test(t, addr)
	})
}

// everything yields the sample, then the tweets if they are there.
func everything(yield func([]byte, error) bool) {
	for line := range sample.Records() {
		if !yield(line, nil) {
			return
		}
	}
	for line, err := range tweets.All() {
		if errors.Is(err, tweets.ErrAbsent) || !yield(line, err) {
			return
		}
	}
}

func testKills(t *testing.T, kafkaAddr string) {
	l := startLoading(t, kafkaAddr)
	parts := l.partitioner("one")
	truth := loadWithKills(l.ctx, t, kafkaAddr, l.prefix, func(int) {
		parts.kill()
		l.nodes[0].kill()
		parts.restart()
		l.nodes[0].restart()
	})
	l.verify(truth)
}

// testRebalances has two partitioners at first. While they are at work a third
// joins, one is killed and stays away until the group has noticed, comes back,
// and one leaves in good order.
func testRebalances(t *testing.T, kafkaAddr string) {
	l := startLoading(t, kafkaAddr)
	one, two := l.partitioner("one"), l.partitioner("two")
	truth := loadWithKills(l.ctx, t, kafkaAddr, l.prefix, func(part int) {
		switch part {
		case 0:
			l.partitioner("three")
		case 1:
			one.kill()
		case 2:
			one.restart()
		case 3:
			two.end()
		case 4:
			two.restart()
		}
	})
	l.verify(truth)
	if kafkaAddr == os.Getenv("MILLRACE_KAFKA") { // kfake shows aborted records at times, and hides committed ones
		l.verifyLog(truth)
	}
}

// loading is two index nodes that each have a replica of everything, and
// partitioners, around a Kafka.
type loading struct {
	t      *testing.T
	ctx    context.Context
	failed context.CancelCauseFunc
	kafka  string
	prefix string
	nodes  []*process
	addrs  []string
}

func startLoading(t *testing.T, kafkaAddr string) *loading {
	t.Helper()
	ctx, failed := context.WithCancelCause(clitest.Bounded(t))
	l := &loading{t: t, ctx: ctx, failed: failed, kafka: kafkaAddr, prefix: fmt.Sprintf("kills-%d-", rand.Uint32()), addrs: []string{clitest.FreeAddr(t), clitest.FreeAddr(t)}}
	etcd, err := minicluster.StartEtcd(ctx, t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	run(t, "cluster", "assign", "--etcd", etcd.Addr(), "--nodes", "node-1,node-2", "--replicas", "2", "--force")

	if err := errors.Join(
		kafka.EnsureTopics(ctx, kafka.At(kafkaAddr), kafka.Prefixed(l.prefix), nil),
		kafka.EnsureContentTopic(ctx, kafka.At(kafkaAddr), l.prefix+"activity", 4, nil),
	); err != nil {
		t.Fatal(err)
	}
	for i, addr := range l.addrs {
		id := fmt.Sprintf("node-%d", i+1)
		l.nodes = append(l.nodes, start(t, failed, id, "indexnode", "--config", clitest.WriteConfig(t, id,
			"id: %s\ndata: %s\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nlisten: %q\n", id, t.TempDir(), kafkaAddr, l.prefix, etcd.Addr(), addr)))
	}
	return l
}

func (l *loading) partitioner(name string) *process {
	return start(l.t, l.failed, "partitioner-"+name, "partitioner", "--config", clitest.WriteConfig(l.t, name,
		"brokers: [%q]\ntopic_prefix: %s\ncontent: [%sactivity]\ngroup: %sgroup\ninstance: %s%s\n", l.kafka, l.prefix, l.prefix, l.prefix, l.prefix, name))
}

func (l *loading) verify(truth *oracle.Feed) {
	l.t.Helper()
	for i, addr := range l.addrs {
		verifyNode(l.ctx, l.t, fmt.Sprintf("node-%d", i+1), addr, truth)
	}
}

// verifyLog reads the timeline topic: each record stands in it once for each
// of its timelines. Nodes would not tell, since they index one that comes twice
// once.
func (l *loading) verifyLog(truth *oracle.Feed) {
	l.t.Helper()
	consumer, err := streams.NewConsumer(streams.Config{Brokers: kafka.At(l.kafka), Topics: kafka.Prefixed(l.prefix)})
	if err != nil {
		l.t.Fatal(err)
	}
	defer consumer.Close()
	var all []kafka.TopicPartition
	at := map[kafka.TopicPartition]kafka.Position{}
	for p := range millrace.Partition(partition.Count) {
		tp := kafka.TopicPartition{Stream: kafka.Timeline, Partition: p}
		all, at[tp] = append(all, tp), kafka.Position{Epoch: -1}
	}
	ends, err := consumer.EndOffsets(l.ctx, all...)
	if err != nil {
		l.t.Fatal(err)
	}
	consumer.Assign(at)
	want := 0
	for _, tl := range truth.Timelines() {
		want += len(truth.Live(tl))
	}
	met := map[string]bool{}
	behind := func() bool {
		for tp, end := range ends {
			if at[tp].Next < end {
				return true
			}
		}
		return false
	}
	for behind() {
		fetched, err := consumer.Poll(l.ctx, 10_000)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, f := range fetched {
			at[f.TopicPartition] = kafka.Position{Next: f.Next, Epoch: f.Epoch}
			for _, r := range f.Records {
				copied := string(r.Source) + " " + string(r.Key)
				if met[copied] {
					l.t.Fatalf("the timeline topic has %s twice", copied)
				}
				met[copied] = true
			}
		}
	}
	if l.t.Logf("the timeline topic has %d records of %d", len(met), want); len(met) != want {
		l.t.Errorf("the timeline topic has %d records, want %d", len(met), want)
	}
}

// loadWithKills produces everything, calling kill while the partitioner is at
// work on each part, and returns what was produced.
func loadWithKills(ctx context.Context, t *testing.T, kafkaAddr, prefix string, kill func(part int)) *oracle.Feed {
	t.Helper()
	topics := kafka.Prefixed(prefix)
	registry, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	known, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(kafkaAddr), Topic: topics.Schemas, Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	activity := schemas.Activity()
	if err := known.Publish(ctx, activity); err != nil {
		t.Fatal(err)
	}
	producer, err := kafka.NewProducer(kafka.At(kafkaAddr), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	look, err := kafka.NewInspector(kafka.At(kafkaAddr))
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
			clitest.WaitFor(ctx, t, "the partitioner to publish", func() bool { return sum(ctx, t, look, topics.Timeline) > before })
			kill(part)
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
	clitest.WaitFor(ctx, t, name+" to catch up", func() bool {
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
	for _, e := range slices.SortedFunc(slices.Values(entities), func(a, b millrace.Entity) int { return cmp.Compare(partition.Of(a), partition.Of(b)) }) {
		packed = partition.AppendEntity(packed, partition.Of(e), e)
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
