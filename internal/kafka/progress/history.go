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

// HistoryKey begins the keys, in the topic progress, of what people had done to
// groups of partitioners. No group's name does.
const HistoryKey = "history:"

// NoteAct writes down, in the topic progress, what is about to be done to a group:
// what cannot be written down must not be done.
func NoteAct(ctx context.Context, brokers kafka.Brokers, topic string, e audit.Entry) error {
	e.Time = time.Now().UTC()
	// A list: a reader that knows no acts refuses it, and does not take it for the
	// heartbeat of a group from long ago.
	value, err := json.Marshal([]audit.Entry{e})
	if err != nil {
		return err
	}
	return follow.Put(ctx, brokers, topic, fmt.Sprintf("%s%020d %s", HistoryKey, e.Time.UnixNano(), e.Who), value)
}

// History returns what people had done to groups, the oldest first.
func (l *Log) History() []audit.Entry {
	l.known.Lock()
	defer l.known.Unlock()
	all := []audit.Entry{}
	for _, key := range slices.Sorted(maps.Keys(l.known.history)) {
		all = append(all, l.known.history[key]...)
	}
	return all
}
