package groups

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
)

func committedWith(topic, metadata string) kadm.OffsetResponses {
	return kadm.OffsetResponses{topic: {0: {Offset: kadm.Offset{Topic: topic, At: 7, Metadata: metadata}}}}
}

// A group goes on only with the logs that its offsets name; an offset that names
// none is believed.
func TestSameOutputs(t *testing.T) {
	was := origin{"one", kafka.TopicID{1}, map[string]kafka.TopicID{"timeline": {2}, "features": {3}}}
	now := func(change func(*logs)) logs {
		l := logs{"one", map[string]kafka.TopicID{"posts": {1}, "timeline": {2}, "features": {3}}}
		change(&l)
		return l
	}
	outputs := []string{"timeline", "features"}
	for _, c := range []struct {
		what    string
		noted   string
		now     logs
		outputs []string
		want    string // of the changes
	}{
		{"the same", was.encode(), now(func(*logs) {}), outputs, ""},
		{"another timeline", was.encode(), now(func(l *logs) { l.ids["timeline"] = kafka.TopicID{9} }), outputs, "timeline was deleted"},
		{"another Kafka", was.encode(), now(func(l *logs) { l.cluster = "two" }), outputs, `cluster "one"`},
		{"other names", was.encode(), now(func(l *logs) { l.ids["x-timeline"] = kafka.TopicID{9} }), []string{"x-timeline", "features"}, "is now to write to"},
		{"set by other tools", "", now(func(l *logs) { l.ids["timeline"] = kafka.TopicID{9} }), outputs, ""},
		{"a member's name", "millrace-7f3a", now(func(l *logs) { l.ids["timeline"] = kafka.TopicID{9} }), outputs, ""},
	} {
		err := sameOutputs("g", committedWith("posts", c.noted), []string{"posts"}, c.now, c.outputs)
		var other *OtherLog
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &other) || !strings.Contains(other.Error(), c.want) || !strings.Contains(other.Error(), "topics adopt --group g")) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	if err := sameOutputs("g", committedWith("posts", was.encode()), []string{"likes"}, now(func(l *logs) { l.cluster = "two" }), outputs); err != nil {
		t.Errorf("by a topic that is no input: %v", err)
	}
	missing := now(func(l *logs) { delete(l.ids, "timeline") })
	if err := sameOutputs("g", nil, []string{"posts"}, missing, outputs); err == nil || errors.As(err, new(*OtherLog)) {
		t.Errorf("a topic that does not exist: %v", err)
	}
}

// An offset is of the log that it names; where Kafka has dropped it, of the one
// that the heartbeat names.
func TestForeign(t *testing.T) {
	a, b := kafka.TopicID{1}, kafka.TopicID{2}
	noted := kadm.OffsetResponse{Offset: kadm.Offset{At: 7, Metadata: origin{Cluster: "one", Input: a}.encode()}}
	for _, c := range []struct {
		what       string
		offset     kadm.OffsetResponse
		has        bool
		known, now kafka.TopicID
		want       bool
	}{
		{"the same", noted, true, a, a, false},
		{"created again", noted, true, a, b, true},
		{"adopted since, the heartbeat is late", noted, true, b, a, false},
		{"set by other tools", kadm.OffsetResponse{}, true, a, b, false},
		{"dropped with its topic", kadm.OffsetResponse{}, false, a, b, true},
		{"a new partition", kadm.OffsetResponse{}, false, a, a, false},
		{"a new topic", kadm.OffsetResponse{}, false, kafka.TopicID{}, b, false},
	} {
		if got := foreign(c.offset, c.has, c.known, c.now); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// A plan tells how the outputs differ, and how much they lack; by it the group goes on, from
// its offsets or from the beginning of its inputs, once it has no members.
func TestAdoption(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	adm := kafkatest.Admin(t, k.Brokers)
	for range 5 {
		kafkatest.Write(t, k, k.Content, 0, "a")
		kafkatest.Write(t, k, k.Content, 1, "a")
	}
	var trim kadm.Offsets
	trim.AddOffset(k.Content, 0, 2, -1)
	_, err := adm.DeleteRecords(ctx, trim)
	kafkatest.Must(t, err)
	cl, err := kafka.NewClient(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer cl.Close()
	now, err := logsNow(ctx, cl, append(k.Topics.Logs(), k.Content))
	kafkatest.Must(t, err)
	was := origin{now.cluster, kafka.TopicID{9}, map[string]kafka.TopicID{k.Topics.Timeline: {8}, k.Topics.Features: now.ids[k.Topics.Features]}}
	var done kadm.Offsets
	done.Add(kadm.Offset{Topic: k.Content, Partition: 0, At: 4, LeaderEpoch: -1, Metadata: was.encode()})
	done.Add(kadm.Offset{Topic: k.Content, Partition: 1, At: 3, LeaderEpoch: -1})
	kafkatest.Must(t, adm.CommitAllOffsets(ctx, "g", done))
	for _, beginning := range []bool{false, true} {
		plan, err := PlanAdoption(ctx, k.Brokers, "g", k.Topics.Logs())
		if err != nil || plan.Group != "g" || plan.Brought != 7 || plan.Kept != 5 || (plan.Other == nil) != beginning {
			t.Errorf("the plan is %+v, %v", plan, err)
		}
		kafkatest.Must(t, Adopt(ctx, k.Brokers, plan, beginning))
		got, err := adm.FetchOffsets(ctx, "g")
		kafkatest.Must(t, err)
		for p, want := range map[bool][]int64{false: {4, 3}, true: {2, 0}}[beginning] {
			o, _ := got.Lookup(k.Content, int32(p))
			noted, ok := parseOrigin(o.Metadata)
			input := []kafka.TopicID{{9}, now.ids[k.Content]}[p]
			if o.At != want || !ok || noted.Cluster != now.cluster || noted.Input != input || len(noted.Outputs) != 2 || noted.Outputs[k.Topics.Timeline] != now.ids[k.Topics.Timeline] {
				t.Errorf("partition %d goes on at %d of %+v, want %d", p, o.At, noted, want)
			}
		}
	}
	if _, err := PlanAdoption(ctx, k.Brokers, "g", []string{"none"}); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("outputs that are not there: %v", err)
	}
	plan, err := PlanAdoption(ctx, k.Brokers, "g", k.Topics.Logs())
	kafkatest.Must(t, err)
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: "g", Instance: "one", Topics: []string{k.Content}, Outputs: k.Topics.Logs(), Logs: k.Topics.Logs()})
	kafkatest.Must(t, err)
	defer s.Close()
	soon, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if err := Adopt(soon, k.Brokers, plan, false); err == nil {
		t.Error("it is adopted while it has members")
	}
	for _, err := range []error{Adopt(ctx, kafka.Brokers{}, plan, false), errOf(PlanAdoption(ctx, kafka.Brokers{}, "g", nil)), errOf(OpenSession(ctx, SessionConfig{})), errOf(TakeCut(ctx, CutConfig{})),
		errOf(Locate(ctx, kafka.Brokers{}, "g", &Unreadable{Err: io.EOF})), errOf(FetchBatch(ctx, kafka.Brokers{}, "t", 0, 0)), errOf(Holder(ctx, kafka.Brokers{}, "g", "one", "")), SetOffsets(ctx, kafka.Brokers{}, nil)} {
		if err == nil || !strings.Contains(err.Error(), "brokers: none given") {
			t.Errorf("without Kafka: %v", err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

// A session knows whether the topics are those that it began with. It does not read a
// partition whose offset is of another topic, and says so; by an operator's word it goes on
// there.
func TestASessionKeepsToItsTopics(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	adm := kafkatest.Admin(t, k.Brokers)
	for range 2 {
		kafkatest.Write(t, k, k.Content, 0, "zero")
		kafkatest.Write(t, k, k.Content, 1, "one")
	}
	meta, err := adm.BrokerMetadata(ctx)
	kafkatest.Must(t, err)
	var done kadm.Offsets
	done.Add(kadm.Offset{Topic: k.Content, Partition: 0, At: 1, LeaderEpoch: -1, Metadata: origin{Cluster: meta.Cluster, Input: kafka.TopicID{9}}.encode()})
	kafkatest.Must(t, adm.CommitAllOffsets(ctx, "g", done))
	open := func() *Session {
		t.Helper()
		s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: "g", Instance: "one", Topics: []string{k.Content}, Outputs: k.Topics.Logs()})
		kafkatest.Must(t, err)
		return s
	}
	poll := func(s *Session, want int) (values []string, faults []error) {
		t.Helper()
		for len(values) < want || want == 2 && len(faults) == 0 {
			in, f, err := s.Poll(ctx, 10)
			kafkatest.Must(t, err)
			faults = append(faults, f...)
			for _, r := range in {
				values = append(values, string(r.Value))
			}
		}
		return values, faults
	}
	s := open()
	values, faults := poll(s, 2)
	var u *Unreadable
	if !slices.Equal(values, []string{"one", "one"}) || len(faults) != 1 || !errors.As(faults[0], &u) || u.Partition != 0 || u.Kind != progress.Recreated || u.from != 1 {
		t.Fatalf("it reads %q, %v", values, faults)
	}
	kafkatest.Must(t, s.Same(ctx))
	ended, stop := context.WithCancel(ctx)
	stop()
	if err := s.Same(ended); err == nil || errors.Is(err, ErrMoved) {
		t.Errorf("without an answer the topics are %v", err)
	}
	at, err := Locate(ctx, k.Brokers, "g", u)
	kafkatest.Must(t, err)
	kafkatest.Must(t, s.GoOn(ctx, at))
	s.Close()
	s = open()
	values, faults = poll(s, 4)
	if slices.Sort(values); !slices.Equal(values, []string{"one", "one", "zero", "zero"}) || len(faults) > 0 {
		t.Errorf("then it reads %q, %v", values, faults)
	}
	_, err = adm.DeleteTopics(ctx, k.Topics.Features)
	kafkatest.Must(t, err)
	if err := s.Same(ctx); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), k.Topics.Features) {
		t.Errorf("without an output: %v", err)
	}
	s.word.mu.Lock()
	s.word.mu.logs = logs{cluster: "other"}
	s.word.mu.Unlock()
	if err := s.Same(ctx); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), `was "other"`) {
		t.Errorf("of another Kafka: %v", err)
	}
	s.Close()
}
