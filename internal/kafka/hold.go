package kafka

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// HoldKey begins the keys of Holds in the topic progress, which no group's name
// does.
const HoldKey = "hold:"

// Hold asks all partitioners to wait between two transactions, for a moment in
// which somebody looks at the whole log (TakeCut). It is a wish: what they make
// of it is seen in the log. It is over when its record is deleted.
type Hold struct {
	Key   string `json:"-"`
	Round int    `json:"round"` // another one is another wish
}

// Holds returns what is asked now, in the order of keys.
func (l *ProgressLog) Holds() []Hold {
	l.known.Lock()
	defer l.known.Unlock()
	return slices.SortedFunc(maps.Values(l.known.holds), func(a, b Hold) int { return strings.Compare(a.Key, b.Key) })
}

// Introduce makes a group and its topics known in the topic progress, unless
// they are, and returns once they are. Whoever produces as a group does this
// before its first transaction: a cut of the log holds the offsets of the
// groups that are known. It tries until ctx ends; complain hears why, now and
// then.
func (l *ProgressLog) Introduce(ctx context.Context, group, instance string, topics []string, complain func(error)) error {
	return persist(ctx, complain, func(ctx context.Context) error {
		if err := l.Refresh(ctx); err != nil {
			return err
		}
		p, ok := l.Group(group)
		all := maps.Clone(p.Topics)
		if all == nil {
			all = map[string]TopicProgress{}
		}
		for _, topic := range topics {
			if _, known := all[topic]; !known && !slices.Contains(p.Missing, topic) {
				all[topic], ok = TopicProgress{}, false
			}
		}
		if ok {
			return nil
		}
		if p.Instance == "" {
			p.Instance = instance
		}
		p.Topics = all
		value, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return put(ctx, l.brokers, l.topic, group, value)
	})
}
