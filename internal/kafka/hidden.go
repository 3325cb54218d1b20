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
	At    time.Time       // just before the ends were asked for: all that was in the topic then is before All
	All   map[int32]int64 // the end of the log of each partition
	// Stable is where committed reads of each partition end: at All, or at the first
	// entry of an open transaction.
	Stable map[int32]int64
}

// ListEnds asks where a topic ends. If no transaction is open, Stable is All or greater,
// however much is written meanwhile, so that nothing counts as hidden.
func ListEnds(ctx context.Context, adm *kadm.Client, topic string) (Ends, error) {
	e := Ends{topic, time.Now(), map[int32]int64{}, map[int32]int64{}}
	all, err := Ask(ctx, func() (kadm.ListedOffsets, error) { return adm.ListEndOffsets(ctx, topic) }) // first, or what is written between the two questions would count as hidden
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

// Hidden is what a topic has that committed reads do not get to: in each partition, what
// is at and behind the first entry of an open transaction. It is the error of a reader
// that needs all.
type Hidden struct {
	Topic   string
	Entries int64           // how many are hidden, including control records of Kafka
	From    map[int32]int64 // the first hidden offset of each partition that has one
	Since   time.Time       // when it was seen to be hidden first; zero: not known
}

// Hidden returns what is hidden; nil: nothing. The map from has for each partition the
// offset from which on hidden entries count; in a partition that it lacks, all count.
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

// Reach finds a recent time for which everything that was in a topic then can be read.
// For that it looks at the topic again and again. While transactions follow each other,
// some part is always hidden; but what was hidden at one look can be read at a later one.
// The zero value has not looked yet.
type Reach struct {
	mark Ends // of an earlier look; not all of it could be read then. Zero: there is none
}

// Look takes a look at a topic. The parameter now is where the topic ends, and from has the
// offset of each partition from which on the topic matters. Look returns a time for which
// everything that was in the topic then can be read. If no look has found such a time, or
// it is not within the duration recent before now, the time is zero and the error is a
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
