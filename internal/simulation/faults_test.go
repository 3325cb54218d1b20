//go:build synctests

package simulation

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
)

// faults draws what breaks, when, and when it is mended.
func (h *history) faults(r *rand.Rand) (steps []step) {
	kinds := []func(*rand.Rand, time.Duration) []step{
		h.nodeCrashes, h.nodeCrashes, h.nodeStops, h.partitionerCrashes, h.partitionerDiesAt, h.partitionerDiesAt,
		h.another, h.another, h.cut, h.cut, h.slow, h.sever, h.kafkaRefuses, h.kafkaRefuses, h.kafkaRefuses, h.kafkaRefuses, h.diskFills, h.diskFills, h.moves, h.zombie, h.trim, h.trimBehind, h.lettersRefused,
	}
	for range 2 + r.IntN(8) {
		at := 3*time.Second + time.Duration(r.IntN(15_000))*time.Millisecond
		steps = append(steps, kinds[r.IntN(len(kinds))](r, at)...)
		if r.IntN(2) == 0 {
			steps = append(steps, h.busy(r, at)...)
		}
	}
	return steps
}

// busy has inputs come one after the other from a time on, so that what breaks
// then breaks in the middle of something.
func (h *history) busy(r *rand.Rand, at time.Duration) (steps []step) {
	for range 20 {
		steps = append(steps, step{at: at, do: h.send})
		at += time.Duration(r.IntN(200)) * time.Millisecond
	}
	return steps
}

// some draws how long something lasts: a moment, or longer than leases and
// sessions do.
func some(r *rand.Rand) time.Duration {
	return time.Duration(50+r.IntN([]int{500, 5_000, 15_000}[r.IntN(3)])) * time.Millisecond
}

func (h *history) nodeCrashes(r *rand.Rand, at time.Duration) []step {
	i, lost := r.IntN(nodes), rand.New(rand.NewPCG(h.seed, r.Uint64()))
	n := h.w.nodes[i]
	return []step{
		{at, n.name + " crashes", func() {
			n.crash()
			h.w.disks[i].crash(lost)
		}},
		{at + some(r), n.name + " starts", n.start},
	}
}

func (h *history) nodeStops(r *rand.Rand, at time.Duration) []step {
	n := h.w.nodes[r.IntN(nodes)]
	return []step{{at, n.name + " stops", n.stop}, {at + some(r), n.name + " starts", n.start}}
}

func (h *history) partitionerCrashes(r *rand.Rand, at time.Duration) []step {
	p := h.w.partitioners[0]
	return []step{{at, p.name + " crashes", p.crash}, {at + some(r), p.name + " starts", p.start}}
}

// ofTransactions are the requests that a partitioner's transaction is made of.
var ofTransactions = []kmsg.Key{kmsg.Produce, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn}

// partitionerDiesAt crashes a partitioner when Kafka gets a certain request of
// it, before it hears the answer.
func (h *history) partitionerDiesAt(r *rand.Rand, at time.Duration) []step {
	p, key := h.w.partitioners[0], ofTransactions[r.IntN(len(ofTransactions))]
	lasts, after := some(r), r.IntN(3)
	var armed *kfake.FaultHandle
	return []step{{at, fmt.Sprintf("%s is to crash at its %d. %s", p.name, after+1, key.Name()), func() {
		seen := 0
		armed = h.w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
			if p2, ok := req.(*kmsg.ProduceRequest); ok && p2.TransactionID == nil {
				return false
			}
			if seen++; seen == after+1 {
				go p.crash()
			}
			return true
		}})
	}}, {at + lasts, p.name + " starts", func() {
		armed.Remove()
		p.start()
	}}}
}

// another has a second partitioner take over part of the inputs for a while,
// and end as it should, or not.
func (h *history) another(r *rand.Rand, at time.Duration) []step {
	p := h.w.partitioners[1]
	end, what := p.stop, " stops"
	if r.IntN(2) == 0 {
		end, what = p.crash, " crashes"
	}
	return []step{{at, p.name + " starts", p.start}, {at + some(r), p.name + what, end}}
}

var links = []link{
	{"partitioner-1", "kafka"}, {"partitioner-1", "kafka"}, {"partitioner-2", "kafka"}, {"node-1", "kafka"}, {"node-2", "kafka"}, {"node-3", "kafka"},
	{"node-1", "etcd"}, {"node-2", "etcd"}, {"node-3", "etcd"}, {"broker", "etcd"}, {"broker", "node-1"}, {"broker", "node-2"}, {"broker", "node-3"}, {"node-1", "node-2"},
}

// way draws a link, either way.
func way(r *rand.Rand) link {
	l := links[r.IntN(len(links))]
	if r.IntN(2) == 0 {
		return link{l.to, l.from}
	}
	return l
}

func (h *history) cut(r *rand.Rand, at time.Duration) []step {
	l, both := way(r), r.IntN(2) == 0
	what := "nothing gets through from " + l.from + " to " + l.to
	if both {
		what += " and back"
	}
	return []step{{at, what, func() {
		h.w.net.cut(l.from, l.to)
		if both {
			h.w.net.cut(l.to, l.from)
		}
	}}, {at + some(r), l.from + " and " + l.to + " are joined again", func() { h.w.net.heal(l.from, l.to) }}}
}

func (h *history) slow(r *rand.Rand, at time.Duration) []step {
	l, by := way(r), time.Duration(1<<r.IntN(12))*time.Millisecond
	return []step{
		{at, fmt.Sprintf("%s hears %s %s late", l.to, l.from, by), func() { h.w.net.delay(l.from, l.to, by) }},
		{at + some(r), l.from + " and " + l.to + " are as fast as before", func() { h.w.net.heal(l.from, l.to) }},
	}
}

func (h *history) sever(r *rand.Rand, at time.Duration) (steps []step) {
	l := way(r)
	for range 1 + r.IntN(8) {
		steps = append(steps, step{at, "connections of " + l.from + " and " + l.to + " break", func() { h.w.net.sever(l.from, l.to) }})
		at += time.Duration(r.IntN(400)) * time.Millisecond
	}
	return steps
}

// refusals are what Kafka may answer requests with.
var refusals = []struct {
	key   kmsg.Key
	topic string
	errs  []*kerr.Error
}{
	{kmsg.Produce, "", []*kerr.Error{kerr.NotLeaderForPartition, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.KafkaStorageError}},
	{kmsg.Produce, "", []*kerr.Error{kerr.InvalidRecord, kerr.OutOfOrderSequenceNumber, kerr.UnknownServerError, kerr.MessageTooLarge}},
	{kmsg.Produce, "timeline", []*kerr.Error{kerr.InvalidRecord, kerr.MessageTooLarge, kerr.PolicyViolation}},
	{kmsg.AddPartitionsToTxn, "", []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.UnknownServerError}},
	{kmsg.AddOffsetsToTxn, "", []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.UnknownServerError}},
	{kmsg.TxnOffsetCommit, "", []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.UnknownServerError}},
	{kmsg.EndTxn, "", []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.RequestTimedOut, kerr.ConcurrentTransactions, kerr.UnknownServerError, kerr.InvalidProducerEpoch}},
	{kmsg.InitProducerID, "", []*kerr.Error{kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable}},
	{kmsg.Heartbeat, "", []*kerr.Error{kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration}},
	{kmsg.OffsetFetch, "", []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress}},
	{kmsg.JoinGroup, "", []*kerr.Error{kerr.UnknownMemberID, kerr.CoordinatorLoadInProgress}},
	{kmsg.Fetch, "timeline", []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownServerError, kerr.OffsetNotAvailable, kerr.KafkaStorageError}},
	{kmsg.Fetch, contentTopic, []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownServerError, kerr.OffsetNotAvailable, kerr.KafkaStorageError}},
	{kmsg.ListOffsets, "timeline", []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownServerError, kerr.OffsetNotAvailable}},
}

func (h *history) kafkaRefuses(r *rand.Rand, at time.Duration) []step {
	x, n := refusals[r.IntN(len(refusals))], 1+r.IntN(1<<r.IntN(6))
	err := x.errs[r.IntN(len(x.errs))]
	if r.IntN(4) == 0 {
		n = -1 // for as long as it lasts
	}
	var armed *kfake.FaultHandle
	return []step{{at, fmt.Sprintf("Kafka answers %s of %q %d times with %s", x.key.Name(), x.topic, n, err.Message), func() {
		armed = h.w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{x.key}, Err: err, Topic: x.topic, Count: n, When: func(req kmsg.Request) bool {
			p, ok := req.(*kmsg.ProduceRequest) // those of the producers get through
			return !ok || p.TransactionID != nil
		}})
	}}, {at + some(r), "Kafka is well", func() { armed.Remove() }}}
}

func (h *history) diskFills(r *rand.Rand, at time.Duration) []step {
	i := r.IntN(nodes)
	return []step{
		{at, string(nodeID(i)) + "'s disk is full", func() { h.w.disks[i].full.Store(true) }},
		{at + some(r), string(nodeID(i)) + "'s disk has room", func() { h.w.disks[i].full.Store(false) }},
	}
}

// moves gives a partition to other nodes, once or more often.
func (h *history) moves(r *rand.Rand, at time.Duration) (steps []step) {
	p := h.w.hosted[r.IntN(len(h.w.hosted))]
	for range 1 + r.IntN(3) {
		to := h.w.owners(r)
		steps = append(steps, step{at, fmt.Sprintf("partition %d goes to %v", p, to), func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			next := h.w.assignment
			next.Replicas[p] = to
			next.Epoch++
			h.w.must(steering.Assign(ctx, h.w.client, next))
			h.w.assignment = next
		}})
		at += time.Duration(200+r.IntN(6000)) * time.Millisecond
	}
	return steps
}

// zombie cuts a partitioner off until another has its place, and joins it again.
func (h *history) zombie(r *rand.Rand, at time.Duration) []step {
	one, two := h.w.partitioners[0].name, h.w.partitioners[1]
	return []step{
		{at - time.Second, two.name + " starts", two.start},
		{at, one + " is cut off", func() {
			h.w.net.cut(one, "kafka")
			h.w.net.cut("kafka", one)
		}},
		{at + 13*time.Second + some(r)/4, one + " is back", func() { h.w.net.heal(one, "kafka") }},
	}
}

// trim deletes the beginning of the log of a partition. A node that has not
// read it yet can never answer for the partition again.
func (h *history) trim(r *rand.Rand, at time.Duration) []step {
	p, back := h.w.hosted[r.IntN(len(h.w.hosted))], int64(r.IntN(4))
	return []step{{at, fmt.Sprintf("the log of partition %d is cut", p), func() {
		h.truth.read(h.w.t.Context()) // while it is there
		h.cutLog(p, back)
	}}}
}

// lonelyFault draws what befalls one node, and nothing else: questions are
// answered by the other nodes as if nothing was.
func (h *history) lonelyFault(r *rand.Rand) []step {
	i, lost := r.IntN(nodes), rand.New(rand.NewPCG(h.seed, r.Uint64()))
	n := h.w.nodes[i]
	at := 6*time.Second + time.Duration(r.IntN(3_000))*time.Millisecond
	end := at + 7*time.Second + time.Duration(r.IntN(8_000))*time.Millisecond
	h.lonely, h.struck = n.name, h.w.began.Add(at)
	cut := func(from, to string) []step {
		return []step{
			{at, "nothing gets through from " + from + " to " + to, func() { h.w.net.cut(from, to) }},
			{end, from + " and " + to + " are joined again", func() { h.w.net.heal(from, to) }},
		}
	}
	which := r.IntN(6)
	h.deaf = which != 3
	switch which {
	case 0:
		return []step{{at, n.name + " crashes", func() {
			n.crash()
			h.w.disks[i].crash(lost)
		}}, {end, n.name + " starts", n.start}}
	case 1:
		return cut("broker", n.name)
	case 2:
		return cut(n.name, "broker")
	case 3:
		return slices.Concat(cut(n.name, "kafka"), cut("kafka", n.name))
	case 4:
		return slices.Concat(cut("broker", n.name), cut(n.name, "broker"), cut("etcd", n.name), cut(n.name, "etcd"))
	}
	return []step{
		{at, n.name + "'s answers come a second late", func() { h.w.net.delay(n.name, "broker", time.Second) }},
		{end, n.name + " is as fast as before", func() { h.w.net.heal(n.name, "broker") }},
	}
}

// noticedWithin is how long a broker may take to see that a node does not answer
// it. From then on it asks the node now and then, and otherwise others.
const noticedWithin = 3 * time.Second

// A node without Kafka flags its answers when they may be old, and brokers ask
// others first when it has told the cluster so, within a quarter of the limit.
// In between, from when its last proof is 8 s old, they have not heard.
const (
	unheardFrom  = 4 * time.Second
	unheardUntil = 11 * time.Second
)

// judgeService reports what was not answered whole and new although nothing but
// one node was broken, and whether that node was asked as if it was well.
func (h *history) judgeService() {
	if h.lonely == "" {
		return
	}
	for _, x := range h.asks.refused {
		h.found("unserved", "with %s broken alone, what was asked at %s was refused: %v", h.lonely, x.at.Sub(h.w.began), x.err)
	}
	begin, questions := h.struck.Add(noticedWithin), 0
	for _, a := range h.asks.answers {
		c := a.resp.GetCoverage()
		unheard := !h.deaf && a.at.After(h.struck.Add(unheardFrom)) && a.at.Before(h.struck.Add(unheardUntil))
		if len(c.GetMissing()) > 0 || c.GetTimelinesBehind() > 0 && !unheard {
			h.found("unserved", "with %s broken alone, the answer of %s is not whole: %v", h.lonely, a.at.Sub(h.w.began), c)
		}
		if a.at.After(begin) && a.at.Before(h.struck.Add(7*time.Second)) {
			questions++
		}
	}
	calls := 0
	for _, at := range h.w.asked[millrace.NodeID(h.lonely)] {
		if at.After(begin) && at.Before(h.struck.Add(7*time.Second)) {
			calls++
		}
	}
	if h.deaf && calls > 2+questions/4 {
		h.found("favoured", "%s answers the broker nothing, and was asked %d times for %d questions", h.lonely, calls, questions)
	}
}

// trimBehind deletes the log of all that a node has while it is down.
func (h *history) trimBehind(r *rand.Rand, at time.Duration) []step {
	i, lost := r.IntN(nodes), rand.New(rand.NewPCG(h.seed, r.Uint64()))
	n := h.w.nodes[i]
	down := 500*time.Millisecond + some(r)
	return slices.Concat([]step{
		{at, n.name + " crashes, and will lack some of the log", func() {
			n.crash()
			h.w.disks[i].crash(lost)
		}},
		{at + down, n.name + " starts", func() {
			h.truth.read(h.w.t.Context())
			for _, p := range h.w.hosted {
				if slices.Contains(h.w.assignment.Replicas[p], nodeID(i)) {
					h.cutLog(p, 0)
				}
			}
			n.start()
		}},
	}, h.busy(r, at-2*time.Second))
}

// cutLog deletes the log of a partition but for so much before its end.
func (h *history) cutLog(p millrace.Partition, back int64) {
	topic := h.w.topics.WithDefaults().Timeline
	log := h.w.kafka.PartitionInfo(topic, int32(p))
	if end := min(log.LastStableOffset, h.truth.next[fmt.Sprint(topic, "/", int32(p))]) - back; end > log.LogStartOffset {
		h.w.must(h.w.kafka.DeleteRecords(topic, int32(p), end))
		h.trimmed[p] = true
	}
}

// lettersRefused has Kafka refuse what nodes put to the dead letters, while
// something is to be put there.
func (h *history) lettersRefused(r *rand.Rand, at time.Duration) []step {
	errs := []*kerr.Error{kerr.InvalidRecord, kerr.PolicyViolation, kerr.NotLeaderForPartition}
	err, lasts := errs[r.IntN(len(errs))], some(r)
	var armed *kfake.FaultHandle
	return []step{{at, "Kafka refuses dead letters of nodes with " + err.Message, func() {
		armed = h.w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Topic: h.w.topics.WithDefaults().DeadLetters, Count: -1, When: func(req kmsg.Request) bool {
			return req.(*kmsg.ProduceRequest).TransactionID == nil
		}})
		h.stray()
		h.stray()
	}}, {at + lasts, "Kafka takes dead letters", func() { armed.Remove() }}}
}

// asks is who answers.
type asks func(context.Context, oracle.Question) (answer, error)

func (h *history) askBroker(ctx context.Context, q oracle.Question) (answer, error) {
	return ask(ctx, h.w.broker, q)
}

// hostedBy are the entities that a node has, by the last assignment.
func (h *history) hostedBy(i int) (all []millrace.Entity) {
	for _, e := range h.w.entities {
		if slices.Contains(h.w.assignment.Replicas[partition.Of(e)], nodeID(i)) {
			all = append(all, e)
		}
	}
	return all
}

// alone is a map on which one node has everything.
type alone struct {
	*cluster.Watcher
	id millrace.NodeID
}

func (a alone) Current() *topology.Map {
	now := a.Watcher.Current()
	node, ok := now.Node(a.id)
	if !ok {
		return now
	}
	only := topology.Assignment{Epoch: 1}
	for p := range only.Replicas {
		only.Replicas[p] = []millrace.NodeID{a.id}
	}
	return topology.NewMap(only, []topology.Node{node}, map[millrace.NodeID]topology.Set{a.id: now.Ready(a.id)})
}

// askNode asks a node by a broker that knows no other.
func (h *history) askNode(i int) asks {
	return func(ctx context.Context, q oracle.Question) (answer, error) {
		maps, err := h.w.client.Watch(ctx)
		if err != nil {
			return answer{}, err
		}
		b, err := broker.New(broker.Config{Maps: alone{maps, nodeID(i)}, Dial: fanout.DialGRPC(h.w.dials(h.w.judge)...), Log: h.w.log})
		if err != nil {
			return answer{}, err
		}
		defer b.Close()
		return ask(ctx, b, q)
	}
}

// gone reports whether the logs of all entities were cut.
func (h *history) gone(entities []millrace.Entity) bool {
	return !slices.ContainsFunc(entities, func(e millrace.Entity) bool { return !h.trimmed[partition.Of(e)] })
}

// differs is what an answer for everything lacks of being whole, new and right.
// It may lack what the log was cut of.
func (h *history) differs(got answer, eval *oracle.Eval, all *oracle.Feed) string {
	c := got.resp.GetCoverage()
	missing := map[millrace.Partition]bool{}
	for _, m := range c.GetMissing() {
		missing[millrace.Partition(m.Partition)] = true
	}
	for p := range maps.Keys(missing) {
		if !h.trimmed[p] {
			return fmt.Sprintf("partitions are missing: %v", c.GetMissing())
		}
	}
	if n := c.GetTimelinesBehind(); n > 0 {
		return fmt.Sprintf("%d timelines are behind", n)
	}
	q := got.q
	q.Entities = slices.DeleteFunc(slices.Clone(q.Entities), func(e millrace.Entity) bool { return missing[partition.Of(e)] })
	query, err := eval.Query(q)
	h.w.must(err)
	return oracle.Diff(all.Query(query).Items, oracle.FeedItems(got.resp.GetItems()))
}
