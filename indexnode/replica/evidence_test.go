package replica

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// A store goes on with a log only when nothing between them is missing: every
// hole and every other log is found before a record is read.
func TestJudge(t *testing.T) {
	log := kafka.LogID{Cluster: "one", Topics: [kafka.Streams]kafka.TopicID{{1}, {2}}}
	same := &Origin{Cluster: "one", Topics: log.Topics}
	type off = [kafka.Streams]millrace.Offset
	for _, c := range []struct {
		name       string
		applied    off
		origin     *Origin
		begin, end off
		want       Reason
		next       off
	}{
		{"nothing yet, all of the log", off{-1, -1}, nil, off{0, 0}, off{9, 0}, "", off{0, 0}},
		{"nothing yet, a log that was cut", off{-1, -1}, nil, off{5, 0}, off{9, 0}, LogBeginsLater, off{}},
		{"nothing yet, features that were cut", off{-1, -1}, nil, off{0, 1}, off{9, 9}, LogBeginsLater, off{}},
		{"goes on", off{7, 3}, same, off{0, 0}, off{9, 3}, "", off{7, 3}},
		{"goes on where the log now begins", off{7, 3}, same, off{7, 3}, off{9, 3}, "", off{7, 3}},
		{"the log begins one later", off{7, 3}, same, off{8, 0}, off{9, 3}, LogBeginsLater, off{}},
		{"features begin one later", off{7, 3}, same, off{0, 4}, off{9, 9}, LogBeginsLater, off{}},
		{"the log ends before", off{7, 3}, same, off{0, 0}, off{6, 3}, LogShorter, off{}},
		{"another topic, grown past", off{7, 3}, &Origin{Cluster: "one", Topics: [kafka.Streams]kafka.TopicID{{9}, {2}}}, off{0, 0}, off{100, 100}, OtherLog, off{}},
		{"another features topic", off{7, 3}, &Origin{Cluster: "one", Topics: [kafka.Streams]kafka.TopicID{{1}, {9}}}, off{0, 0}, off{100, 100}, OtherLog, off{}},
		{"another Kafka", off{7, 3}, &Origin{Cluster: "two", Topics: log.Topics}, off{0, 0}, off{100, 100}, OtherLog, off{}},
		{"a store from before origins, whole log", off{7, 3}, nil, off{0, 0}, off{9, 9}, "", off{7, 3}},
		{"a store from before origins, log cut", off{7, 3}, nil, off{2, 0}, off{9, 9}, LogBeginsLater, off{}},
	} {
		next, why := judge(c.applied, c.origin, log, ends{c.begin, c.end})
		if why.Reason != c.want || why.Reason == "" && next != c.next {
			t.Errorf("%s: %v, next %v; want %q, %v", c.name, why, next, c.want, c.next)
		}
	}
}

// What is kept of an origin is read back; what is damaged is told.
func TestOriginOnDisk(t *testing.T) {
	o := Origin{Cluster: "abc", Topics: [kafka.Streams]kafka.TopicID{{1, 2, 3}, {0xff}}, Epochs: [kafka.Streams]int32{-1, 7}, Whole: true}
	back, known, err := decodeOrigin(o.encode())
	if err != nil || !known || back != o {
		t.Errorf("%+v, known %v, %v; want %+v", back, known, err, o)
	}
	if _, known, err := decodeOrigin(nil); known || err != nil {
		t.Errorf("nothing: known %v, %v", known, err)
	}
	for _, bad := range []string{"{", `{"topics":["x","y"]}`, strings.Repeat(" ", maxOriginBytes) + "{}"} {
		if _, _, err := decodeOrigin([]byte(bad)); err == nil {
			t.Errorf("%.40q is taken for an origin", bad)
		}
	}
}

// Freshness is the time of the newest end of the log that was reached: it never
// rises without an end that was confirmed.
func TestMarks(t *testing.T) {
	var m marks
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	if got := m.reach(100); got != (mark{}) {
		t.Fatalf("fresh at %s without an end", got.at)
	}
	for i, c := range []struct {
		at, end int // end < 0: Kafka does not say
		applied millrace.Offset
		want    int
	}{
		{0, 100, 100, 0},
		{2, 110, 105, 0},
		{4, 120, 109, 0},
		{6, 130, 110, 2},
		{8, 140, 125, 4},
		{10, -1, 140, 8},
		{90, -1, 140, 8}, // no evidence, however long all is applied
		{92, 140, 140, 92},
	} {
		if c.end >= 0 {
			m.confirm(mark{millrace.Offset(c.end), at(c.at), int64(c.at)})
		}
		if got := m.reach(c.applied); !got.at.Equal(at(c.want)) || got.through != int64(c.want) {
			t.Errorf("step %d: fresh at %s, through %d, want %d s", i, got.at.Sub(start), got.through, c.want)
		}
	}
}

// What holds by two streams is what the one that is further back has, of each.
func TestEarlierMarks(t *testing.T) {
	at := time.Now()
	a, b := mark{at: at, through: 5}, mark{at: at.Add(-time.Second), through: 9}
	want := mark{at: b.at, through: 5}
	if x, y := a.earlier(b), b.earlier(a); x != want || y != want {
		t.Errorf("%+v and %+v, want %+v", x, y, want)
	}
}

// What is remembered of a long backlog is bounded, and its age is told well.
func TestMarksAreBounded(t *testing.T) {
	var m marks
	start := time.Now()
	const behind = 1000 // offsets, and seconds
	for i := range 10_000 {
		now := start.Add(time.Duration(i) * time.Second)
		m.confirm(mark{millrace.Offset(i), now, 0})
		fresh := m.reach(millrace.Offset(max(0, i-behind))).at
		if len(m.ahead) > 8*grain {
			t.Fatalf("%d marks", len(m.ahead))
		}
		if age := now.Sub(fresh); i > behind && (age < behind*time.Second || age > behind*time.Second*11/10) {
			t.Fatalf("second %d: %s old, and %d s behind", i, age, behind)
		}
	}
}
