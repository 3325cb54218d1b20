package partitioner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// recreate deletes topics and creates them again.
func (w *world) recreate(topics ...string) {
	w.t.Helper()
	adm := w.admin()
	_, err := adm.DeleteTopics(w.ctx, topics...)
	must(w.t, err)
	w.until("deleted", func() bool {
		all, err := adm.ListTopics(w.ctx, topics...)
		for _, topic := range topics {
			if err != nil || all.Has(topic) {
				return false
			}
		}
		return true
	})
	must(w.t, kafka.EnsureTopics(w.ctx, w.brokers, w.cfg.Topics, nil))
	for _, topic := range append(w.cfg.Content, w.cfg.Features...) {
		must(w.t, kafka.EnsureContentTopic(w.ctx, w.brokers, topic, 3, nil))
	}
}

func (w *world) admin() *kadm.Client {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.MetadataMinAge(10*time.Millisecond))
	must(w.t, err)
	w.t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// send writes a record to a content topic with a client of its own, which knows
// the topic as it is now.
func (w *world) send(topic string, partition int32, id string) {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(w.t, err)
	defer cl.Close()
	must(w.t, cl.ProduceSync(w.ctx, &kgo.Record{Topic: topic, Partition: partition, Value: activity(w.t, id, "member:1", "")}).FirstErr())
}

// held returns how many records a topic has.
func (w *world) held(topic string) (n int64) {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...))
	must(w.t, err)
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(w.ctx, topic)
	must(w.t, err)
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

func quick(p *Partitioner) { p.pace.logs = 20 * time.Millisecond }

func TestARecreatedOutputStopsTheGroup(t *testing.T) {
	t.Parallel()
	testRecreatedOutput(t, newFake(t))
}

// testRecreatedOutput: partitioners do not write to a timeline topic that is not
// the one that they have written to, running or started anew, until an operator
// says so; then they go on where they were, or from the beginning.
func testRecreatedOutput(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	content, timeline := w.cfg.Content[0], w.cfg.Topics.Timeline
	p, stop := w.start(quick)
	w.send(content, 0, "past")
	w.until("the past is brought", func() bool { return w.held(timeline) > 0 })
	w.untilReady(p, "")
	w.recreate(timeline)
	want := "millrace topics adopt --group " + w.cfg.Group
	w.untilReady(p, want)
	w.send(content, 0, "later")
	said := w.progress()
	w.until("told by the heartbeat", func() bool {
		told, _ := said.Group(w.cfg.Group)
		return strings.Contains(told.OtherLog, timeline+" was deleted and created again")
	})
	w.until("told by the metric", func() bool { return value(p.metrics.otherLog) == 1 })
	stop()
	p, _ = w.start(quick) // which creates topics that are missing, and knows nothing
	w.untilReady(p, want)
	if n := w.held(timeline); n != 0 {
		t.Errorf("%d records in the new topic before anybody said so", n)
	}
	through, _ := said.Through()

	plan, err := groups.PlanAdoption(w.ctx, w.brokers, w.cfg.Group, w.cfg.Topics.Logs())
	must(t, err)
	if plan.Other == nil || plan.Kept < 1 || plan.Brought < plan.Kept {
		t.Errorf("planned: %+v", plan)
	}
	must(t, groups.Adopt(w.ctx, w.brokers, plan, true))
	w.untilReady(p, "")
	w.until("past and later are brought", func() bool { return len(w.timelineIDs()) == 2 })
	w.untilThrough(said, through)
	if plan, err = groups.PlanAdoption(w.ctx, w.brokers, w.cfg.Group, w.cfg.Topics.Logs()); err != nil || plan.Other != nil {
		t.Errorf("after it: %v, %v", plan.Other, err)
	}
}

// timelineIDs reads the ids of the records of the timeline topic as it is now.
func (w *world) timelineIDs() map[string]bool {
	w.t.Helper()
	n := int(w.held(w.cfg.Topics.Timeline))
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.ConsumeTopics(w.cfg.Topics.Timeline), kgo.KeepControlRecords(), kgo.FetchMaxBytes(32<<20))
	must(w.t, err)
	defer cl.Close()
	ids := map[string]bool{}
	for got := 0; got < n; {
		fetches := cl.PollFetches(w.ctx)
		must(w.t, fetches.Err())
		for r := range fetches.RecordsAll() {
			if got++; !r.Attrs.IsControl() {
				ids[header(r, kafka.HeaderSource)] = true
			}
		}
	}
	return ids
}

// A further topic, and a group's first start, need no word.
func TestFurtherTopicsNeedNoWord(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Activity())
	p, stop := w.start(quick)
	w.send("posts", 0, "one")
	w.until("it is brought", func() bool { return w.held("timeline") > 0 })
	w.untilReady(p, "")
	stop()
	must(t, kafka.EnsureContentTopic(w.ctx, w.brokers, "more", 2, nil))
	w.cfg.Content = append(w.cfg.Content, "more")
	p, _ = w.start(quick)
	w.send("more", 1, "two")
	w.until("so is the other", func() bool { return len(w.timelineIDs()) == 2 })
	w.untilReady(p, "")
}

func TestARecreatedInputIsGoneOnWith(t *testing.T) {
	t.Parallel()
	testRecreatedInput(t, newFake(t))
}

// testRecreatedInput: a content topic that was deleted and created again is told
// as that, with what waited in it, stops alone, and is gone on with by a word,
// from its beginning, while the process runs.
func testRecreatedInput(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	topic, beside := w.cfg.Content[0], w.cfg.Content[1]
	p, _ := w.start(quick)
	for i := range 3 {
		w.send(topic, int32(i), fmt.Sprint("before-", i))
	}
	w.until("all is brought", func() bool { return len(w.timelineIDs()) == 3 })
	w.untilReady(p, "")
	said := w.progress()
	w.untilThrough(said, time.Now())
	w.recreate(topic)
	for i := range 3 { // as far as the group has read
		w.send(topic, int32(i), fmt.Sprint("new-", i))
	}
	created := time.Now()
	w.untilReady(p, "the topic was deleted and created again")
	w.untilReady(p, "millrace topics skip --topic "+topic+" --group "+w.cfg.Group+" --apply")
	w.send(beside, 0, "beside")
	w.until("others go on", func() bool { return len(w.timelineIDs()) == 4 })
	var told progress.Progress
	w.until("told by the heartbeat", func() bool {
		told, _ = said.Group(w.cfg.Group)
		return len(told.Stuck) == 3
	})
	if through, _ := said.Through(); through.After(created) {
		t.Errorf("through %s, and the new topic, of before %s, is not read", through, created)
	}
	for _, at := range told.Stuck {
		if at.Kind != progress.Recreated || at.Next != 0 {
			t.Errorf("told: %+v", at)
		}
		must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, at.Skip(w.cfg.Group)))
	}
	w.until("what is new is brought, and nothing twice", func() bool {
		n := w.records()
		if n > 7 {
			t.Fatalf("%d records in the timeline topic, want 7", n)
		}
		return n == 7
	})
	w.untilReady(p, "")
	w.untilThrough(said, created)
	w.until("nothing is told any more", func() bool {
		told, _ = said.Group(w.cfg.Group)
		return len(told.Stuck) == 0
	})
}

// records counts what was committed to the timeline topic: without markers, and
// without what was aborted, as by a rebalance.
func (w *world) records() (n int) {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.ConsumeTopics(w.cfg.Topics.Timeline), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxBytes(32<<20))
	must(w.t, err)
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(w.ctx, w.cfg.Topics.Timeline)
	must(w.t, err)
	left := map[int32]int64{} // where partitions end that are not read yet: at a marker
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	for len(left) > 0 {
		fetches := cl.PollFetches(w.ctx)
		must(w.t, fetches.Err())
		for r := range fetches.RecordsAll() {
			if !r.Attrs.IsControl() {
				n++
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		}
	}
	return n
}

func TestATrimmedInputIsGoneOnWith(t *testing.T) {
	t.Parallel()
	testTrimmedInput(t, newFake(t))
}

// testTrimmedInput: a content topic that was trimmed beyond what was read is
// told as that, with how much is gone; nothing is said to be kept that is not.
func testTrimmedInput(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	topic := w.cfg.Content[0]
	p, stop := w.start(quick)
	w.send(topic, 0, "before")
	w.until("it is brought", func() bool { return w.records() == 1 })
	w.untilReady(p, "")
	stop()
	for i := range 4 {
		w.send(topic, 0, fmt.Sprint("gone-", i))
	}
	w.send(topic, 0, "left")
	var to kadm.Offsets
	to.AddOffset(topic, 0, 5, -1)
	_, err := w.admin().DeleteRecords(w.ctx, to)
	must(t, err)
	p, _ = w.start(quick)
	w.untilReady(p, "4 records from offset 1 on, at most, were deleted before they were read")
	said := w.progress()
	var told progress.Progress
	w.until("told by the heartbeat", func() bool {
		told, _ = said.Group(w.cfg.Group)
		return len(told.Stuck) == 1
	})
	if at := told.Stuck[0]; at.Kind != progress.Trimmed || at.Lost() != 4 || at.Next != 5 || strings.Contains(at.Says(w.cfg.Group), "kept") || !strings.HasSuffix(at.Says(w.cfg.Group), " --group "+w.cfg.Group+" --apply") || strings.Contains(at.Says(DefaultGroup), "--group") {
		t.Errorf("told: %+v", at)
	}
	must(t, progress.RequestSkip(w.ctx, w.brokers, w.cfg.Topics.Progress, told.Stuck[0].Skip(w.cfg.Group)))
	w.until("what is left is brought", func() bool { return w.records() == 2 })
	w.untilReady(p, "")
	if n := value(p.metrics.lost.WithLabelValues(topic)); n != 4 {
		t.Errorf("%v lost records in the metrics, want 4", n)
	}
	if n := w.held(w.cfg.Topics.DeadLetters); n != 0 {
		t.Errorf("%d dead letters of what is gone", n)
	}
}
