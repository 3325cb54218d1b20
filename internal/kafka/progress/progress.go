// Package progress reads and writes the topic progress. Partitioners tell there how far their
// groups are. Operators ask them there to skip what cannot be read, and backups ask them to
// pause for some seconds between two transactions, so that a cut is of one moment (Hold).
package progress

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
)

// Progress is what a partitioner tells of its group, again and again, in the
// topic progress: a heartbeat through the log. The key of its record is the group.
type Progress struct {
	Group    string `json:"-"`
	Instance string `json:"instance"` // the process that wrote it
	AtMillis int64  `json:"at_ms"`    // when, by that process's clock
	// ThroughMillis is a time up to which everything that came into the group's
	// topics has been committed by the group: the end of each topic was asked
	// for then, and the group has reached it. 0 = nothing is proven yet.
	ThroughMillis int64                    `json:"through_ms"`
	Topics        map[string]TopicProgress `json:"topics"`
	// Kinds is what each of the group's topics carries, also of topics that do not
	// exist.
	Kinds map[string]TopicKind `json:"kinds,omitempty"`
	// FutureMillis is how far a record's time may be after its arrival: records
	// with a later time become dead letters. 0 = not told.
	FutureMillis int64    `json:"future_ms,omitempty"`
	Missing      []string `json:"missing,omitempty"` // topics that do not exist
	Stuck        []Stuck  `json:"stuck,omitempty"`
	// OtherLog says why the group writes nothing: the topics that it is to write to
	// are not those that it has written to before. "" = it writes.
	OtherLog string `json:"other_log,omitempty"`
}

// TopicKind is the kind of records that a group expects in a topic. Other records become
// dead letters.
type TopicKind string

// The kinds of a topic.
const (
	ContentTopic TopicKind = "content"
	FeatureTopic TopicKind = "features"
)

// At returns when the heartbeat was written.
func (p Progress) At() time.Time { return time.UnixMilli(p.AtMillis) }

// Through returns ThroughMillis as a time.
func (p Progress) Through() time.Time { return time.UnixMilli(p.ThroughMillis) }

// Future returns FutureMillis as a duration.
func (p Progress) Future() time.Duration { return kafka.Milliseconds(p.FutureMillis) }

// TopicProgress is a group's progress in one topic.
type TopicProgress struct {
	Waiting      int64 `json:"waiting"`   // how many records, or offsets, the group has not committed yet
	Open         int64 `json:"open"`      // how many of these are in transactions that have not ended, or after such
	WaitedMillis int64 `json:"waited_ms"` // how long the oldest of these has been seen to wait
	// ID is the ID of the topic that the group reads. If the topic that exists now has
	// another ID, Waiting is what waited when the former topic was seen last.
	ID kafka.TopicID `json:"id"`
}

// Kind is why a group is stuck at a place.
type Kind string

// The kinds.
const (
	Closed    Kind = ""          // a batch that is there, and cannot be opened
	Trimmed   Kind = "trimmed"   // the log begins later: what was there is deleted
	CutShort  Kind = "cut_short" // the log ends earlier: what was there is lost
	Recreated Kind = "recreated" // the topic is another than the group has read
)

// Stuck is a place that a group cannot read past by itself.
type Stuck struct {
	Topic     string          `json:"topic"`
	Partition int32           `json:"partition"`
	Offset    millrace.Offset `json:"offset"` // where the batch begins, or what was to be read next
	Next      millrace.Offset `json:"next"`   // where reading goes on after a skip
	Kind      Kind            `json:"kind,omitempty"`
	Reason    string          `json:"reason"` // what the group met there: for Closed, why the batch cannot be opened
}

// Lost returns how many records at most are gone that the group has not read. It returns 0
// for a topic that was created again, for which that is not known.
func (s Stuck) Lost() int64 {
	if s.Kind == Trimmed {
		return int64(s.Next - s.Offset)
	}
	return 0
}

// What says what is wrong at the place, and what going on there means.
func (s Stuck) What() string {
	switch s.Kind {
	case Trimmed:
		return fmt.Sprintf("the log was trimmed: %d records from offset %d on, at most, were deleted before they were read, and are gone; what is left begins at %d", s.Lost(), s.Offset, s.Next)
	case CutShort:
		return fmt.Sprintf("the log ends before offset %d, up to which it was read: Kafka lost the end of it; it is read again from %d, and what was read before takes effect once", s.Offset, s.Next)
	case Recreated:
		return fmt.Sprintf("the topic was deleted and created again: what had not been read of the former one is gone; the new one is read from %d", s.Next)
	}
	return fmt.Sprintf("%s; it is kept aside in the dead letters, byte for byte, and reading goes on at %d", s.Reason, s.Next)
}

// DefaultGroup is the partitioners' consumer group if the configuration names none.
const DefaultGroup = "millrace-partitioner"

// Says says what is wrong at a place, and by which command the group goes on.
func (s Stuck) Says(group string) string {
	way := "millrace topics skip --topic " + s.Topic
	if group != DefaultGroup {
		way += " --group " + group
	}
	if s.Kind == Closed {
		way += fmt.Sprintf(" --partition %d --offset %d", s.Partition, s.Offset)
	}
	return fmt.Sprintf("%s/%d is stuck at offset %d: %s; way out: %s --apply", s.Topic, s.Partition, s.Offset, s.What(), way)
}

// Skip returns the request that the group go on behind the place.
func (s Stuck) Skip(group string) Skip {
	return Skip{Group: group, Topic: s.Topic, Partition: s.Partition, Offset: s.Offset, Kind: s.Kind}
}

// Skip is an operator's request that a group go on behind the place where it is stuck.
type Skip struct {
	Group     string          `json:"group"`
	Topic     string          `json:"topic"`
	Partition int32           `json:"partition"`
	Offset    millrace.Offset `json:"offset"`
	Kind      Kind            `json:"kind,omitempty"` // of the place
}

// SkipKey is how the keys of Skips begin in the topic progress. No group's name begins
// with it.
const SkipKey = "skip:"

func (s Skip) key() string { return fmt.Sprintf("%s%s:%s/%d", SkipKey, s.Group, s.Topic, s.Partition) }

// RequestSkip writes a Skip. The group acts on it while it runs.
func RequestSkip(ctx context.Context, brokers kafka.Brokers, topic string, s Skip) error {
	value, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return follow.Put(ctx, brokers, topic, s.key(), value)
}

// EndSkip removes a Skip that has been carried out or is no longer wanted.
func EndSkip(ctx context.Context, brokers kafka.Brokers, topic string, s Skip) error {
	return follow.Put(ctx, brokers, topic, s.key(), nil)
}

// ForgetGroup removes a group that an operator has retired from the topic
// progress, so that nobody waits for its heartbeat any more. A group that still runs
// comes back with its next heartbeat.
func ForgetGroup(ctx context.Context, brokers kafka.Brokers, topic, group string) error {
	return follow.Put(ctx, brokers, topic, group, nil)
}

// Config says where heartbeats are read.
type Config struct {
	Brokers kafka.Brokers
	Topic   string       // the compacted progress topic
	Log     *slog.Logger // nil = silent
}

// Log follows the topic progress: how far each group of partitioners
// has come, and what operators ask of them.
type Log struct {
	follow.Follower
	cfg   Config
	known struct {
		sync.Mutex
		groups  map[string]Progress
		skips   map[string]Skip          // by key
		holds   map[string]Hold          // by key
		history map[string][]audit.Entry // by key
	}
}

// Open begins to follow the topic, and returns at once: neither
// Kafka nor the topic need be there yet.
func Open(cfg Config) (*Log, error) {
	l := &Log{cfg: cfg}
	l.known.groups, l.known.skips, l.known.holds, l.known.history = map[string]Progress{}, map[string]Skip{}, map[string]Hold{}, map[string][]audit.Entry{}
	// Begin is called when the topic is read anew. It does nothing: what is known stays, so
	// that no group is missing until its heartbeat is read again.
	if err := follow.Open(&l.Follower, follow.Config{Brokers: cfg.Brokers, Topic: cfg.Topic, Log: cfg.Log, Begin: func() {}, Take: l.take}); err != nil {
		return nil, err
	}
	return l, nil
}

// Topic returns the name of the topic.
func (l *Log) Topic() string { return l.cfg.Topic }

// Through returns a time up to which everything that came into any group's
// topics is in the timeline and features topics. It is the earliest of the groups'
// times: that of a group that has proven nothing yet is 1970. ok is false if no group
// is known.
func (l *Log) Through() (t time.Time, ok bool) {
	for i, p := range l.Groups() {
		if through := p.Through(); i == 0 || through.Before(t) {
			t, ok = through, true
		}
	}
	return t, ok
}

// Groups returns the newest heartbeat of every group, by name.
func (l *Log) Groups() []Progress {
	l.known.Lock()
	defer l.known.Unlock()
	all := make([]Progress, 0, len(l.known.groups))
	for _, p := range l.known.groups {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Progress) int { return cmp.Compare(a.Group, b.Group) })
	return all
}

// Group returns the newest heartbeat of one group.
func (l *Log) Group(name string) (Progress, bool) {
	l.known.Lock()
	defer l.known.Unlock()
	p, ok := l.known.groups[name]
	return p, ok
}

// Skips returns the skips that operators ask of a group, in no order.
func (l *Log) Skips(group string) []Skip {
	l.known.Lock()
	defer l.known.Unlock()
	var all []Skip
	for _, s := range l.known.skips {
		if s.Group == group {
			all = append(all, s)
		}
	}
	return all
}

// take takes over a record of the topic. It logs one that it cannot read, and returns nil.
func (l *Log) take(r *kgo.Record) error {
	l.known.Lock()
	defer l.known.Unlock()
	key := string(r.Key)
	var err error
	switch {
	case r.Value == nil:
		delete(l.known.groups, key)
		delete(l.known.skips, key)
		delete(l.known.holds, key)
	case strings.HasPrefix(key, HoldKey):
		h := Hold{Key: key}
		if err = json.Unmarshal(r.Value, &h); err == nil {
			l.known.holds[key] = h
		}
	case strings.HasPrefix(key, HistoryKey):
		var acts []audit.Entry
		if err = json.Unmarshal(r.Value, &acts); err == nil {
			l.known.history[key] = acts
		}
	case strings.HasPrefix(key, SkipKey):
		var s Skip
		if err = json.Unmarshal(r.Value, &s); err == nil {
			l.known.skips[key] = s
		}
	default:
		p := Progress{Group: key}
		if err = json.Unmarshal(r.Value, &p); err == nil && (key == "" || p.AtMillis <= 0) {
			err = errors.New("it is of no group, or of no time")
		}
		if err == nil {
			l.known.groups[key] = p
		}
	}
	if err != nil && l.cfg.Log != nil {
		l.cfg.Log.Warn("kafka: record of progress refused", "topic", r.Topic, "offset", r.Offset, "key", fmt.Sprintf("%.64q", key), "error", err)
	}
	return nil
}
