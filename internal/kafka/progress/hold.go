package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
)

// HoldKey is how the keys of Holds begin in the topic progress. No group's name begins
// with it.
const HoldKey = "hold:"

// Hold asks all partitioners to wait between two transactions for a moment, so that
// somebody can look at the whole log (groups.TakeCut). A partitioner may fail to do so; the
// log shows whether it did. The hold is over when its record is deleted.
type Hold struct {
	Key   string `json:"-"`     // begins with HoldKey
	Round int    `json:"round"` // a hold with the same key and another round is a new one
}

// Holds returns the holds that are asked for now, in the order of their keys.
func (l *Log) Holds() []Hold {
	l.known.Lock()
	defer l.known.Unlock()
	return slices.SortedFunc(maps.Values(l.known.holds), func(a, b Hold) int { return strings.Compare(a.Key, b.Key) })
}

// Introduce makes a group and its topics known in the topic progress, unless they are, and
// returns once they are. A group must do this before its first transaction, since a cut of
// the log (a look at all of it at one moment) has the offsets only of groups that are known.
// It tries until ctx ends; complain is called now and then with the reason why it has not
// succeeded.
func (l *Log) Introduce(ctx context.Context, group, instance string, topics []string, complain func(error)) error {
	return kafka.Persist(ctx, complain, func(ctx context.Context) error {
		if err := l.Refresh(ctx); err != nil {
			return err
		}
		p, known := l.Group(group)
		added, err := p.add(ctx, follow.Admin(&l.Follower), topics)
		if err != nil || known && added == 0 {
			return err
		}
		if p.Instance == "" {
			p.Instance = instance
		}
		p.AtMillis = time.Now().UnixMilli()
		value, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return follow.Put(ctx, l.cfg.Brokers, l.cfg.Topic, group, value)
	})
}

// add adds to p those topics that it does not have, and returns how many these are. Topics
// that do not exist go to p.Missing.
func (p *Progress) add(ctx context.Context, adm *kadm.Client, topics []string) (n int, err error) {
	var added []string
	for _, topic := range topics {
		if _, known := p.Topics[topic]; !known && !slices.Contains(p.Missing, topic) {
			added = append(added, topic)
		}
	}
	if len(added) == 0 {
		return 0, nil
	}
	there, err := adm.ListTopics(ctx, added...)
	if err != nil {
		return 0, fmt.Errorf("kafka: describe topics %q: %w", added, err)
	}
	all := map[string]TopicProgress{}
	maps.Copy(all, p.Topics) // a copy, since p shares the map with the Log
	missing := slices.Clone(p.Missing)
	for _, topic := range added {
		if there.Has(topic) {
			all[topic] = TopicProgress{}
		} else {
			missing = append(missing, topic)
		}
	}
	p.Topics, p.Missing = all, missing
	return len(added), nil
}
