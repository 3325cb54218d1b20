package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
)

// HistoryKey is how the keys of commands begin, in the topic progress, that people gave for
// groups of partitioners. No group's name begins with it.
const HistoryKey = "history:"

// NoteAct writes down, in the topic progress, what is about to be done to a group.
// If it returns an error, the caller must not do it.
func NoteAct(ctx context.Context, brokers kafka.Brokers, topic string, e audit.Entry) error {
	e.Time = time.Now().UTC()
	// The value is a list of one entry. Releases that know no history would read an object
	// as a group's heartbeat, but they refuse a list.
	value, err := json.Marshal([]audit.Entry{e})
	if err != nil {
		return err
	}
	return follow.Put(ctx, brokers, topic, fmt.Sprintf("%s%020d %s", HistoryKey, e.Time.UnixNano(), e.Who), value)
}

// History returns the commands that people gave for groups, the oldest first.
func (l *Log) History() []audit.Entry {
	l.known.Lock()
	defer l.known.Unlock()
	all := []audit.Entry{}
	for _, key := range slices.Sorted(maps.Keys(l.known.history)) {
		all = append(all, l.known.history[key]...)
	}
	return all
}
