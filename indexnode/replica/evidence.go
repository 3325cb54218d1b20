package replica

import (
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// Origin identifies the log that a partition was read from. The store keeps it beside the
// applied offsets, and writes both together: an offset means nothing in another log.
type Origin struct {
	Cluster string                       `json:"cluster"` // the id that the Kafka cluster gave itself
	Topics  [kafka.Streams]kafka.TopicID `json:"topics"`
	Epochs  [kafka.Streams]int32         `json:"epochs"` // by stream: the epoch in Kafka of the leader that wrote the last record applied; -1: not known
	// Whole says that the end of the log was reached once: the store has all that
	// the log held up to the applied offsets.
	Whole bool `json:"whole"`
	// Past says that the store also has records from before the log, which was created
	// anew. Reading the log from its beginning does not bring these back.
	Past bool `json:"past,omitempty"`
}

// OriginOf returns, in the form that a store keeps, the origin of a partition that has
// all of a log up to its applied offsets and, if past is set, records from before that
// log.
func OriginOf(log kafka.LogID, past bool) []byte {
	o := Origin{Cluster: log.Cluster, Topics: log.Topics, Epochs: [kafka.Streams]int32{-1, -1}, Whole: true, Past: past}
	return o.encode()
}

// HasPast reports whether a stored origin has Past set. It is false if the origin cannot
// be read.
func HasPast(origin []byte) bool {
	o, _, err := decodeOrigin(origin)
	return err == nil && o.Past
}

// LogOf returns which log a stored origin is of, as text to compare: the ids of the Kafka
// cluster and of the topics. It is empty if the origin is missing or cannot be read.
func LogOf(origin []byte) string {
	o, known, err := decodeOrigin(origin)
	if err != nil || !known {
		return ""
	}
	return kafka.LogID{Cluster: o.Cluster, Topics: o.Topics}.String()
}

// maxOriginBytes bounds a stored origin before it is parsed. A longer one is malformed.
const maxOriginBytes = 1 << 10

func (o *Origin) encode() []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("replica: origin %+v: %v", o, err)) // cannot be: JSON can hold every origin
	}
	return b
}

// decodeOrigin reads what encode wrote. ok is false if b is empty: there is no origin.
func decodeOrigin(b []byte) (o Origin, ok bool, err error) {
	if len(b) == 0 {
		return Origin{Epochs: [kafka.Streams]int32{-1, -1}}, false, nil
	}
	if len(b) > maxOriginBytes {
		return o, false, fmt.Errorf("%d bytes are no origin", len(b))
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return o, false, fmt.Errorf("origin: %w", err)
	}
	return o, true, nil
}

// ends says where the two streams of a partition begin and end in the log.
type ends struct {
	begin [kafka.Streams]millrace.Offset // the oldest offset that the log still has
	end   [kafka.Streams]millrace.Offset // the offset after the newest record, committed or not
}

// judge decides whether a store can go on with a log. applied are the store's offsets, -1
// for a stream of which nothing was ever applied; origin is the log that they come from,
// nil if that is not known. If the store can go on, judge returns the offsets to go on
// at, and the zero Why; else it returns why the store cannot go on.
//
// judge notices whenever the store would miss a record: it does so exactly if the log
// begins after the offset that the store needs next.
func judge(applied [kafka.Streams]millrace.Offset, origin *Origin, log kafka.LogID, e ends) (next [kafka.Streams]millrace.Offset, why Why) {
	for s := range next {
		stream := kafka.Stream(s)
		at := applied[s]
		next[s] = max(at, 0)
		switch {
		case origin != nil && origin.Cluster != log.Cluster:
			return next, Why{OtherLog, fmt.Sprintf("this node has read Kafka cluster %q, and this is %q", origin.Cluster, log.Cluster)}
		case origin != nil && origin.Topics[s] != log.Topics[s]:
			return next, Why{OtherLog, fmt.Sprintf("topic %s was created anew: this node has read %s, and this is %s", stream, origin.Topics[s], log.Topics[s])}
		case at < 0 && e.begin[s] > 0:
			return next, Why{LogBeginsLater, fmt.Sprintf("%s begins at %d, and this node has nothing of it; restore the partition from a backup, or keep the log from its beginning", stream, e.begin[s])}
		case next[s] < e.begin[s]:
			return next, Why{LogBeginsLater, fmt.Sprintf("%s begins at %d, and this node has it up to %d; restore the partition from a backup, or keep the log longer", stream, e.begin[s], at)}
		case origin == nil && at > 0 && e.begin[s] > 0:
			return next, Why{LogBeginsLater, fmt.Sprintf("%s begins at %d, and nothing says that this node has what was before", stream, e.begin[s])}
		case next[s] > e.end[s]:
			return next, Why{LogShorter, fmt.Sprintf("%s ends at %d, and it was read up to %d", stream, e.end[s], at)}
		}
	}
	return next, Why{}
}
