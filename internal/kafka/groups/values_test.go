package groups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/partition"
)

// Which faults of a partition do not pass by themselves, and what is known of them.
func TestUnreadable(t *testing.T) {
	bomb := &kgo.ErrDecompressTooLarge{Offset: 5, NextOffset: 9}
	for _, c := range []struct {
		topic        string
		err          error
		want         bool
		offset, next millrace.Offset
	}{
		{"t", bomb, true, 5, 9}, {"", bomb, true, 5, 9}, {"t", kerr.OffsetOutOfRange, true, 0, 0}, {"t", &kgo.ErrDataLoss{}, true, 0, 0}, {"t", io.ErrUnexpectedEOF, true, 0, 0},
		{"", io.ErrUnexpectedEOF, false, 0, 0}, {"t", &kgo.ErrGroupSession{Err: io.EOF}, false, 0, 0}, {"t", kerr.NotLeaderForPartition, false, 0, 0},
		{"t", context.Canceled, false, 0, 0}, {"t", context.DeadlineExceeded, false, 0, 0},
	} {
		u := unreadable(c.topic, 3, fmt.Errorf("x: %w", c.err))
		if (u != nil) != c.want || u != nil && (u.Topic != c.topic || u.Partition != 3 || u.Offset != c.offset || u.Next != c.next || u.Err == nil || !errors.Is(u, kafka.ErrLostPosition) || (c.err != bomb && !errors.Is(u, c.err))) {
			t.Errorf("%v of %q: %+v", c.err, c.topic, u)
		}
		if c.err == bomb && !strings.Contains(u.Error(), "kafka: read "+c.topic+"/3: position lost: a batch of more than 67108864 bytes") {
			t.Errorf("%v", u)
		}
	}
}

// Where a group is stuck is found by its offsets and the log: a batch that is there, a log
// that was trimmed or cut short, a topic that was created again.
func TestLocate(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	adm := kafkatest.Admin(t, k.Brokers)
	for range 3 {
		kafkatest.Write(t, k, k.Content, 0, "a")
		kafkatest.Write(t, k, k.Content, 1, "a")
	}
	kafkatest.Broken(t, k, k.Content, 1, 4, false) // offsets 3 to 6
	var trim, done kadm.Offsets
	trim.AddOffset(k.Content, 0, 2, -1)
	_, err := adm.DeleteRecords(ctx, trim)
	kafkatest.Must(t, err)
	done.AddOffset(k.Content, 0, 1, -1)
	done.AddOffset(k.Content, 1, 3, -1)
	done.AddOffset(k.Content, 2, 8, -1)
	kafkatest.Must(t, adm.CommitAllOffsets(ctx, "g", done))
	at := func(partition int32, offset, next millrace.Offset, kind progress.Kind) progress.Stuck {
		return progress.Stuck{Topic: k.Content, Partition: partition, Offset: offset, Next: next, Kind: kind, Reason: "EOF"}
	}
	for name, c := range map[string]struct {
		group string
		u     Unreadable
		want  progress.Stuck
	}{
		"known already":                         {"g", Unreadable{Partition: 0, Offset: 5, Next: 9}, at(0, 5, 9, progress.Closed)},
		"trimmed":                               {"g", Unreadable{Partition: 0}, at(0, 1, 2, progress.Trimmed)},
		"trimmed, and nothing is committed":     {"none", Unreadable{Partition: 0}, at(0, 0, 2, progress.Trimmed)},
		"cut short":                             {"g", Unreadable{Partition: 2}, at(2, 8, 0, progress.CutShort)},
		"a batch":                               {"g", Unreadable{Partition: 1}, at(1, 3, 7, progress.Closed)},
		"within a batch":                        {"g", Unreadable{Partition: 1, from: 5}, at(1, 5, 7, progress.Closed)},
		"the session was not so far":            {"g", Unreadable{Partition: 1, from: 2}, at(1, 3, 7, progress.Closed)},
		"another topic":                         {"g", Unreadable{Partition: 0, Kind: progress.Recreated, from: 1}, at(0, 1, 2, progress.Recreated)},
		"another topic, nothing was committed":  {"none", Unreadable{Partition: 0, Kind: progress.Recreated, from: 7}, at(0, 7, 2, progress.Recreated)},
		"another topic, which begins at its 0.": {"none", Unreadable{Partition: 1, Kind: progress.Recreated}, at(1, 0, 0, progress.Recreated)},
	} {
		c.u.Topic, c.u.Err = k.Content, io.EOF
		if got, err := Locate(ctx, k.Brokers, c.group, &c.u); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	b, err := FetchBatch(ctx, k.Brokers, k.Content, 1, 4)
	if err != nil || b.First != 3 || b.Next != 7 || len(b.Bytes) <= batchHeaderBytes {
		t.Errorf("the batch is from %d to %d, of %d bytes, %v", b.First, b.Next, len(b.Bytes), err)
	}
	for _, offset := range []millrace.Offset{7, 99} {
		if _, err := FetchBatch(ctx, k.Brokers, k.Content, 1, offset); !errors.Is(err, kafka.ErrLostPosition) {
			t.Errorf("at %d: %v", offset, err)
		}
	}
	if _, err := Locate(ctx, k.Brokers, "g", &Unreadable{Topic: k.Content + "-none", Err: io.EOF}); err == nil {
		t.Error("a topic that does not exist has a place")
	}
}

// Who has an instance name is told by the address that it gave, unless that is the asker's.
func TestHolder(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Address: "there:1", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	defer s.Close()
	for _, c := range []struct{ group, instance, own, want string }{
		{k.Content, "one", "here:1", "there:1 (Kafka hears it from 127.0.0.1)"}, {k.Content, "one", "there:1", "127.0.0.1"}, {k.Content, "two", "here:1", ""}, {"other", "one", "here:1", ""},
	} {
		if got, err := Holder(ctx, k.Brokers, c.group, c.instance, c.own); err != nil || got != c.want {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

// Whether a group has got past a place depends on what was wrong there.
func TestPassed(t *testing.T) {
	at := progress.Stuck{Topic: "t", Offset: 5, Next: 9}
	for _, c := range []struct {
		kind progress.Kind
		next millrace.Offset
		now  place
		want bool
	}{
		{progress.Closed, 9, place{done: 8}, false}, {progress.Closed, 9, place{done: 9}, true}, {progress.Trimmed, 9, place{done: 9}, true},
		{progress.Closed, 0, place{done: 5}, false}, {progress.Closed, 0, place{done: 6}, true},
		{progress.Recreated, 0, place{done: 99, foreign: true}, false}, {progress.Recreated, 0, place{}, true},
		{progress.CutShort, 0, place{done: 5, end: 4}, false}, {progress.CutShort, 0, place{done: 4, end: 4}, true},
	} {
		at.Kind, at.Next = c.kind, c.next
		if got := passed(at, c.now); got != c.want {
			t.Errorf("%q up to %d, at %+v: %v", c.kind, c.next, c.now, got)
		}
		others := withOthers(nil, []progress.Stuck{at}, map[string]map[int32]place{"t": {0: c.now}})
		if (len(others) == 0) != c.want {
			t.Errorf("%q up to %d, at %+v: told %v", c.kind, c.next, c.now, others)
		}
	}
	if got := withOthers(nil, []progress.Stuck{at}, map[string]map[int32]place{"t": {1: {}}}); got != nil {
		t.Errorf("of a partition that is not there: %v", got)
	}
}

// The progress in a topic is what its partitions have together; nothing is proven while the
// log of one is another than the group has read.
func TestProgressOfATopic(t *testing.T) {
	now := time.Unix(1e9, 0)
	id, was := kafka.TopicID{1}, kafka.TopicID{2}
	for name, c := range map[string]struct {
		places  map[int32]place
		want    progress.TopicProgress
		through time.Time
	}{
		"all is done":            {map[int32]place{0: {end: 5, stable: 5, done: 5}, 1: {}}, progress.TopicProgress{ID: id}, now},
		"some wait":              {map[int32]place{0: {end: 9, stable: 7, done: 5}, 1: {end: 3, stable: 3, done: 2}}, progress.TopicProgress{Waiting: 5, Open: 2, WaitedMillis: 2000, ID: id}, time.Time{}},
		"done beyond the end":    {map[int32]place{0: {end: 4, stable: 4, done: 5}, 1: {end: 3, stable: 3, done: 2}}, progress.TopicProgress{Waiting: 1, WaitedMillis: 2000, ID: id}, time.Time{}},
		"of another log":         {map[int32]place{0: {end: 4, stable: 4, done: 2, foreign: true, was: was}}, progress.TopicProgress{ID: was}, time.Time{}},
		"one of another log":     {map[int32]place{0: {end: 4, stable: 4, foreign: true, was: was}, 1: {end: 4, stable: 4, done: 4}}, progress.TopicProgress{ID: was}, time.Time{}},
		"a stable end is behind": {map[int32]place{0: {end: 4, stable: 5, done: 4}}, progress.TopicProgress{ID: id}, now},
	} {
		h := NewHeartbeat(HeartbeatConfig{})
		look := groupLook{now: logs{ids: map[string]kafka.TopicID{"t": id}}, places: map[string]map[int32]place{"t": c.places}}
		h.progress("t", look, now.Add(-2*time.Second))
		got, through := h.progress("t", look, now)
		if got != c.want || !through.Equal(c.through) {
			t.Errorf("%s: %+v through %v, want %+v through %v", name, got, through, c.want, c.through)
		}
	}
}

// Where offsets differ is told by the first place, and by how many there are.
func TestCompare(t *testing.T) {
	var a, b [kafka.Streams][partition.Count]kafka.Position
	if err := compare(a, b, "x"); err != nil {
		t.Error(err)
	}
	b[0][7].Epoch = 9 // no matter
	b[1][719].Next = 3
	if err := compare(a, b, "a record came"); err == nil || err.Error() != "kafka: a record came in features/719, between 0 and 3" {
		t.Errorf("%v", err)
	}
	a[0][5].Next = 2
	if err := compare(a, b, "a record came"); err == nil || err.Error() != "kafka: a record came in timeline/5, between 2 and 0, and in 1 further partitions" {
		t.Errorf("%v", err)
	}
}

// What is noted with offsets is read as it was written; what another tool has set is not.
func TestOrigins(t *testing.T) {
	o := origin{"c", kafka.TopicID{1}, map[string]kafka.TopicID{"timeline": {2}}}
	if got, ok := parseOrigin(o.encode()); !ok || !reflect.DeepEqual(got, o) {
		t.Errorf("%s is read as %+v, %v", o.encode(), got, ok)
	}
	for _, bad := range []string{"", "{", "{}", "name", `{"cluster":""}`, `{"cluster":"c","in":"x"}`} {
		if _, ok := parseOrigin(bad); ok {
			t.Errorf("%q is read", bad)
		}
	}
	changes := map[string]bool{}
	o.outputsChanged("d", map[string]kafka.TopicID{"timeline": {3}}, changes)
	want := []string{`it has written to Kafka cluster "c", and this is "d"`, "topic timeline was deleted and created again (it was AgAAAAAAAAAAAAAAAAAAAA, and is AwAAAAAAAAAAAAAAAAAAAA)"}
	if got := slices.Sorted(maps.Keys(changes)); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	clear(changes)
	if o.outputsChanged("c", map[string]kafka.TopicID{"timeline": {2}, "more": {4}}, changes); len(changes) > 0 {
		t.Errorf("%v", changes)
	}
	o.outputsChanged("c", map[string]kafka.TopicID{"b": {2}, "a": {4}}, changes)
	if !changes[`it has written to topic timeline, and is now to write to ["a" "b"]`] {
		t.Errorf("%v", changes)
	}
	l := logs{ids: map[string]kafka.TopicID{"a": {1}, "b": {2}}}
	if got, err := l.of([]string{"a"}); err != nil || len(got) != 1 || got["a"] != (kafka.TopicID{1}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := l.of([]string{"a", "c"}); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("%v", err)
	}
}

// What a session hears of its group is passed on to the next Poll, once.
func TestGroupWord(t *testing.T) {
	stopped, woken := 0, 0
	w := &groupWord{joined: make(chan struct{}, 1), failed: make(chan error, 1), stop: func() { stopped++ }}
	w.mu.assigned, w.mu.starts, w.mu.wake = map[topicPartition]bool{}, map[topicPartition]int64{}, func() { woken++ }
	s := &Session{word: w, halted: map[topicPartition]millrace.Offset{}, next: map[topicPartition]millrace.Offset{}, waiting: map[topicPartition]int64{}}
	w.onAssigned(t.Context(), nil, map[string][]int32{"a": {0, 1}, "b": {0}})
	w.onRevoked(t.Context(), nil, map[string][]int32{"a": {1}})
	if s.Assigned() != 2 || !s.Has("a", 0) || s.Has("a", 1) || !s.Has("b", 0) {
		t.Errorf("assigned: %v", w.mu.assigned)
	}
	w.onAssigned(t.Context(), nil, nil) // must not block
	if err := w.wait(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		w.OnGroupManageError(io.EOF)
	}
	if err := w.wait(t.Context()); err != io.EOF || stopped != 0 || w.fenced.Load() {
		t.Errorf("%v, stopped %d times", err, stopped)
	}
	w.OnGroupManageError(fmt.Errorf("x: %w", kerr.FencedInstanceID))
	if stopped != 1 || !w.fenced.Load() {
		t.Error("it does not stop")
	}
	<-w.failed
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := w.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	w.mu.logs.ids = map[string]kafka.TopicID{"a": {1}}
	at := func(p int32) topicPartition { return topicPartition{"a", p} }
	w.judged(logs{ids: map[string]kafka.TopicID{"a": {9}, "b": {2}}}, nil, map[topicPartition]int64{at(0): 5, at(1): -2})
	if woken != 0 || w.mu.logs.ids["a"] != (kafka.TopicID{1}) || w.mu.logs.ids["b"] != (kafka.TopicID{2}) {
		t.Errorf("ids are %v, woken %d times", w.mu.logs.ids, woken)
	}
	s.next[at(0)], s.next[at(1)], s.next[at(2)] = 1, 2, 3
	s.halted[at(0)], s.halted[at(2)] = 1, 2
	s.begun()
	if !maps.Equal(s.next, map[topicPartition]millrace.Offset{at(0): 5, at(2): 3}) || !maps.Equal(s.halted, map[topicPartition]millrace.Offset{at(2): 2}) || len(w.mu.starts) > 0 {
		t.Errorf("read on from %v, halted %v", s.next, s.halted)
	}
	u := &Unreadable{Topic: "a", Err: io.EOF}
	w.judged(logs{ids: map[string]kafka.TopicID{}}, []*Unreadable{u}, nil)
	if woken != 1 {
		t.Error("the poll under way goes on")
	}
	polls := 0
	if faults := s.found(func() { polls++ }); len(faults) != 1 || faults[0] != error(u) {
		t.Errorf("faults %v", faults)
	}
	if faults := s.found(func() {}); faults != nil {
		t.Errorf("once more: %v", faults)
	}
}

// Of what a poll brings of a partition, control records count as read and are not returned,
// and nothing from behind the place where it is halted is.
func TestTake(t *testing.T) {
	for _, halted := range []millrace.Offset{-1, 0, 6, 9} {
		s := &Session{halted: map[topicPartition]millrace.Offset{}, next: map[topicPartition]millrace.Offset{}, waiting: map[topicPartition]int64{}}
		at := topicPartition{"t", 1}
		if halted >= 0 {
			s.halted[at] = halted
		}
		in := s.take(nil, kgo.FetchTopicPartition{Topic: "t", FetchPartition: kgo.FetchPartition{Partition: 1, HighWatermark: 10, Records: []*kgo.Record{{Offset: 5}, {Offset: 6}, {Offset: 8}}}})
		want, next, polled := map[millrace.Offset]int{-1: 3, 0: 0, 6: 1, 9: 3}[halted], map[millrace.Offset]millrace.Offset{-1: 9, 6: 6, 9: 9}[halted], halted != 0
		waiting, known := s.waiting[at]
		if len(in) != want || s.next[at] != next || s.polled != polled || known != (halted < 0) || halted < 0 && waiting != 1 {
			t.Errorf("halted at %d: %d records, next %d, %d wait, %v", halted, len(in), s.next[at], waiting, s.polled)
		}
	}
}

// A transactional id is a partitioner's if it begins with a group that is known.
func TestOurs(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	l := openProgress(t, k)
	kafkatest.Must(t, l.Introduce(ctx, "g", "one", []string{k.Content}, nil))
	kafkatest.Must(t, l.Refresh(ctx))
	c := &cutter{progress: l}
	for name, want := range map[string]bool{"g/one": true, "g": false, "gg/one": false, "x/g/": false} {
		if c.ours(name) != want {
			t.Errorf("%s is ours: %v", name, !want)
		}
	}
}

// Where a group seems to be past the end of a partition, its end is asked for again.
func TestPlaces(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	adm := kafkatest.Admin(t, k.Brokers)
	for range 3 {
		kafkatest.Write(t, k, k.Content, 0, "a")
		kafkatest.Write(t, k, k.Content, 1, "a")
	}
	var trim kadm.Offsets
	trim.AddOffset(k.Content, 1, 2, -1)
	_, err := adm.DeleteRecords(ctx, trim)
	kafkatest.Must(t, err)
	defer kafkatest.Begin(t, k, k.Content, map[int32][]byte{2: []byte("open")})(kgo.TryAbort)
	ends, err := endsOf(ctx, adm, []string{k.Content})
	kafkatest.Must(t, err)
	kafkatest.Write(t, k, k.Content, 0, "b")
	offset := func(p int32, at int64, err error) kadm.OffsetResponse {
		return kadm.OffsetResponse{Offset: kadm.Offset{Topic: k.Content, Partition: p, At: at}, Err: err}
	}
	for name, c := range map[string]struct {
		committed map[int32]kadm.OffsetResponse
		want      map[int32]place
		fault     bool
	}{
		"nothing is committed":     {nil, map[int32]place{0: {end: 3, stable: 3}, 1: {end: 3, stable: 3, done: 2}, 2: {end: 1}}, false},
		"some is":                  {map[int32]kadm.OffsetResponse{0: offset(0, 2, nil), 1: offset(1, -1, nil)}, map[int32]place{0: {end: 3, stable: 3, done: 2}, 1: {end: 3, stable: 3, done: 2}, 2: {end: 1}}, false},
		"it has gone on since":     {map[int32]kadm.OffsetResponse{0: offset(0, 4, nil)}, map[int32]place{0: {end: 4, stable: 3, done: 4}, 1: {end: 3, stable: 3, done: 2}, 2: {end: 1}}, false},
		"the log is cut":           {map[int32]kadm.OffsetResponse{2: offset(2, 4, nil)}, map[int32]place{0: {end: 3, stable: 3}, 1: {end: 3, stable: 3, done: 2}, 2: {end: 1, done: 4}}, false},
		"it is not known":          {map[int32]kadm.OffsetResponse{0: offset(0, 2, kerr.UnstableOffsetCommit)}, nil, true},
		"Kafka knows no such part": {map[int32]kadm.OffsetResponse{0: offset(0, 2, kerr.UnknownTopicOrPartition)}, map[int32]place{0: {end: 3, stable: 3}, 1: {end: 3, stable: 3, done: 2}, 2: {end: 1}}, false},
	} {
		got, err := places(ctx, adm, []string{k.Content}, ends, kadm.OffsetResponses{k.Content: c.committed})
		if (err != nil) != c.fault || !c.fault && !maps.Equal(got[k.Content], c.want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got[k.Content], err, c.want)
		}
	}
	none := kadm.ListedOffsets{k.Content: {0: {Topic: k.Content, Err: kerr.UnknownTopicOrPartition}}}
	for committed, fault := range map[int64]bool{-1: false, 0: true} {
		got, err := places(ctx, adm, []string{k.Content}, logEnds{none, none}, kadm.OffsetResponses{k.Content: {0: offset(0, committed, nil)}})
		if (err != nil) != fault || len(got[k.Content]) > 0 {
			t.Errorf("a partition that is not there, with %d committed: %v, %v", committed, got, err)
		}
	}
}

// A measurement says all that a group tells of itself: what its topics carry, how late records
// may be, where it is stuck, and which topics are not there.
func TestMeasure(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	cl, err := kafka.NewClient(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer cl.Close()
	kafkatest.Write(t, k, k.Content, 0, "a")
	var done kadm.Offsets
	done.AddOffset(k.Content, 0, 0, -1)
	kafkatest.Must(t, kafkatest.Admin(t, k.Brokers).CommitAllOffsets(ctx, "g", done))
	stuck := progress.Stuck{Topic: k.Content, Partition: 2, Offset: 1, Next: 2}
	h := NewHeartbeat(HeartbeatConfig{Brokers: k.Brokers, Progress: openProgress(t, k), Group: "g", Instance: "one", Inputs: []string{k.Content, k.Topics.DeadLetters, "none"}, Features: []string{k.Topics.DeadLetters}, Future: 5 * time.Second, Stuck: func() []progress.Stuck { return []progress.Stuck{stuck} }})
	p, err := h.measure(ctx, cl)
	if err != nil || p.Group != "g" || p.Instance != "one" || p.FutureMillis != 5000 || !slices.Equal(p.Stuck, []progress.Stuck{stuck}) || !slices.Equal(p.Missing, []string{"none"}) || p.OtherLog != "" || p.ThroughMillis != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if want := map[string]progress.TopicKind{k.Content: progress.ContentTopic, k.Topics.DeadLetters: progress.FeatureTopic, "none": progress.ContentTopic}; !maps.Equal(p.Kinds, want) {
		t.Errorf("%v", p.Kinds)
	}
	if of := p.Topics[k.Content]; len(p.Topics) != 2 || of.Waiting != 1 || of.ID == (kafka.TopicID{}) {
		t.Errorf("%+v", p.Topics)
	}
	// What was known before is kept: where others are stuck, what waited in a topic that is gone
	// or another, and what was proven, but no time that is to come.
	before := progress.Progress{Instance: "two", AtMillis: 1, ThroughMillis: time.Now().Add(time.Hour).UnixMilli(),
		Topics: map[string]progress.TopicProgress{k.Content: {Waiting: 9, ID: kafka.TopicID{7}}, "none": {Waiting: 4}},
		Stuck:  []progress.Stuck{{Topic: k.Content, Partition: 1, Offset: 5, Next: 6}, {Topic: k.Content, Partition: 2, Offset: 7, Next: 9}}}
	value, err := json.Marshal(before)
	kafkatest.Must(t, err)
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, "g", value))
	kafkatest.Must(t, h.cfg.Progress.Refresh(ctx))
	p, err = h.measure(ctx, cl)
	if err != nil || p.ThroughMillis != p.AtMillis || !slices.Equal(p.Stuck, []progress.Stuck{stuck, before.Stuck[0]}) || p.Topics["none"].Waiting != 4 || p.Topics[k.Content].Waiting != 9 || p.Topics[k.Content].ID != (kafka.TopicID{7}) {
		t.Errorf("after another: %+v, %v", p, err)
	}
	// What was committed is told of those partitions alone that have any.
	c := &cutter{cl: cl, adm: kadm.NewClient(cl)}
	got, err := c.committed(ctx, progress.Progress{Group: "g", Topics: map[string]progress.TopicProgress{k.Content: {}, "none": {}}})
	if want := map[string]map[int32]millrace.Offset{k.Content: {0: 0}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := c.committed(ctx, progress.Progress{Group: "other"}); err != nil || len(got) != 0 {
		t.Errorf("of another group: %v, %v", got, err)
	}
}
