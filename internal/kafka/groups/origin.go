package groups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// origin is what a group notes with each offset that it commits, in the same write: the log
// that the offset is of, and the logs that everything before it was written to. In another
// input log the offset means nothing. With other output logs it is false: it says that the
// records before it are written, and the outputs lack them.
type origin struct {
	Cluster string                   `json:"cluster"` // Kafka's id of itself
	Input   kafka.TopicID            `json:"in"`
	Outputs map[string]kafka.TopicID `json:"out"` // by topic
}

// parseOrigin reads what was noted with an offset. ok is false for an offset that another
// tool has set, such as to begin anew: nothing is noted with it.
func parseOrigin(metadata string) (o origin, ok bool) {
	err := json.Unmarshal([]byte(metadata), &o)
	return o, err == nil && o.Cluster != ""
}

func (o origin) encode() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("kafka: origin %+v: %v", o, err)) // it has nothing that JSON lacks
	}
	return string(b)
}

// logs are topics as they are at one moment. A topic that does not exist has no entry in ids.
type logs struct {
	cluster string
	ids     map[string]kafka.TopicID
}

// logsNow asks Kafka for the ids that topics have now.
func logsNow(ctx context.Context, cl *kgo.Client, topics []string) (l logs, err error) {
	l.cluster, l.ids, err = kafka.TopicsNow(ctx, cl, topics...)
	return l, err
}

// of returns the ids of some of the topics. It returns an error if one of them does not
// exist.
func (l logs) of(topics []string) (map[string]kafka.TopicID, error) {
	ids := make(map[string]kafka.TopicID, len(topics))
	for _, topic := range topics {
		id, ok := l.ids[topic]
		if !ok {
			return nil, fmt.Errorf("kafka: topic %s: %w", topic, kerr.UnknownTopicOrPartition)
		}
		ids[topic] = id
	}
	return ids, nil
}

// OtherLog says that the topics a group writes to are not those that it has written to
// before: they lack the output of the records before its offsets.
type OtherLog struct {
	Group   string
	Changes []string // each a clause for people, sorted
}

func (o *OtherLog) Error() string {
	return fmt.Sprintf("group %s has stopped: %s; what it brought before is not in there; millrace topics adopt --group %s says what that means, and has it go on",
		o.Group, strings.Join(o.Changes, "; "), o.Group)
}

// sameOutputs returns an *OtherLog if a group has written to other logs than those that its
// outputs are now. It looks at what is noted with the committed offsets of inputs.
func sameOutputs(group string, committed kadm.OffsetResponses, inputs []string, now logs, outputs []string) error {
	ids, err := now.of(outputs)
	if err != nil {
		return err
	}
	changes := map[string]bool{}
	for _, input := range inputs {
		for _, c := range committed[input] {
			if was, ok := parseOrigin(c.Metadata); ok && c.Err == nil {
				was.outputsChanged(now.cluster, ids, changes)
			}
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return &OtherLog{group, slices.Sorted(maps.Keys(changes))}
}

// outputsChanged adds to changes, as clauses, how the outputs that are noted differ from
// those of now.
func (o origin) outputsChanged(cluster string, now map[string]kafka.TopicID, changes map[string]bool) {
	if o.Cluster != cluster {
		changes[fmt.Sprintf("it has written to Kafka cluster %q, and this is %q", o.Cluster, cluster)] = true
	}
	for topic, was := range o.Outputs {
		switch is, ok := now[topic]; {
		case !ok:
			changes[fmt.Sprintf("it has written to topic %s, and is now to write to %q", topic, slices.Sorted(maps.Keys(now)))] = true
		case is != was:
			changes[fmt.Sprintf("topic %s was deleted and created again (it was %s, and is %s)", topic, was, is)] = true
		}
	}
}

// foreign reports whether an offset is of another log than its topic is now. has says
// whether the offset is there: Kafka drops offsets of a topic that is deleted. If it is not
// there, known counts: the log that the topic was according to the group's heartbeat. An
// offset that another tool has set is never foreign.
func foreign(c kadm.OffsetResponse, has bool, known, now kafka.TopicID) bool {
	was := known
	if has {
		if o, ok := parseOrigin(c.Metadata); ok {
			was = o.Input
		} else {
			return false
		}
	}
	return was != kafka.TopicID{} && was != now
}

// Adoption is a plan by which a group goes on with the outputs that are there now, although
// it has written to others.
type Adoption struct {
	Group string
	Other *OtherLog // how the outputs differ; nil if they do not
	// Brought is how many records are before the group's offsets, at most, in the inputs
	// that exist now. If the outputs differ, they lack these, and what came from inputs
	// that are gone.
	Brought int64
	Kept    int64              // how many of these the inputs still have
	offsets kadm.Offsets       // the group's, with the outputs of now noted
	starts  kadm.ListedOffsets // of the inputs
}

// PlanAdoption returns a plan for a group and the outputs as they are now. It changes
// nothing.
func PlanAdoption(ctx context.Context, brokers kafka.Brokers, group string, outputs []string) (a Adoption, err error) {
	a.Group = group
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return a, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil {
		return a, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	inputs := slices.Sorted(maps.Keys(committed))
	now, err := logsNow(ctx, cl, append(slices.Clone(inputs), outputs...))
	if err != nil {
		return a, err
	}
	if err := sameOutputs(group, committed, inputs, now, outputs); err != nil && !errors.As(err, &a.Other) {
		return a, err
	}
	inputs = slices.DeleteFunc(inputs, func(t string) bool { _, ok := now.ids[t]; return !ok })
	if a.starts, err = adm.ListStartOffsets(ctx, inputs...); err == nil {
		err = a.starts.Error()
	}
	if err != nil {
		return a, fmt.Errorf("kafka: beginnings of the topics of group %s: %w", group, err)
	}
	ids, err := now.of(outputs)
	if err != nil {
		return a, err
	}
	for _, topic := range inputs {
		for _, c := range committed[topic] {
			o := origin{now.cluster, now.ids[topic], ids}
			if was, ok := parseOrigin(c.Metadata); ok {
				o.Input = was.Input // adopting outputs does not adopt an input that was recreated
			}
			c.Metadata = o.encode()
			a.offsets.Add(c.Offset)
			start, _ := a.starts.Lookup(topic, c.Partition)
			a.Brought += c.At
			a.Kept += max(0, c.At-start.Offset)
		}
	}
	return a, nil
}

// Adopt lets a group go on with the outputs that are there now: from its offsets, or from
// the beginning of what its inputs still have. It waits until the group's members have
// stopped, or ctx ends.
func Adopt(ctx context.Context, brokers kafka.Brokers, a Adoption, fromBeginning bool) error {
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	offsets := kadm.Offsets{}
	for topic, partitions := range a.offsets {
		for p, o := range partitions {
			if start, ok := a.starts.Lookup(topic, p); ok && fromBeginning {
				o.At, o.LeaderEpoch = start.Offset, -1
			}
			offsets.Add(o)
		}
	}
	for {
		err := adm.CommitAllOffsets(ctx, a.Group, offsets)
		if err == nil || !errors.Is(err, kerr.UnknownMemberID) && !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) {
			return err
		}
		if patience.Sleep(ctx, time.Second); ctx.Err() != nil {
			return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "group", Detail: fmt.Sprintf("group %s still has members at work: %v", a.Group, err),
				WayOut: "wait until its partitioners have noticed, which takes some fifteen seconds, or stop those that do not; then say it again"}
		}
	}
}
