package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

const (
	// lookEvery is how often a load looks whether its topic is consumed.
	lookEvery = 200 * time.Millisecond
	// grace is how long running partitioners may take to find a new topic, and then
	// again to say what it carries. A topic that they have not found by then counts
	// as not consumed.
	grace = 5 * time.Second
)

// await waits until Kafka answers, the topic exists and a partitioner consumes it. It
// creates the topic if need be. If something is missing after o.Wait, the error says
// what. future is how far a record's time may be after its arrival: what the partitioners
// say, or else schemas.DefaultFuture. A forced load does not wait for a partitioner, and
// creates Millrace's own topics, too.
func await(ctx context.Context, o Options) (future time.Duration, err error) {
	bounded, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	if err := awaitKafka(bounded, o); err != nil {
		return 0, err
	}
	if o.Force {
		if err := kafka.EnsureTopics(bounded, o.Brokers, o.Topics, nil); err != nil {
			return 0, err
		}
	}
	look, err := kafka.NewInspector(o.Brokers)
	if err != nil {
		return 0, err
	}
	defer look.Close()
	// A partitioner joins its group for topics that exist, so the topic comes
	// first.
	existed, err := look.Exists(ctx, o.Topic)
	if err != nil {
		return 0, err
	}
	if !existed {
		if err := kafka.EnsureContentTopic(bounded, o.Brokers, o.Topic, o.Partitions, nil); err != nil {
			return 0, err
		}
		fmt.Fprintf(o.Progress, "topic %s did not exist; it is created, with %d partitions\n", o.Topic, o.Partitions)
	}
	if o.Force {
		return schemas.DefaultFuture, nil
	}
	group, err := awaitConsumer(bounded, o, look, existed)
	if err != nil {
		return 0, errors.Join(ctx.Err(), err)
	}
	if known, err := look.Exists(ctx, o.Topics.Schemas); err != nil || !known {
		return 0, errors.Join(err, &millrace.Error{
			Reason: millrace.ReasonUnknown, Field: "topic-prefix", Detail: fmt.Sprintf("there is no topic %s, which the partitioners read schemas from", o.Topics.Schemas),
			WayOut: "give the topic_prefix of the partitioners' configuration",
		})
	}
	return fitsTopic(ctx, o, group)
}

// awaitKafka waits until a Kafka broker answers. If that takes more than a second, it
// says so.
func awaitKafka(ctx context.Context, o Options) error {
	tell := time.AfterFunc(time.Second, func() {
		fmt.Fprintf(o.Progress, "waiting for Kafka at %s, at most %s\n", o.Brokers, o.Wait)
	})
	defer tell.Stop()
	if err := kafka.WaitReady(ctx, o.Brokers); kafka.Refused(err) != nil {
		return err
	} else if err != nil {
		return &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "brokers", Detail: fmt.Sprintf("no Kafka answered within %s: %v", o.Wait, err),
			WayOut: "start it, name its address by --brokers, or wait longer by --wait",
		}
	}
	return nil
}

// fitsTopic refuses a schema of features for a topic of content, and a schema of content
// for a topic of features: every record would become a dead letter. Partitioners say in
// their heartbeats what their topics carry, and how far in the future a record's time may
// be, which fitsTopic returns. If the group does not say so within grace, fitsTopic only
// prints that, and returns the default.
func fitsTopic(ctx context.Context, o Options, group string) (future time.Duration, err error) {
	progress, err := progress.Open(progress.Config{Brokers: o.Brokers, Topic: o.Topics.Progress, Log: o.Log})
	if err != nil {
		return 0, err
	}
	defer progress.Close()
	patience, cancel := context.WithTimeout(ctx, min(grace, o.Wait))
	defer cancel()
	for {
		moved := progress.Moved()
		beat, _ := progress.Group(group)
		kind, known := beat.Kinds[o.Topic]
		if known {
			return cmp.Or(beat.Future(), schemas.DefaultFuture), kindFault(o, kind)
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-patience.Done():
			fmt.Fprintf(o.Progress, "the partitioners of group %s do not say whether %s carries content or features: look at the dead letters afterwards\n", group, o.Topic)
			return schemas.DefaultFuture, nil
		}
	}
}

// kindFault returns the refusal of a schema that does not fit what its topic carries; nil
// if it does.
func kindFault(o Options, topic progress.TopicKind) error {
	schema := progress.ContentTopic
	if o.Schema.Features() {
		schema = progress.FeatureTopic
	}
	if schema == topic {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "topic",
		Detail: fmt.Sprintf("the partitioners take what is in %s for %s, and %s is a schema of %s: every record would become a dead letter", o.Topic, topic, o.Schema.Name(), schema),
		WayOut: fmt.Sprintf("name a topic that a partitioner has under %s, or another schema", schema),
	}
}

// awaitConsumer waits until a group of partitioners consumes the topic, and returns the
// group. It gives up when ctx ends, or when partitioners run and none has taken the topic
// within grace.
func awaitConsumer(ctx context.Context, o Options, look *kafka.Inspector, existed bool) (group string, err error) {
	began, told := time.Now(), false
	var c kafka.Consumption
	for {
		now, err := look.Consumption(ctx, o.Topic)
		if err == nil {
			c = now
		}
		switch {
		case err == nil && c.Group != "":
			if !c.Running {
				fmt.Fprintf(o.Progress, "no partitioner is running; group %s has consumed %s before, and goes on when it starts\n", c.Group, o.Topic)
			}
			return c.Group, nil
		case err == nil && c.Running && time.Since(began) >= min(grace, o.Wait), ctx.Err() != nil:
			return "", unconsumed(o, c, existed)
		case err != nil:
			return "", err
		}
		if !told {
			told = true
			fmt.Fprintf(o.Progress, "waiting for a partitioner that consumes %s, at most %s\n", o.Topic, o.Wait)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}

// unconsumed returns the refusal of a topic that no partitioner consumes.
func unconsumed(o Options, c kafka.Consumption, existed bool) error {
	e := &millrace.Error{
		Reason: millrace.ReasonUnknown, Field: "topic", Detail: fmt.Sprintf("no partitioner consumes %q, so nothing would come of its records", o.Topic),
		WayOut: "start a partitioner that has it under content or features (in a cluster of one process: millrace dev --content), or load all the same by --force",
	}
	if c.Running {
		e.Detail += "; those that run consume " + strings.Join(c.Topics, ", ")
		e.WayOut = "name one of these, or " + e.WayOut
	}
	if !existed {
		e.Detail += "; the topic is new and empty"
	}
	return e
}
