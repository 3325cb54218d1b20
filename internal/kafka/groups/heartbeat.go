package groups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// beatEvery is how often a Heartbeat measures and writes. If Kafka has not answered for
// beatLate, it counts as away, even if a call to it is still under way: a frozen Kafka does
// not refuse calls.
const (
	beatEvery = 2 * time.Second
	beatLate  = 8 * time.Second
)

// HeartbeatConfig says whose progress is measured.
type HeartbeatConfig struct {
	Brokers  kafka.Brokers
	Progress *progress.Log // the topic that it is written to, with what was proven before
	Group    string
	Instance string
	Inputs   []string                // the group's topics
	Features []string                // those of them that carry features
	Logs     []string                // topics that the group writes to; see SessionConfig.Logs
	Future   time.Duration           // how far a record's time may be after its arrival
	Stuck    func() []progress.Stuck // places that this process cannot read past; nil = none
	// Measured is called with each measurement, and with an empty one at each failed beat
	// once there has been none for beatLate; nil = nobody is told.
	Measured func(progress.Progress)
	Log      *slog.Logger // nil = silent
}

// Heartbeat measures how far a group has come, from outside of the group: it
// asks Kafka for the ends of the topics and for what the group has committed.
// So it is right for a group whose members are stuck, too. While Kafka
// cannot be asked it writes nothing, and readers see the age of what it wrote last.
type Heartbeat struct {
	cfg    HeartbeatConfig
	trails map[topicPartition]*trail // only Run uses it
	mu     struct {
		sync.Mutex
		last  progress.Progress
		at    time.Time // when last was measured
		fault error     // of the latest beat; nil: it succeeded
	}
}

type topicPartition struct {
	topic     string
	partition int32
}

// NewHeartbeat returns a Heartbeat that has not measured yet.
func NewHeartbeat(cfg HeartbeatConfig) *Heartbeat {
	h := &Heartbeat{cfg: cfg, trails: map[topicPartition]*trail{}}
	h.mu.fault = errors.New("kafka: the group's progress has not been measured yet")
	return h
}

// Last returns the last measurement. The error says why there is no newer one; it is nil
// while beats succeed.
func (h *Heartbeat) Last() (progress.Progress, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since := time.Since(h.mu.at); h.mu.fault == nil && since > beatLate {
		return h.mu.last, fmt.Errorf("kafka: asked for the progress of group %s, and nothing heard for %v", h.cfg.Group, since.Round(time.Second))
	}
	return h.mu.last, h.mu.fault
}

// Run measures and writes until ctx ends.
func (h *Heartbeat) Run(ctx context.Context) {
	var cl *kgo.Client
	defer func() {
		if cl != nil {
			cl.Close()
		}
	}()
	var told time.Time
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		var err error
		if cl == nil {
			cl, err = kafka.NewClient(h.cfg.Brokers, nil, kafka.Cancellable())
		}
		if err == nil {
			err = h.beat(ctx, cl)
		}
		if err != nil && ctx.Err() == nil {
			if cl != nil { // what it has cached may be of a former Kafka or topic
				cl.Close()
				cl = nil
			}
			if h.cfg.Log != nil && time.Since(told) > patience.TellEvery {
				told = time.Now()
				h.cfg.Log.Warn("kafka: no heartbeat", "group", h.cfg.Group, "error", err)
			}
		}
		h.ended(err)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// ended notes how a beat ended. If the last measurement is older than beatLate, it calls
// Measured with an empty one, so that an old measurement is not taken for the present state.
func (h *Heartbeat) ended(fault error) {
	h.mu.Lock()
	h.mu.fault = fault
	late := fault != nil && time.Since(h.mu.at) > beatLate
	h.mu.Unlock()
	if late && h.cfg.Measured != nil {
		h.cfg.Measured(progress.Progress{})
	}
}

// beat measures once, and writes what it found.
func (h *Heartbeat) beat(ctx context.Context, cl *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, patience.TryTimeout)
	defer cancel()
	if !h.cfg.Progress.Read() { // it is not read yet, and what was proven before must not be lost
		if err := h.cfg.Progress.Refresh(ctx); err != nil {
			return err
		}
	}
	p, err := h.measure(ctx, cl)
	if err != nil {
		return fmt.Errorf("kafka: progress of group %s: %w", h.cfg.Group, err)
	}
	h.mu.Lock()
	h.mu.last, h.mu.at = p, time.Now()
	h.mu.Unlock()
	if h.cfg.Measured != nil {
		h.cfg.Measured(p)
	}
	value, err := json.Marshal(p)
	if err != nil {
		return err
	}
	r := &kgo.Record{Topic: h.cfg.Progress.Topic(), Key: []byte(h.cfg.Group), Value: value}
	if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("kafka: write to topic %s: %w", r.Topic, err)
	}
	return nil
}

// measure asks for the ends of the topics, and after that for what the group has committed.
// If the group has reached the ends, it has everything that came before the first question.
func (h *Heartbeat) measure(ctx context.Context, cl *kgo.Client) (progress.Progress, error) {
	now := time.Now()
	p := progress.Progress{Group: h.cfg.Group, Instance: h.cfg.Instance, AtMillis: now.UnixMilli(), FutureMillis: h.cfg.Future.Milliseconds(), Topics: map[string]progress.TopicProgress{}}
	p.Kinds = map[string]progress.TopicKind{}
	for _, topic := range h.cfg.Inputs {
		p.Kinds[topic] = progress.ContentTopic
		if slices.Contains(h.cfg.Features, topic) {
			p.Kinds[topic] = progress.FeatureTopic
		}
	}
	if h.cfg.Stuck != nil {
		p.Stuck = h.cfg.Stuck()
	}
	before, _ := h.cfg.Progress.Group(h.cfg.Group)
	at, err := h.look(ctx, cl, before)
	if err != nil {
		return p, err
	}
	if at.outputs != nil {
		p.OtherLog = at.outputs.Error()
	}
	through := now
	for _, topic := range h.cfg.Inputs {
		if len(at.places[topic]) == 0 {
			p.Missing = append(p.Missing, topic)
			if was, known := before.Topics[topic]; known { // the topic was deleted, with what waited in it
				p.Topics[topic], through = was, time.Time{}
			}
			continue
		}
		t, done := h.progress(topic, at, now)
		if done.Before(through) {
			through = done
		}
		if t.ID != at.now.ids[topic] {
			t.Waiting = before.Topics[topic].Waiting
		}
		p.Topics[topic] = t
	}
	if !through.IsZero() && at.outputs == nil {
		p.ThroughMillis = through.UnixMilli()
	}
	// What was proven stays proven, whether by another process of the group or before this
	// one was started. But a time after now comes from a clock that was ahead, and is cut
	// to now.
	p.ThroughMillis = max(p.ThroughMillis, min(before.ThroughMillis, p.AtMillis))
	p.Stuck = withOthers(p.Stuck, before.Stuck, at.places)
	return p, nil
}

// progress measures a topic. It also returns the time up to which the group has read
// everything of it; zero if that is not known, or if a partition's log is not the one that
// the group has read.
func (h *Heartbeat) progress(topic string, at groupLook, now time.Time) (t progress.TopicProgress, through time.Time) {
	t.ID, through = at.now.ids[topic], now
	for partition, place := range at.places[topic] {
		tp := topicPartition{topic, partition}
		if place.foreign || place.done > place.end {
			h.trails[tp], through = &trail{}, time.Time{}
			if place.foreign {
				t.ID = place.was
			}
			continue
		}
		tr := h.trail(tp)
		tr.look(place.end, place.done, now)
		t.Waiting += max(0, place.end-place.done)
		t.Open += max(0, place.end-place.stable)
		t.WaitedMillis = max(t.WaitedMillis, tr.waited(now).Milliseconds())
		if tr.through.Before(through) {
			through = tr.through
		}
	}
	return t, through
}

// withOthers adds, to the places where this process is stuck, those where other processes
// of the group were stuck before and that the group has not got past since.
func withOthers(own, before []progress.Stuck, at map[string]map[int32]place) []progress.Stuck {
	for _, s := range before {
		same := func(o progress.Stuck) bool { return o.Topic == s.Topic && o.Partition == s.Partition }
		now, ok := at[s.Topic][s.Partition]
		if ok && !passed(s, now) && !slices.ContainsFunc(own, same) {
			own = append(own, s)
		}
	}
	return own
}

// passed reports whether the group has got past a place.
func passed(s progress.Stuck, now place) bool {
	switch s.Kind {
	case progress.Recreated:
		return !now.foreign
	case progress.CutShort:
		return now.done <= now.end
	}
	return now.done >= int64(max(s.Next, s.Offset+1))
}

// trail returns the trail of a partition, and adds an empty one if there is none.
func (h *Heartbeat) trail(tp topicPartition) *trail {
	if h.trails[tp] == nil {
		h.trails[tp] = &trail{}
	}
	return h.trails[tp]
}

// place is three offsets of a partition: where it ends, up to where committed records can be
// read, and how far the group is done.
type place struct {
	end, stable, done int64
	foreign           bool          // done is of another log than the topic is now
	was               kafka.TopicID // the id of that log, as far as it is known
}

// groupLook is what Kafka says of a group at one moment.
type groupLook struct {
	now     logs
	outputs *OtherLog                  // nil: the outputs are those that the group has written to
	places  map[string]map[int32]place // by topic and partition
}

// look asks Kafka for all that a measurement of a group needs.
func (h *Heartbeat) look(ctx context.Context, cl *kgo.Client, before progress.Progress) (at groupLook, err error) {
	adm := kadm.NewClient(cl)
	if at.now, err = logsNow(ctx, cl, slices.Concat(h.cfg.Inputs, h.cfg.Logs)); err != nil {
		return at, err
	}
	ends, err := endsOf(ctx, adm, h.cfg.Inputs)
	if err != nil {
		return at, err
	}
	committed, err := groupOffsets(ctx, adm, h.cfg.Group)
	if err != nil {
		return at, err
	}
	err = sameOutputs(h.cfg.Group, committed, h.cfg.Inputs, at.now, h.cfg.Logs)
	if err != nil && !errors.As(err, &at.outputs) {
		return at, err
	}
	at.places, err = places(ctx, adm, h.cfg.Inputs, ends, committed)
	for topic, partitions := range at.places {
		for p, there := range partitions {
			c, has := committed.Lookup(topic, p)
			known := before.Topics[topic].ID
			if there.foreign = foreign(c, has && c.At >= 0, known, at.now.ids[topic]); there.foreign {
				there.was = known
				if o, ok := parseOrigin(c.Metadata); ok {
					there.was = o.Input
				}
				partitions[p] = there
			}
		}
	}
	return at, err
}

// groupOffsets returns what a group has committed; nothing for a group that Kafka does not
// know.
func groupOffsets(ctx context.Context, adm *kadm.Client, group string) (kadm.OffsetResponses, error) {
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	return committed, nil
}

// logEnds are where partitions end: all is the end of everything that is there, and stable
// the end of what is committed.
type logEnds struct{ all, stable kadm.ListedOffsets }

// endsOf asks Kafka where the partitions of topics end.
func endsOf(ctx context.Context, adm *kadm.Client, topics []string) (e logEnds, err error) {
	// Records in or behind an open transaction count too: they have come in, and wait.
	if e.all, err = adm.ListEndOffsets(ctx, topics...); err != nil {
		return e, fmt.Errorf("ends: %w", err)
	}
	if e.stable, err = adm.ListCommittedOffsets(ctx, topics...); err != nil {
		return e, fmt.Errorf("ends of committed transactions: %w", err)
	}
	return e, nil
}

// places returns the places of a group, by topic and partition. A partition that does not exist
// has none, and is an error if the group has committed an offset of it.
func places(ctx context.Context, adm *kadm.Client, topics []string, ends logEnds, committed kadm.OffsetResponses) (map[string]map[int32]place, error) {
	starts, err := adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("starts: %w", err)
	}
	out := map[string]map[int32]place{}
	for _, topic := range topics {
		out[topic] = map[int32]place{}
		for partition, end := range ends.all[topic] {
			c, ok := committed.Lookup(topic, partition)
			has := ok && c.Err == nil && c.At >= 0
			switch {
			case errors.Is(end.Err, kerr.UnknownTopicOrPartition) && !has:
				continue
			case end.Err != nil:
				return nil, fmt.Errorf("end of %s/%d: %w", topic, partition, end.Err)
			case ok && c.Err != nil && !errors.Is(c.Err, kerr.UnknownTopicOrPartition):
				return nil, fmt.Errorf("committed offset of %s/%d: %w", topic, partition, c.Err)
			}
			at := place{end: end.Offset, stable: end.Offset}
			if s, ok := ends.stable.Lookup(topic, partition); ok && s.Err == nil {
				at.stable = s.Offset
			}
			if start, ok := starts.Lookup(topic, partition); ok && start.Err == nil {
				at.done = start.Offset // nothing is committed, and what was before it is deleted
			}
			if has {
				at.done = c.At
			}
			out[topic][partition] = at
		}
	}
	return askAgain(ctx, adm, out)
}

// askAgain asks a second time for the ends of partitions whose end the group seems to be
// past, since the group may have gone on between the two questions. If it is past the new
// end too, the log was cut off, or is not the one that the group has read.
func askAgain(ctx context.Context, adm *kadm.Client, at map[string]map[int32]place) (map[string]map[int32]place, error) {
	var past []topicPartition
	var topics []string
	for topic, partitions := range at {
		for partition, p := range partitions {
			if p.done > p.end {
				past = append(past, topicPartition{topic, partition})
				topics = append(topics, topic)
			}
		}
	}
	if len(past) == 0 {
		return at, nil
	}
	slices.Sort(topics)
	ends, err := adm.ListEndOffsets(ctx, slices.Compact(topics)...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("ends: %w", err)
	}
	for _, tp := range past {
		end, _ := ends.Lookup(tp.topic, tp.partition)
		p := at[tp.topic][tp.partition]
		p.end = end.Offset
		at[tp.topic][tp.partition] = p
	}
	return at, nil
}

// trailGrain says how exact a trail is: two marks are at least so much apart as the oldest
// mark's age divided by it. So even a long wait needs few marks.
const trailGrain = 32

// trail remembers where a partition ended at some times, to tell up to which
// time a reader has everything.
type trail struct {
	through time.Time // everything that came before it is done; zero = not known
	marks   []endMark // that the reader has not reached, oldest first
}

// endMark says that what had come in by a time lies before end.
type endMark struct {
	end int64
	at  time.Time
}

// look notes that the partition ended at end, at now or later, and that the reader is done
// up to done.
func (t *trail) look(end, done int64, now time.Time) {
	for len(t.marks) > 0 && t.marks[0].end <= done {
		t.through, t.marks = t.marks[0].at, t.marks[1:]
	}
	if end <= done {
		t.through, t.marks = now, nil
		return
	}
	if len(t.marks) == 0 || now.Sub(t.marks[len(t.marks)-1].at) >= now.Sub(t.marks[0].at)/trailGrain {
		t.marks = append(t.marks, endMark{end, now})
	}
}

// waited returns for how long records have been seen that are not done; 0 if there are none.
func (t *trail) waited(now time.Time) time.Duration {
	if len(t.marks) == 0 {
		return 0
	}
	return now.Sub(t.marks[0].at)
}
