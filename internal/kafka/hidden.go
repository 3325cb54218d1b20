package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// Ends is where the partitions of a topic end.
type Ends struct {
	Topic string
	At    time.Time // all that was in the topic then is before All
	All   map[int32]int64
	// Stable is where committed reads end: at All, or at the first entry of a
	// transaction that is open.
	Stable map[int32]int64
}

// ListEnds asks where a topic ends. Without transactions that are open it ends where
// committed reads do, however much is written meanwhile.
func ListEnds(ctx context.Context, adm *kadm.Client, topic string) (Ends, error) {
	e := Ends{topic, time.Now(), map[int32]int64{}, map[int32]int64{}}
	all, err := Ask(ctx, func() (kadm.ListedOffsets, error) { return adm.ListEndOffsets(ctx, topic) }) // first, or what is written between the two would be hidden
	if err == nil {
		err = all.Error()
	}
	if err != nil {
		return e, err
	}
	stable, err := Ask(ctx, func() (kadm.ListedOffsets, error) { return adm.ListCommittedOffsets(ctx, topic) })
	if err == nil {
		err = stable.Error()
	}
	all.Each(func(o kadm.ListedOffset) { e.All[o.Partition] = o.Offset })
	stable.Each(func(o kadm.ListedOffset) { e.Stable[o.Partition] = o.Offset })
	return e, err
}

// Hidden is what a topic has that committed reads do not get to: in each partition what
// is at and behind the first entry of a transaction that is open. It is an error for
// who needs all of it.
type Hidden struct {
	Topic   string
	Entries int64           // and what Kafka itself writes
	From    map[int32]int64 // of the partitions that have some
	Since   time.Time       // it was there already; zero: not known
}

// Hidden returns what is hidden at offsets or later; nil: nothing.
func (e Ends) Hidden(from map[int32]int64) *Hidden {
	h := Hidden{Topic: e.Topic, From: map[int32]int64{}}
	for p, end := range e.All {
		if at := max(e.Stable[p], from[p]); at < end {
			h.From[p] = at
			h.Entries += end - at
		}
	}
	if h.Entries == 0 {
		return nil
	}
	return &h
}

// namedPartitions is how many partitions a Hidden names.
const namedPartitions = 3

func (h *Hidden) Error() string {
	var places []string
	for _, p := range slices.Sorted(maps.Keys(h.From)) {
		if len(places) == namedPartitions {
			places = append(places, fmt.Sprintf("%d other partitions", len(h.From)-namedPartitions))
			break
		}
		places = append(places, fmt.Sprintf("%s/%d from offset %d on", h.Topic, p, h.From[p]))
	}
	since := ""
	if !h.Since.IsZero() {
		since = " since " + h.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("kafka: not read yet: %s, where a transaction is open%s and hides what is behind it; end its producer, or abort it with kafka-transactions.sh", strings.Join(places, ", "), since)
}

// Reach is as of when all of a topic can be read, by looks at it one after the other.
// Where transactions follow each other some part is always hidden; but what was there
// at one look is not at the next.
type Reach struct {
	mark Ends // not all of this could be read at the last look
}

// Look returns as of when all can be read, of a topic that ends there and is of interest
// from offsets on. Where that is longer ago than recent, or was so at no look, it is a
// [Hidden].
func (r *Reach) Look(now Ends, from map[int32]int64, recent time.Duration) (time.Time, error) {
	hidden := now.Hidden(from)
	if hidden == nil {
		r.mark = Ends{}
		return now.At, nil
	}
	was := r.mark
	for p, end := range was.All {
		if end > now.All[p] { // the log has been cut
			was = Ends{}
			break
		}
		if max(now.Stable[p], from[p]) < end {
			hidden.Since = was.At
			return time.Time{}, hidden
		}
	}
	r.mark = now
	if was.All != nil && now.At.Sub(was.At) < recent {
		return was.At, nil
	}
	hidden.Since = now.At
	return time.Time{}, hidden
}
