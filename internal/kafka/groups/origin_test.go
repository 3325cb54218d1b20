package groups

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace/internal/kafka"
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
