package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// A refusal of Kafka is told as a fault of the key of the configuration that mends it.
func TestRefused(t *testing.T) {
	own := &millrace.Error{Field: "connect.kafka.tls.ca"}
	for err, want := range map[error]struct{ field, wayOut string }{
		own:                                              {"connect.kafka.tls.ca", ""},
		kerr.SaslAuthenticationFailed:                    {"connect.kafka.sasl", "correct the user"},
		kerr.UnsupportedSaslMechanism:                    {"connect.kafka.sasl.mechanism", "mechanism"},
		kerr.IllegalSaslState:                            {"connect.kafka.sasl.mechanism", "mechanism"},
		kerr.TopicAuthorizationFailed:                    {"connect.kafka.sasl", "rights"},
		kerr.GroupAuthorizationFailed:                    {"connect.kafka.sasl", "rights"},
		kerr.ClusterAuthorizationFailed:                  {"connect.kafka.sasl", "rights"},
		kerr.TransactionalIDAuthorizationFailed:          {"connect.kafka.sasl", "rights"},
		&kgo.ErrFirstReadEOF{}:                           {"connect.kafka.", ""},
		errors.New("remote error: tls: bad certificate"): {},
		kerr.UnknownTopicOrPartition:                     {}, io.EOF: {}, &millrace.Error{Field: "connect.kafkas"}: {},
	} {
		got := Refused(err)
		if strings.Contains(err.Error(), "tls:") && got != nil && got.Field == accessField+".tls" {
			continue // secure.Refused knows it
		}
		if (got == nil) != (want.field == "") || got != nil && (!strings.HasPrefix(got.Field, want.field) || !strings.Contains(got.WayOut, want.wayOut)) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if Refused(fmt.Errorf("x: %w", own)) != own {
		t.Error("what has been told is told otherwise")
	}
}

// Which errors mean that reading cannot go on, and which kind of loss they are.
func TestLostPosition(t *testing.T) {
	for err, want := range map[error]error{
		&kgo.ErrDataLoss{}: ErrCutLog, &kgo.ErrDecompressTooLarge{}: ErrBatchTooLarge, kerr.OffsetOutOfRange: ErrLostPosition, kerr.UnknownTopicID: ErrLostPosition,
		kerr.UnknownTopicOrPartition: nil, io.EOF: nil,
	} {
		if got := LostPosition(fmt.Errorf("x: %w", err)); got != want || Lost(err) != (want != nil) || want != nil && !errors.Is(want, ErrLostPosition) {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
	if Missing(true) != nil || Missing(false) == nil {
		t.Error("what is missing is told otherwise")
	}
	if addr, ours := ClientOf("millrace@host:1"); addr != "host:1" || !ours {
		t.Errorf("at %q, %v", addr, ours)
	}
	if addr, ours := ClientOf("other@host:1"); addr != "host:1" || ours {
		t.Errorf("at %q, %v", addr, ours)
	}
}

// What franz-go logs is logged by its level, or dropped.
func TestLogger(t *testing.T) {
	var out strings.Builder
	l := logger{slog.New(slog.NewTextHandler(&out, nil))}
	l.Log(kgo.LogLevelWarn, "one", "key", 1)
	l.Log(kgo.LogLevelError, "two", "key", 2)
	if got := out.String(); !strings.Contains(got, "level=WARN msg=\"kafka: one\" key=1") || !strings.Contains(got, "level=ERROR msg=\"kafka: two\" key=2") || strings.Count(got, "\n") != 2 {
		t.Errorf("%s", got)
	}
	logger{}.Log(kgo.LogLevelError, "three")
	if l.Level() != kgo.LogLevelWarn || (logger{}).Level() != kgo.LogLevelNone {
		t.Error("another level")
	}
}

// A try is repeated until it succeeds or is of no use; what it waits for is told after a
// while, and then now and then.
func TestPersist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault, began := errors.New("away"), time.Now()
		var at, told []time.Duration
		err := Persist(t.Context(), func(err error) {
			if told = append(told, time.Since(began)); err != fault {
				t.Errorf("told %v", err)
			}
		}, func(ctx context.Context) error {
			at = append(at, time.Since(began))
			if end, ok := ctx.Deadline(); !ok || time.Until(end) != patience.TryTimeout {
				t.Errorf("a try ends at %v", end)
			}
			if len(at) == 14 {
				return nil
			}
			return fault
		})
		pause, want := patience.First, []time.Duration{0}
		for len(want) < 14 {
			want = append(want, want[len(want)-1]+pause)
			pause = min(2*pause, patience.Max)
		}
		if err != nil || !slices.Equal(at, want) {
			t.Errorf("tried at %v, want %v: %v", at, want, err)
		}
		if len(told) != 2 || told[0] <= patience.TellAfter || told[1] <= told[0]+patience.TellEvery {
			t.Errorf("told at %v", told)
		}
		for _, use := range []error{ErrPartitionCount, kerr.InvalidTopicException} {
			tries := 0
			if err := Persist(t.Context(), nil, func(context.Context) error { tries++; return use }); !errors.Is(err, use) || tries != 1 {
				t.Errorf("%v after %d tries", err, tries)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		if err := Persist(ctx, nil, func(context.Context) error { stop(); return fault }); !errors.Is(err, fault) || !errors.Is(err, context.Canceled) {
			t.Errorf("after its end: %v", err)
		}
		var said error
		tries := 0
		_ = Persist(t.Context(), func(err error) { said = err }, func(context.Context) error {
			if tries++; tries == 8 {
				return nil
			}
			return kerr.SaslAuthenticationFailed
		})
		if e, ok := errors.AsType[*millrace.Error](said); !ok || e.Field != "connect.kafka.sasl" {
			t.Errorf("a refusal is told as %v", said)
		}
	})
}

// A question that nobody answers ends with its context.
func TestAsk(t *testing.T) {
	if n, err := Ask(t.Context(), func() (int, error) { return 7, io.EOF }); n != 7 || err != io.EOF {
		t.Errorf("%d, %v", n, err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	never := make(chan struct{})
	defer close(never)
	stop(io.ErrClosedPipe)
	if n, err := Ask(ctx, func() (int, error) { <-never; return 7, nil }); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%d, %v", n, err)
	}
}

// What a topic does not keep is told in words.
func TestDeletes(t *testing.T) {
	for _, c := range []struct {
		t    LogTopic
		want string
	}{
		{LogTopic{Name: "x", CleanupPolicy: "delete", Retention: -1, RetentionBytes: -1}, ""},
		{LogTopic{Name: "x", CleanupPolicy: "compact", Retention: -1, RetentionBytes: -1}, "topic x keeps only the newest record of each key (cleanup.policy=compact)"},
		{LogTopic{Name: "x", CleanupPolicy: "compact,delete"}, "topic x keeps only the newest record of each key (cleanup.policy=compact,delete)"},
		{LogTopic{Name: "x", CleanupPolicy: "delete", Retention: 1500 * time.Millisecond, RetentionBytes: -1}, "topic x deletes what is older than 1.5s (retention.ms=1500)"},
		{LogTopic{Name: "x", CleanupPolicy: "delete", RetentionBytes: -1}, "topic x deletes what is older than 0s (retention.ms=0)"},
		{LogTopic{Name: "x", CleanupPolicy: "delete", Retention: -1}, "topic x deletes what is beyond 0 bytes of a partition (retention.bytes)"},
		{LogTopic{Name: "x", CleanupPolicy: "delete", Retention: -1, RetentionBytes: 9}, "topic x deletes what is beyond 9 bytes of a partition (retention.bytes)"},
		{LogTopic{Name: "x"}, ""},
	} {
		if got := c.t.Deletes(); got != c.want {
			t.Errorf("%+v: %q", c.t, got)
		}
	}
	all := Log{Timeline: LogTopic{Name: "t", CleanupPolicy: "compact"}, Schemas: LogTopic{Name: "s", CleanupPolicy: "compact"}}
	if got := all.Deletes(); len(got) != 1 || !strings.HasPrefix(got[0], "topic t ") {
		t.Errorf("of a log: %q", got)
	}
	for n, want := range map[int64]time.Duration{-1: -time.Millisecond, 5: 5 * time.Millisecond, math.MaxInt64: time.Duration(math.MaxInt64).Truncate(time.Millisecond)} {
		if got := Milliseconds(n); got != want {
			t.Errorf("%d ms are %v", n, got)
		}
	}
}

// Names of topics: defaults, prefixes, and which is which.
func TestTopicNames(t *testing.T) {
	if got := (Topics{Features: "f"}).WithDefaults(); got != (Topics{"timeline", "f", "schemas", "dead-letters", "progress"}) {
		t.Errorf("with defaults: %+v", got)
	}
	p := Prefixed("a-")
	if p != (Topics{"a-timeline", "a-features", "a-schemas", "a-dead-letters", "a-progress"}) || p.Of(Features) != "a-features" || p.Of(Timeline) != "a-timeline" {
		t.Errorf("with a prefix: %+v", p)
	}
	if got := p.Logs(); !slices.Equal(got, []string{"a-timeline", "a-features"}) {
		t.Errorf("the log is %q", got)
	}
	for i, s := range p.specs() {
		if s.name != p.All()[i] || s.partitions != []int32{720, 720, 1, 1, 1}[i] || (s.config["segment.ms"] != nil) != (*s.config["cleanup.policy"] == "compact") || *s.config["retention.ms"] != "-1" {
			t.Errorf("%s is made as %+v", s.name, s)
		}
	}
	if ms := p.specs()[2].config["segment.ms"]; *ms != "3600000" {
		t.Errorf("segments of %s ms", *ms)
	}
}

// Ids of topics are written as Kafka's tools print them, and read back; nothing else is read.
func TestTopicIDs(t *testing.T) {
	id := TopicID{1, 2, 3, 255}
	text, _ := id.MarshalText()
	var back TopicID
	if err := back.UnmarshalText(text); err != nil || back != id || string(text) != "AQID_wAAAAAAAAAAAAAAAA" {
		t.Errorf("%s reads as %v, %v", text, back, err)
	}
	for _, bad := range []string{"", "AQID", string(text) + "A", string(text)[:21] + "B", string(text)[:21] + "=", string(text)[:20] + "\nAA"} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	l := LogID{"c", [Streams]TopicID{id, {}}}
	if got := l.String(); got != "c/AQID_wAAAAAAAAAAAAAAAA/AAAAAAAAAAAAAAAAAAAAAA" {
		t.Errorf("a log is called %q", got)
	}
	if got := (TopicPartition{Features, 7}).String(); got != "features/7" {
		t.Errorf("a partition is called %q", got)
	}
}

// Sources are read as they are written, and nothing else is.
func TestSources(t *testing.T) {
	for text, want := range map[string]Source{
		"posts/3/1234": {"posts", 3, 1234}, "a/0/0": {"a", 0, 0}, "a/2147483647/9223372036854775807": {"a", math.MaxInt32, math.MaxInt64},
		"": {}, "/1/2": {}, "posts": {}, "posts/3": {}, "posts/-1/2": {}, "posts/1/-2": {}, "posts/x/2": {}, "posts/1/x": {}, "posts/2147483648/1": {}, "a/1/2/3": {},
	} {
		if got, err := ParseSource([]byte(text)); got != want || (err == nil) != (want.Topic != "") {
			t.Errorf("%q reads as %+v, %v", text, got, err)
		}
	}
}

// What is hidden is told with its first places.
func TestHidden(t *testing.T) {
	e := Ends{Topic: "t", All: map[int32]int64{0: 9, 1: 5, 2: 5, 3: 5, 4: 7}, Stable: map[int32]int64{0: 3, 1: 5, 2: 4, 3: 1, 4: 2}}
	h := e.Hidden(map[int32]int64{0: 4, 3: 5})
	if h == nil || h.Topic != "t" || h.Entries != 11 || !maps.Equal(h.From, map[int32]int64{0: 4, 2: 4, 4: 2}) {
		t.Fatalf("%+v", h)
	}
	const rest = " and hides what is behind it; end its producer, or abort it with kafka-transactions.sh"
	if got := h.Error(); got != "kafka: not read yet: t/0 from offset 4 on, t/2 from offset 4 on, t/4 from offset 2 on, where a transaction is open"+rest {
		t.Errorf("%q", got)
	}
	h = e.Hidden(nil)
	h.From[9], h.Since = 1, time.Unix(1e9, 0)
	if got := h.Error(); got != "kafka: not read yet: t/0 from offset 3 on, t/2 from offset 4 on, t/3 from offset 1 on, 2 other partitions, where a transaction is open since 2001-09-09T01:46:40Z"+rest {
		t.Errorf("%q", got)
	}
	if h := e.Hidden(map[int32]int64{0: 9, 2: 5, 3: 5, 4: 7}); h != nil {
		t.Errorf("%+v", h)
	}
	// A look that finds no time says since when it has been so.
	var r Reach
	at := func(s int64, stable, all int64) Ends {
		return Ends{Topic: "t", At: time.Unix(s, 0), All: map[int32]int64{0: all}, Stable: map[int32]int64{0: stable}}
	}
	for i, c := range []struct {
		e     Ends
		since int64
		as    int64
	}{{at(1, 1, 5), 1, 0}, {at(2, 1, 6), 1, 0}, {at(3, 5, 6), 0, 1}, {at(9, 5, 7), 3, 0}, {at(19, 6, 9), 19, 0}} {
		as, err := r.Look(c.e, nil, 5*time.Second)
		if c.as > 0 {
			if err != nil || as.Unix() != c.as {
				t.Errorf("look %d: as of %v, %v", i, as, err)
			}
			continue
		}
		if hidden, ok := errors.AsType[*Hidden](err); !ok || hidden.Since.Unix() != c.since || !as.IsZero() {
			t.Errorf("look %d: %v, since %v", i, err, hidden)
		}
	}
}

// A dead letter has what Millrace's headers say, which are behind the producer's.
func TestReadDeadLetter(t *testing.T) {
	r := &kgo.Record{Offset: 7, Timestamp: time.UnixMilli(5), Key: []byte("k"), Value: []byte("v")}
	for _, key := range []string{HeaderReason, HeaderDetail, HeaderSource, HeaderBatch, HeaderPiece} {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte("producer's")}, kgo.RecordHeader{Key: key, Value: []byte("of " + key)})
	}
	got := readDeadLetter(r)
	want := DeadLetter{7, 5, "of reason", "of detail", "of src", "of batch", "of piece", []byte("k"), []byte("v")}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A batch that is closed is told with its places and why, and whether its producer wrote it
// so.
func TestClosed(t *testing.T) {
	c := &Closed{Topic: "t", Partition: 2, First: 5, Next: 9}
	for why, written := range map[error]bool{nil: true, errEntries: true, io.EOF: false} {
		c.Why = why
		want := "kafka: the batch of t/2 from offset 5 to 8 is of more than 67108864 bytes once it is decompressed"
		if why != nil {
			want = "kafka: the batch of t/2 from offset 5 to 8 is broken in the log: " + why.Error()
		}
		if c.Error() != want || c.Written() != written || errors.Unwrap(c) != why {
			t.Errorf("%v: %v, written %v", why, c, c.Written())
		}
	}
	for err, want := range map[error]bool{
		kerr.NotLeaderForPartition: true, kerr.OffsetOutOfRange: true, &kgo.ErrDataLoss{}: true, context.Canceled: true, context.DeadlineExceeded: true, io.EOF: false, errEntries: false,
	} {
		if passes(err) != want {
			t.Errorf("%v passes: %v", err, !want)
		}
	}
}

// raw is a batch of magic 2 with its first offset and how many more it has.
func raw(first int64, more int32) []byte {
	b := (&kmsg.RecordBatch{FirstOffset: first, Length: 49, Magic: 2, LastOffsetDelta: more}).AppendTo(nil)
	return b
}

// Batches are found in the bytes of a log by offsets, whatever their headers say.
func TestBatchAt(t *testing.T) {
	a, b := raw(5, 2), raw(9, 0) // 5 to 7, and 9
	log := slices.Concat(a, b)
	damaged := raw(5, math.MaxInt32)
	old := raw(5, 4)
	old[magicAt] = 1
	unknown := raw(5, 2)
	unknown[magicAt] = 3
	minus := raw(5, -4)
	long := raw(5, 0)
	binary.BigEndian.PutUint32(long[lengthAt:], 50)
	tiny := raw(5, 0)[:magicAt+1]
	binary.BigEndian.PutUint32(tiny[lengthAt:], magicAt+1-prefixBytes)
	for _, c := range []struct {
		name        string
		raw         []byte
		at          int64
		batch       int // its bytes; 0: there is none
		first, next int64
	}{
		{"the first", log, 5, 61, 5, 9}, {"before it", log, 0, 61, 5, 9}, {"its last", log, 7, 61, 5, 9}, {"behind it", log, 8, 61, 5, 9}, {"the second", log, 9, 61, 9, 10}, {"none", log, 10, 0, 0, 0},
		{"of the same offset as the next", slices.Concat(a, a), 7, 61, 5, 8},
		{"alone", a, 7, 61, 5, 8}, {"alone, behind it", a, 8, 0, 0, 0}, {"cut short", a[:60], 5, 0, 0, 0}, {"nothing", nil, 0, 0, 0, 0},
		{"a damaged header before another", slices.Concat(damaged, b), 8, 61, 5, 9}, {"a damaged header", damaged, 99, 61, 5, 5 + 1 + math.MaxInt32},
		{"a negative number", minus, 5, 61, 5, 6}, {"of an older magic", old, 6, 0, 0, 0}, {"of an older magic, its first", old, 5, 61, 5, 6}, {"of an unknown magic", unknown, 99, 61, 5, 6},
		{"longer than what is there", long, 5, 0, 0, 0}, {"the shortest", tiny, 5, 17, 5, 6}, {"shorter than that", tiny[:magicAt], 5, 0, 0, 0},
		{"one that begins before", slices.Concat(b, a), 9, 61, 9, 10},
	} {
		batch, rest, first, next := batchAt(c.raw, c.at)
		if len(batch) != c.batch || first != c.first || next != c.next || batch != nil && !strings.HasSuffix(string(c.raw), string(batch)+string(rest)) {
			t.Errorf("%s: %d bytes, [%d, %d), rest %d", c.name, len(batch), first, next, len(rest))
		}
	}
	if _, rest, _, _ := batchAt(log, 5); len(rest) != 61 {
		t.Errorf("%d bytes behind the first", len(rest))
	}
	tiny[lengthAt+3]-- // its magic is not in it
	if batch, _, _, _ := batchAt(append(tiny, a...), 0); batch != nil {
		t.Error("a batch without a magic is found")
	}
	// A stretch drops what is before the batch, and remembers up to where it was asked for.
	h := stretch{raw: log, at: 5}
	for _, c := range []struct {
		at          int64
		first, left int
	}{{6, 5, 122}, {9, 9, 61}, {8, 9, 61}, {12, 0, 0}} {
		if _, first, _ := h.batch(c.at); first != int64(c.first) || len(h.raw) != c.left || h.at < c.at {
			t.Errorf("at %d: from %d, and %d bytes are left, at %d", c.at, first, len(h.raw), h.at)
		}
	}
}

// A partition stands still once ten fetches brought data, and no poll brought records.
func TestStanding(t *testing.T) {
	s := NewStanding()
	of := func(p int32) PartitionOf { return PartitionOf{"t", p} }
	fetch := func(broker int32, partitions ...int32) {
		s.OnBrokerRead(kgo.BrokerMetadata{NodeID: broker}, int16(kmsg.Fetch), 0, 0, 0, nil)
		s.OnBrokerRead(kgo.BrokerMetadata{NodeID: broker}, int16(kmsg.Produce), 0, 0, 0, nil)
		for _, p := range partitions {
			for range 3 { // batches of one fetch
				s.OnFetchBatchRead(kgo.BrokerMetadata{NodeID: broker}, "t", p, kgo.FetchBatchMetrics{})
			}
		}
	}
	poll := func(p kgo.FetchPartition) []PartitionOf {
		return s.Polled(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t", Partitions: []kgo.FetchPartition{p}}}}})
	}
	records := []*kgo.Record{{}}
	for i := range vainFetches - 1 {
		fetch(1, 0, 1)
		if i == 4 && poll(kgo.FetchPartition{Partition: 1, Records: records}) != nil {
			t.Error("it stands still, and is read")
		}
	}
	if got := s.Polled(nil); got != nil {
		t.Errorf("after nine fetches: %v", got)
	}
	fetch(1, 0, 1)
	if got := s.Polled(nil); !slices.Equal(got, []PartitionOf{of(0)}) {
		t.Errorf("after ten fetches: %v", got)
	}
	if got := s.Polled(nil); got != nil {
		t.Errorf("it is told twice: %v", got)
	}
	for _, c := range []struct {
		err  error
		want bool
	}{{io.ErrUnexpectedEOF, true}, {kerr.NotLeaderForPartition, false}, {&kgo.ErrDataLoss{}, false}, {nil, false}} {
		fetch(1, 2)
		if got := poll(kgo.FetchPartition{Partition: 2, Err: c.err}); (len(got) == 1) != c.want || len(got) == 1 && got[0] != of(2) {
			t.Errorf("%v: %v", c.err, got)
		}
	}
	if got := s.Polled(kgo.NewErrFetch(io.EOF)); got != nil {
		t.Errorf("a fault of no partition: %v", got)
	}
	for range vainFetches {
		fetch(2, 10, 11, 12, 13, 14, 15)
	}
	if one, two := s.Polled(nil), s.Polled(nil); len(one) != stillAtOnce || len(two) != 2 {
		t.Errorf("of six, %v and then %v", one, two)
	}
}

// A part of a span that was read before is taken out of it.
func TestSpanAfter(t *testing.T) {
	s := &TopicSpan{from: map[int32]int64{0: 2, 1: 2, 2: 2, 3: 2, 4: 5}, to: map[int32]int64{0: 9, 1: 9, 2: 9, 3: 9, 4: 9}, size: 32}
	s.After(map[int32]int64{0: 5, 1: 9, 2: 10, 3: 2, 4: 4})
	if !maps.Equal(s.from, map[int32]int64{0: 5, 2: 2, 3: 2, 4: 5}) || !maps.Equal(s.Ends(), map[int32]int64{0: 9, 2: 9, 3: 9, 4: 9}) || s.size != 22 {
		t.Errorf("from %v to %v, %d in all", s.from, s.to, s.size)
	}
	s.passed.Store(11)
	if s.Done() != 0.5 || (&TopicSpan{}).Done() != 1 {
		t.Errorf("%v of it", s.Done())
	}
	err := silence(At("127.0.0.1:1"), "t", io.EOF)
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	if !ok || !timeout.Timeout() || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "no answer from 127.0.0.1:1 within 10s") {
		t.Errorf("%v", err)
	}
}

// What clients do is counted by what became of it; without a collector it is not.
func TestClientHook(t *testing.T) {
	b := At("127.0.0.1:1")
	h := clientHook{b.via}
	do := func() {
		h.OnBrokerE2E(kgo.BrokerMetadata{}, int16(kmsg.Fetch), kgo.BrokerE2E{BytesRead: 5, BytesWritten: 3, TimeToWrite: time.Second})
		h.OnBrokerE2E(kgo.BrokerMetadata{}, int16(kmsg.Fetch), kgo.BrokerE2E{WriteErr: io.EOF})
		h.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, nil)
		h.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, io.EOF)
		h.OnBrokerDisconnect(kgo.BrokerMetadata{}, nil)
		h.OnBrokerThrottle(kgo.BrokerMetadata{}, 2*time.Second, true)
	}
	do()
	m := b.Collector("x").(*clientMetrics)
	do()
	if b.Collector("y") != m || At("127.0.0.1:1").Collector("x") == m {
		t.Error("the counts of one Kafka are not of all its clients, or of others")
	}
	got := map[string]float64{}
	for name, c := range map[string]prometheus.Metric{
		"answered": m.requests.WithLabelValues("Fetch", "answered"), "failed": m.requests.WithLabelValues("Fetch", "failed"), "seconds": m.seconds.WithLabelValues("Fetch"), "read": m.read, "wrote": m.wrote,
		"opened": m.connects.WithLabelValues("opened"), "not opened": m.connects.WithLabelValues("failed"), "disconnects": m.disconnects, "throttled": m.throttled,
	} {
		var d dto.Metric
		if err := c.Write(&d); err != nil {
			t.Fatal(err)
		}
		got[name] = d.GetCounter().GetValue()
	}
	if want := map[string]float64{"answered": 1, "failed": 1, "seconds": 1, "read": 5, "wrote": 3, "opened": 1, "not opened": 1, "disconnects": 1, "throttled": 2}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A record for a stream has the headers that index nodes expect, each of its own bytes.
func TestToStream(t *testing.T) {
	o := ToStream("timeline", "member:1", []byte("123456789"), Source{"posts", 3, 1234})
	r := o.Record()
	if r.Topic != "timeline" || string(r.Key) != "member:1" || string(r.Value) != "123456789" || r.Partition != o.Partition || len(r.Headers) != 2 {
		t.Errorf("%+v", r)
	}
	_ = append(r.Headers[0].Value, "xxxx"...) // must not reach the next header
	if string(r.Headers[0].Value) != "posts/3/1234" || string(r.Headers[1].Value) != "\xe3\x06\x92\x83" || r.Headers[0].Key != HeaderSource || r.Headers[1].Key != HeaderCRC {
		t.Errorf("headers %q", r.Headers)
	}
}
