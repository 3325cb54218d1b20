//go:build synctests

package simulation

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/schemas"
)

// The two streams that index nodes read.
const (
	content = iota
	features
	streams
)

// input is a record that a producer sent, and what must become of it.
type input struct {
	source  string // topic/partition/offset
	acked   time.Time
	schema  *schemas.Schema
	env     schemas.Envelope
	refused bool // it must be a dead letter
	ignored bool // nothing comes of it
}

func (i *input) stream() int {
	if i.schema.Features() {
		return features
	}
	return content
}

// entities are those whose timelines, or features, get the input.
func (i *input) entities() (all []millrace.Entity) {
	for _, e := range append([]millrace.Entity{i.env.Entity}, i.env.About...) {
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all
}

// truth is what was sent, and what the log has of it as one reader of committed
// records finds it who shares nothing with the roles.
type truth struct {
	w       *world
	inputs  []*input
	stray   map[string]bool // src of refused records that were put into the streams themselves
	schemas map[millrace.Fingerprint]*schemas.Schema

	logs    [streams]map[millrace.Entity][]logged
	ends    [streams]map[millrace.Partition]int64
	places  map[string]map[millrace.Entity]int64 // offset in the stream, by source and entity
	letters map[string]int                       // by source
	next    map[string]int64                     // what is read next, by topic and partition
	found   func(kind, format string, args ...any)
}

// logged is a record of a stream.
type logged struct {
	offset int64
	source string
	env    schemas.Envelope
}

func newTruth(w *world, found func(kind, format string, args ...any)) *truth {
	tr := &truth{w: w, stray: map[string]bool{}, schemas: map[millrace.Fingerprint]*schemas.Schema{}, found: found}
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		tr.schemas[s.Fingerprint()] = s
	}
	for s := range streams {
		tr.logs[s], tr.ends[s] = map[millrace.Entity][]logged{}, map[millrace.Partition]int64{}
	}
	tr.places, tr.letters, tr.next = map[string]map[millrace.Entity]int64{}, map[string]int{}, map[string]int64{}
	return tr
}

// fold is the feed of all inputs, whatever became of them.
func (tr *truth) fold() *oracle.Feed {
	feed := oracle.New()
	for _, in := range tr.inputs {
		if !in.refused && !in.ignored {
			feed.ApplyEnvelope(in.schema, in.env)
		}
	}
	return feed
}

// read goes on reading the log of the hosted partitions, and the dead letters,
// up to where they end now.
func (tr *truth) read(ctx context.Context) {
	topics := tr.w.topics.WithDefaults()
	from := map[string]map[int32]kgo.Offset{}
	left := map[string]int64{} // by topic and partition: where it ends
	place := func(topic string, p int32) string { return fmt.Sprint(topic, "/", p) }
	want := func(topic string, p int32) {
		info := tr.w.kafka.PartitionInfo(topic, p)
		if from[topic] == nil {
			from[topic] = map[int32]kgo.Offset{}
		}
		at := place(topic, p)
		from[topic][p] = kgo.NewOffset().At(tr.next[at])
		if info.LastStableOffset > tr.next[at] {
			left[at] = info.LastStableOffset
		}
	}
	for _, p := range tr.w.hosted {
		want(topics.Timeline, int32(p))
		want(topics.Features, int32(p))
	}
	want(topics.DeadLetters, 0)
	cl := tr.w.plain(kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(50*time.Millisecond))
	defer cl.Close()
	for came := true; len(left) > 0 && came; {
		came = false // what is left was aborted, and its marker is elsewhere; or Kafka refuses it
		poll, cancel := context.WithTimeout(ctx, 5*time.Second)
		fetches := cl.PollFetches(poll)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			came = true
			at := place(r.Topic, r.Partition)
			if r.Offset >= left[at] {
				return // the next read begins there
			}
			tr.take(r, topics)
			if tr.next[at] = r.Offset + 1; tr.next[at] == left[at] {
				delete(left, at)
			}
		})
	}
	for _, p := range tr.w.hosted {
		for s, topic := range [streams]string{topics.Timeline, topics.Features} {
			tr.ends[s][p] = max(tr.ends[s][p], left[place(topic, int32(p))])
		}
	}
}

func (tr *truth) take(r *kgo.Record, topics kafka.Topics) {
	source := ""
	for _, h := range r.Headers {
		if h.Key == kafka.HeaderSource {
			source = string(h.Value) // the last one is ours
		}
	}
	if r.Topic == topics.DeadLetters {
		if !r.Attrs.IsControl() {
			tr.letters[source]++
		}
		return
	}
	stream := content
	if r.Topic == topics.Features {
		stream = features
	}
	tr.ends[stream][millrace.Partition(r.Partition)] = r.Offset + 1
	if r.Attrs.IsControl() {
		return
	}
	here := fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
	if tr.stray[here] {
		return
	}
	f, err := schemas.Unframe(r.Value)
	var env schemas.Envelope
	s := tr.schemas[f.Fingerprint]
	if err == nil && s != nil {
		env, err = s.Envelope(f.Body)
	}
	if err != nil || s == nil {
		tr.found("strange", "%s cannot be read: %v", here, err)
		return
	}
	e := millrace.Entity(r.Key)
	if at, ok := tr.places[source][e]; ok {
		tr.found("doubled", "%s: %s came from %s, which is at %d, too", here, env.Record.ID, source, at)
	}
	if tr.places[source] == nil {
		tr.places[source] = map[millrace.Entity]int64{}
	}
	tr.places[source][e] = r.Offset
	tr.logs[stream][e] = append(tr.logs[stream][e], logged{r.Offset, source, env})
}

// awaits reports whether the log lacks anything that is to come.
func (tr *truth) awaits(trimmed map[millrace.Partition]bool) bool {
	for source := range tr.stray {
		if tr.letters[source] == 0 && !trimmed[millrace.Partition(parse(source).Partition)] {
			return true
		}
	}
	return slices.ContainsFunc(tr.inputs, func(in *input) bool {
		switch {
		case in.ignored:
			return false
		case in.refused:
			return tr.letters[in.source] == 0
		}
		return slices.ContainsFunc(in.entities(), func(e millrace.Entity) bool {
			_, ok := tr.places[in.source][e]
			return !ok
		})
	})
}

// judgeLog reports which inputs the log does not have as it should, once all
// must be there. What was cut off a log may have been read by no node.
func (tr *truth) judgeLog(trimmed map[millrace.Partition]bool) {
	known := map[string]*input{}
	last := map[string]int64{} // by the input's partition, and the timeline
	for _, in := range tr.inputs {
		known[in.source] = in
		switch n := tr.letters[in.source]; {
		case in.refused && n != 1:
			tr.found("letters", "%s is a dead letter %d times", in.source, n)
		case !in.refused && n > 0:
			tr.found("letters", "%s, which is right, is a dead letter", in.source)
		}
		if in.refused || in.ignored {
			continue
		}
		for _, e := range in.entities() {
			at, ok := tr.places[in.source][e]
			if !ok {
				tr.found("lost", "%s, %s of %s, acknowledged at %s, is not in the log", in.source, in.env.Record.ID, e, in.acked.Sub(tr.w.began))
				continue
			}
			from := parse(in.source)
			way := fmt.Sprint(from.Topic, "/", from.Partition, " ", e)
			if before, ok := last[way]; ok && at < before {
				tr.found("order", "%s of %s is at %d, behind what came after it", in.source, e, at)
			}
			last[way] = at
		}
	}
	for source := range tr.places {
		if in := known[source]; in == nil || in.refused || in.ignored {
			tr.found("strange", "the log has a record of %s, of which nothing should come", source)
		}
	}
	for source := range tr.stray {
		if tr.letters[source] == 0 && !trimmed[millrace.Partition(parse(source).Partition)] {
			tr.found("letters", "%s was refused by every node, and is no dead letter", source)
		}
	}
}

func parse(source string) kafka.Source {
	s, err := kafka.ParseSource([]byte(source))
	if err != nil {
		panic(err) // it is ours
	}
	return s
}

// at folds what the log has of an entity before two offsets into a feed.
func (tr *truth) at(feed *oracle.Feed, e millrace.Entity, before [streams]int64) {
	for _, r := range tr.logs[content][e] {
		if r.offset < before[content] {
			feed.Apply(millrace.Timeline{Entity: e, Type: r.env.Type}, r.env.Record)
		}
	}
	for _, r := range tr.logs[features][e] {
		if r.offset < before[features] {
			feed.ApplyFeatures(e, r.env.Subject, r.env.Record)
		}
	}
}

// lacks is how long before a moment the oldest input was acknowledged that the
// log's part before two offsets does not have.
func (tr *truth) lacks(e millrace.Entity, before [streams]int64, moment time.Time) (age time.Duration, what *input) {
	for _, in := range tr.inputs {
		if in.refused || in.ignored || !slices.Contains(in.entities(), e) || moment.Sub(in.acked) <= age {
			continue
		}
		if at, ok := tr.places[in.source][e]; !ok || at >= before[in.stream()] {
			age, what = moment.Sub(in.acked), in
		}
	}
	return age, what
}

// end is where the log of a partition ends.
func (tr *truth) end(p millrace.Partition) (ends [streams]int64) {
	return [streams]int64{tr.ends[content][p], tr.ends[features][p]}
}
