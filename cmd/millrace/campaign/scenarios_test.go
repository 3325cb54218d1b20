//go:build linux

package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/partition"
)

// What cannot be undone has a cluster and a Kafka of its own.

// loaded starts a cluster, and sends it inputs until every timeline has some.
func loaded(t *testing.T) (*world, settings) {
	t.Helper()
	s := need(t)
	w := startWorld(t, s, "scenario", false)
	w.load.burst(w.ctx, 10*members)
	w.settle()
	w.history.chapter("loaded")
	return w, s
}

// settle waits until the cluster is whole, or ends the test.
func (w *world) settle() {
	w.t.Helper()
	if err := w.whole(w.ctx); err != nil {
		w.told("unhealed", err.Error())
		w.verdict()
		w.t.FailNow()
	}
	w.asker.drain()
}

// TestOwnTopicsKeepEverything looks at how the streams were created: a log that
// deletes is no log of record.
func TestOwnTopicsKeepEverything(t *testing.T) {
	w, _ := loaded(t)
	configs, err := w.adm.DescribeTopicConfigs(w.ctx, w.truth.topics[:]...)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range configs {
		for _, c := range topic.Configs {
			if (c.Key == "retention.ms" || c.Key == "retention.bytes") && c.MaybeValue() != "-1" {
				t.Errorf("topic %s deletes: %s is %s", topic.Name, c.Key, c.MaybeValue())
			}
		}
	}
}

// TestAnEmptiedDiskBehindATrimmedLogIsNeverReady trims the log to its end and
// empties one node's disk: that node can have nothing, and must not serve it.
func TestAnEmptiedDiskBehindATrimmedLogIsNeverReady(t *testing.T) {
	w, _ := loaded(t)
	node := w.nodes[0]
	node.kill(syscall.SIGKILL)
	for stream, topic := range w.truth.topics {
		before := map[int32]int64{}
		for p, end := range w.wholes[len(w.wholes)-1].ends[stream] {
			before[int32(p)] = end
		}
		if err := trim(w.ctx, w.adm, topic, before); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.emptyDisk(node); err != nil {
		t.Fatal(err)
	}
	if err := node.start(); err != nil {
		t.Fatal(err)
	}
	// New inputs reach the others; by then the node has had its time too.
	stop := w.underLoad()
	defer stop()
	if err := eventually(w.ctx, patience, func(ctx context.Context) error {
		resp, err := w.clients[0].Query(ctx, w.probe("node-1"))
		if err != nil {
			return err
		}
		n := 0
		for _, p := range resp.GetPartitions().GetAnswered() {
			if ends := w.wholes[len(w.wholes)-1].ends; ends[content][p] > 0 || ends[features][p] > 0 { // or nothing of it was trimmed
				n++
			}
		}
		if n > 0 {
			w.told("wrong", fmt.Sprintf("node-1 serves %d partitions, of which it has only what came after the trim", n))
			return nil
		}
		if w.asker.judged() < 500 {
			return errors.New("too few answers yet")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	stop()
	w.asker.drain()
	t.Log(w.asker.take())
	w.verdict()
}

// probe asks for what a node hosts.
func (w *world) probe(id millrace.NodeID) *nodev1.QueryRequest {
	var packed []byte
	for p, owners := range w.owners {
		if slices.Contains(owners, id) {
			packed = partition.AppendEntity(packed, millrace.Partition(p), w.probes[p])
		}
	}
	return &nodev1.QueryRequest{
		Entities: packed, Types: []string{"post"}, FromMs: int64(millrace.MinTime), ToMs: int64(millrace.MaxTime), Model: "recency", Limit: 1, Viewer: &feedv1.Viewer{Id: "probe"},
	}
}

// TestARecreatedTopicIsAnotherLog deletes both streams, creates them again and
// lets them grow past what the nodes have applied. No answer may mix the logs.
func TestARecreatedTopicIsAnotherLog(t *testing.T) {
	w, s := loaded(t)
	old := w.wholes[len(w.wholes)-1].ends
	for _, p := range slices.Concat(w.nodes, w.partitioners) {
		p.kill(syscall.SIGTERM)
	}
	for _, topic := range w.truth.topics {
		if err := recreate(w.ctx, w.adm, topic); err != nil {
			t.Fatal(err)
		}
	}
	// The reader starts again, and knows the new log alone.
	fresh, err := newTruth(w.truth.topics, w.told)
	if err != nil {
		t.Fatal(err)
	}
	reader := w.kafka.client(t, fresh.readOptions()...)
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan struct{})
	go func() { defer close(done); fresh.follow(ctx, reader) }()
	t.Cleanup(func() { stop(); <-done })
	var addrs []string
	for _, port := range w.brokerPort {
		addrs = append(addrs, local(port))
	}
	again := newAsker(t, fresh, s.seed+1, addrs, w.told)
	load := newLoad(t, fresh, w.kafka.client(t), s.seed+1, w.load.topic)
	judged := make(chan struct{})
	go func() { defer close(judged); again.judgeAll(ctx) }()
	t.Cleanup(func() { stop(); <-judged })
	for _, p := range w.partitioners {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.adopt(); err != nil { // or they write nothing
		t.Fatal(err)
	}
	load.burst(ctx, 20*members)
	if err := eventually(ctx, patience, func(context.Context) error { return fresh.missing(time.Now()) }); err != nil {
		t.Fatal(err)
	}
	grown := 0
	for p, end := range fresh.positions()[content] {
		if old[content][p] > 0 && end > old[content][p] {
			grown++
		}
	}
	if t.Logf("%d partitions have grown past what was applied", grown); grown < partition.Count/10 {
		t.Fatal("too few")
	}
	for _, p := range w.nodes {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
	}
	// The nodes answer, whatever they answer, before the questions are asked.
	for i, node := range w.clients {
		if err := eventually(ctx, patience, func(ctx context.Context) error {
			resp, err := node.Query(ctx, w.probe(millrace.NodeID(w.nodes[i].name)))
			if err == nil && len(resp.Partitions.Answered) == 0 && !settledReasons(resp.Partitions.Missing) {
				err = errors.New("it has not judged its partitions yet")
			}
			return err
		}); err != nil {
			t.Log(w.nodes[i].name, err)
		}
	}
	for m := range 100 {
		q := again.draw()
		q.Entities = []millrace.Entity{memberOf(m)}
		again.askOne(ctx, m%brokers, q)
	}
	again.drain()
	t.Log(again.take())
	w.verdict()
}

// settledReasons reports whether all partitions are missing for a reason that
// time does not mend.
func settledReasons(missing map[int32]string) bool {
	for _, why := range missing {
		if why == "not_ready" || why == "not_hosted" {
			return false
		}
	}
	return len(missing) > 0
}

// adopt has the partitioners go on with the topics that are there.
func (w *world) adopt() error {
	brokers := kafka.At(w.kafka.addr())
	plan, err := groups.PlanAdoption(w.ctx, brokers, w.prefix+"group", kafka.Prefixed(w.prefix).Logs())
	if err == nil && plan.Other == nil {
		err = errors.New("the partitioners would go on with other topics")
	}
	if err != nil {
		return err
	}
	return groups.Adopt(w.ctx, brokers, plan, false)
}

// recreate deletes a topic and creates it again as it was.
func recreate(ctx context.Context, adm *kadm.Client, topic string) error {
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	if err := eventually(ctx, patience, func(ctx context.Context) error {
		_, err := adm.CreateTopic(ctx, partition.Count, -1, nil, topic)
		return err
	}); err != nil {
		return err
	}
	return awaitTopic(ctx, adm, topic)
}

// TestAValueTooLargeForDeadLetters puts 5 MiB on the timeline topic, packed
// small. It is no record; nobody ends of it, and nobody else waits for it.
func TestAValueTooLargeForDeadLetters(t *testing.T) {
	w, _ := loaded(t)
	o := kafka.ToStream(w.truth.topics[content], "member:1", bytes.Repeat([]byte("large"), 1<<20), kafka.Source{Topic: "large"})
	if err := w.cl.ProduceSync(w.ctx, outgoing(o)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	w.load.burst(w.ctx, members)
	w.settle()
	w.verdict()
}

// TestAnUnknownSchemaHoldsOnePartitionAlone puts a record into the log whose
// schema is not there yet. Its partition waits; another one of the same node
// goes on, and nothing is passed over.
func TestAnUnknownSchemaHoldsOnePartitionAlone(t *testing.T) {
	w, _ := loaded(t)
	const held = "member:7"
	p := partition.Of(held)
	before := w.wholes[len(w.wholes)-1].ends[content][p]
	late, err := w.sendLate(held)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.truth.reached(w.ctx, content, p, before+1); err != nil {
		t.Fatal(err)
	}
	w.load.burst(w.ctx, members)
	var ends [kafka.Streams]offsets
	if err := eventually(w.ctx, patience, func(ctx context.Context) (err error) {
		if err := w.truth.missing(time.Now()); err != nil {
			return err
		}
		ends, err = w.ends(ctx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ends[content][p] = before
	for i, node := range w.clients {
		if !slices.Contains(w.owners[p], millrace.NodeID(w.nodes[i].name)) {
			continue
		}
		if err := eventually(w.ctx, patience, func(ctx context.Context) error {
			resp, err := node.Query(ctx, w.probe(millrace.NodeID(w.nodes[i].name)))
			if err != nil {
				return err
			}
			for j, answered := range resp.GetPartitions().GetAnswered() {
				at := resp.Partitions.AppliedContent[j]
				if millrace.Partition(answered) == p && at > before {
					w.told("wrong", fmt.Sprintf("%s has passed over a record whose schema it does not know", w.nodes[i].name))
					return nil
				}
				if at < ends[content][answered] {
					return fmt.Errorf("%d is applied to %d of %d", answered, at, ends[content][answered])
				}
			}
			return nil
		}); err != nil {
			w.told("unhealed", fmt.Sprintf("%s, while one partition waits: %v", w.nodes[i].name, err))
		}
	}
	if err := w.publish(late); err != nil {
		t.Fatal(err)
	}
	w.finish()
	w.verdict()
}

// TestHealthTellsOfTheDead kills both replicas of a third of the partitions.
// The doctor and the list of the cluster tell.
func TestHealthTellsOfTheDead(t *testing.T) {
	w, _ := loaded(t)
	for _, p := range w.nodes[:2] {
		p.kill(syscall.SIGKILL)
	}
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "probe"}}
	for _, e := range w.probes {
		req.Entities = append(req.Entities, string(e))
	}
	if err := eventually(w.ctx, patience, func(ctx context.Context) error {
		resp, err := w.asker.clients[0].GetFeed(ctx, req)
		if err == nil && len(resp.Coverage.Missing) == 0 {
			err = errors.New("nothing is missing yet")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	shown := ""
	if err := eventually(w.ctx, patience, func(context.Context) (err error) { // their leases end
		if shown, err = w.command("cluster", "show", "--etcd", local(w.etcdAt)); err != nil && shown == "" {
			return err
		}
		for line := range strings.Lines(shown) {
			if strings.HasPrefix(line, "node-1 ") && strings.Contains(line, " true ") {
				return errors.New("node-1 counts as alive")
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(shown, "node-1") {
		t.Errorf("cluster show does not tell of node-1, which is dead:\n%s", shown)
	}
	out, err := w.command("doctor", "--etcd", local(w.etcdAt), "--brokers", w.kafka.addr(), "--topic-prefix", w.prefix, "--grpc", local(w.brokerPort[0]))
	if err == nil || !strings.Contains(out, "node-1") {
		t.Errorf("the doctor does not tell of node-1, which is dead with node-2: %v\n%s", err, out)
	}
}
