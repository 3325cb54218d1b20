package progress_test

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// What is stuck says why, what is lost, and by which command to go on.
func TestStuckInWords(t *testing.T) {
	at := progress.Stuck{Topic: "posts", Partition: 2, Offset: 5, Next: 9, Reason: "it does not parse"}
	for _, c := range []struct {
		kind        progress.Kind
		group       string
		lost        int64
		what, where string
	}{
		{progress.Closed, "g", 0, "it does not parse; it is kept aside in the dead letters, byte for byte, and reading goes on at 9", " --group g --partition 2 --offset 5"},
		{progress.Closed, progress.DefaultGroup, 0, "it does not parse; it is kept aside in the dead letters, byte for byte, and reading goes on at 9", " --partition 2 --offset 5"},
		{progress.Trimmed, "g", 4, "the log was trimmed: 4 records from offset 5 on, at most, were deleted before they were read, and are gone; what is left begins at 9", " --group g"},
		{progress.CutShort, "g", 0, "the log ends before offset 5, up to which it was read: Kafka lost the end of it; it is read again from 9, and what was read before takes effect once", " --group g"},
		{progress.Recreated, progress.DefaultGroup, 0, "the topic was deleted and created again: what had not been read of the former one is gone; the new one is read from 9", ""},
	} {
		at.Kind = c.kind
		want := "posts/2 is stuck at offset 5: " + c.what + "; way out: millrace topics skip --topic posts" + c.where + " --apply"
		if got := at.Says(c.group); got != want || at.Lost() != c.lost {
			t.Errorf("%q: %q, %d lost; want %q", c.kind, got, at.Lost(), want)
		}
		if got, want := at.Skip(c.group), (progress.Skip{Group: c.group, Topic: "posts", Partition: 2, Offset: 5, Kind: c.kind}); got != want {
			t.Errorf("it is skipped by %+v", got)
		}
	}
	p := progress.Progress{AtMillis: 1500, ThroughMillis: 2500, FutureMillis: 3500}
	if !p.At().Equal(time.UnixMilli(1500)) || !p.Through().Equal(time.UnixMilli(2500)) || p.Future() != 3500*time.Millisecond {
		t.Errorf("%v, %v, %v", p.At(), p.Through(), p.Future())
	}
}

// open follows the topic progress of a Kafka.
func open(t *testing.T, k kafkatest.Cluster, log *slog.Logger) *progress.Log {
	t.Helper()
	l, err := progress.Open(progress.Config{Brokers: k.Brokers, Topic: k.Topics.Progress, Log: log})
	kafkatest.Must(t, err)
	t.Cleanup(l.Close)
	return l
}

// What operators ask of groups, and what was done to them, is read from the topic, each under
// its own key; what cannot be read is logged and changes nothing.
func TestWhatIsAskedOfGroups(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	var warned strings.Builder
	l := open(t, k, slog.New(slog.NewTextHandler(&warned, nil)))
	if l.Topic() != k.Topics.Progress {
		t.Errorf("it follows %s", l.Topic())
	}
	put := func(key, value string) {
		t.Helper()
		kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, key, []byte(value)))
	}
	state := func(want string) {
		t.Helper()
		kafkatest.Must(t, l.Refresh(ctx))
		var got []string
		for _, p := range l.Groups() {
			got = append(got, fmt.Sprintf("%s@%d", p.Group, p.AtMillis))
		}
		for _, h := range l.Holds() {
			got = append(got, fmt.Sprintf("%s#%d", h.Key, h.Round))
		}
		skips := append(l.Skips("a"), l.Skips("b")...)
		slices.SortFunc(skips, func(x, y progress.Skip) int { return int(x.Offset - y.Offset) })
		for _, s := range skips {
			got = append(got, fmt.Sprintf("%s skips %d", s.Group, s.Offset))
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%s, want %s", s, want)
		}
	}
	if at, ok := l.Through(); ok {
		t.Errorf("without a group, all is there up to %v", at)
	}
	put("b", `{"at_ms":2,"through_ms":7}`)
	put("a", `{"at_ms":1,"through_ms":9}`)
	put("hold:2", `{"round":5}`)
	put("hold:1", `{"round":4}`)
	one, two := progress.Skip{Group: "a", Topic: "posts", Offset: 3}, progress.Skip{Group: "b", Topic: "posts", Partition: 1, Offset: 4}
	kafkatest.Must(t, progress.RequestSkip(ctx, k.Brokers, k.Topics.Progress, one))
	kafkatest.Must(t, progress.RequestSkip(ctx, k.Brokers, k.Topics.Progress, two))
	state("a@1, b@2, hold:1#4, hold:2#5, a skips 3, b skips 4")
	if at, ok := l.Through(); !ok || at.UnixMilli() != 7 {
		t.Errorf("all is there up to %v, %v", at, ok)
	}
	if p, ok := l.Group("b"); !ok || p.ThroughMillis != 7 {
		t.Errorf("%+v, %v", p, ok)
	}
	if _, ok := l.Group("c"); ok {
		t.Error("a group that is not there is known")
	}
	if warned.Len() > 0 {
		t.Errorf("nothing is wrong: %s", &warned)
	}
	kafkatest.Must(t, progress.EndSkip(ctx, k.Brokers, k.Topics.Progress, one))
	kafkatest.Must(t, progress.ForgetGroup(ctx, k.Brokers, k.Topics.Progress, "a"))
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, "hold:1", nil))
	for _, key := range []string{"b", "hold:2", "skip:b:posts/1", "history:x"} {
		put(key, `{`)
	}
	state("b@2, hold:2#5, b skips 4")
	if got := strings.Count(warned.String(), "record of progress refused"); got != 4 {
		t.Errorf("%d records are refused: %s", got, &warned)
	}
	for _, who := range []string{"ann", "bob"} {
		kafkatest.Must(t, progress.NoteAct(ctx, k.Brokers, k.Topics.Progress, audit.Entry{Who: who, Act: "skip"}))
	}
	state("b@2, hold:2#5, b skips 4")
	acts := l.History()
	if len(acts) != 2 || acts[0].Who != "ann" || acts[1].Who != "bob" || acts[0].Time.IsZero() || acts[0].Time.Location() != time.UTC {
		t.Errorf("the history is %+v", acts)
	}
}

// A group is introduced with its topics once; what was known of it stays, and topics that do
// not exist are told as missing.
func TestIntroduce(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	l := open(t, k, nil)
	complain := func(err error) { t.Errorf("it complains: %v", err) }
	introduce := func(instance string, topics ...string) progress.Progress {
		t.Helper()
		kafkatest.Must(t, l.Introduce(ctx, "g", instance, topics, complain))
		kafkatest.Must(t, l.Refresh(ctx))
		p, ok := l.Group("g")
		if !ok {
			t.Fatal("it is not known")
		}
		return p
	}
	p := introduce("one", k.Content, "none")
	if p.Instance != "one" || time.Since(p.At()) > time.Hour || p.At().After(time.Now()) || !reflect.DeepEqual(p.Topics, map[string]progress.TopicProgress{k.Content: {}}) || !slices.Equal(p.Missing, []string{"none"}) {
		t.Errorf("introduced as %+v", p)
	}
	if again := introduce("two", k.Content, "none"); !reflect.DeepEqual(again, p) {
		t.Errorf("introduced once more, as %+v", again)
	}
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, "g", []byte(`{"at_ms":1,"instance":"one","through_ms":5,"topics":{"`+k.Content+`":{"waiting":3}},"missing":["none"]}`)))
	more := introduce("two", k.Content, k.Topics.Timeline, "none", "never")
	want := map[string]progress.TopicProgress{k.Content: {Waiting: 3}, k.Topics.Timeline: {}}
	if more.Instance != "one" || more.ThroughMillis != 5 || !reflect.DeepEqual(more.Topics, want) || !slices.Equal(more.Missing, []string{"none", "never"}) {
		t.Errorf("with two topics more: %+v", more)
	}
	if empty := introduce("two"); !reflect.DeepEqual(empty, more) {
		t.Errorf("without topics: %+v", empty)
	}
	kafkatest.Must(t, l.Introduce(ctx, "h", "x", nil, complain))
	kafkatest.Must(t, l.Refresh(ctx))
	if h, ok := l.Group("h"); !ok || h.Instance != "x" {
		t.Errorf("a group without topics is %+v, %v", h, ok)
	}
}

// Who cannot be reached is an error, of whatever is asked.
func TestProgressWithoutKafka(t *testing.T) {
	gone := kafka.Brokers{}
	for what, err := range map[string]error{
		"a skip":   progress.RequestSkip(t.Context(), gone, "progress", progress.Skip{}),
		"an act":   progress.NoteAct(t.Context(), gone, "progress", audit.Entry{}),
		"to open":  func() error { _, err := progress.Open(progress.Config{Topic: "progress"}); return err }(),
		"the end":  progress.EndSkip(t.Context(), gone, "progress", progress.Skip{}),
		"a forget": progress.ForgetGroup(t.Context(), gone, "progress", "g"),
	} {
		if err == nil || errors.Is(err, t.Context().Err()) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
