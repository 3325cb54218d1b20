package rig

import (
	"context"
	"iter"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Body is a record as Avro without framing, and the entity whose timeline gets it.
type Body struct {
	Entity millrace.Entity
	Avro   []byte
}

// Fill writes records of a schema into the log's timeline topic as the partitioner would,
// and returns how many there were.
func (b *Backing) Fill(ctx context.Context, s *schemas.Schema, all iter.Seq2[Body, error]) (records int, err error) {
	topics := kafka.Prefixed(b.Prefix)
	if err := b.publish(ctx, topics, s); err != nil {
		return 0, err
	}
	return b.produce(ctx, all, func(i int, body Body) kafka.Outgoing {
		return kafka.ToStream(topics.Timeline, body.Entity, schemas.Frame(s.Fingerprint(), body.Avro), kafka.Source{Topic: "bench", Offset: millrace.Offset(i)})
	})
}

// contentPartitions is how many partitions the content topic has.
const contentPartitions = 4

// content returns the content topic that the partitioner of [Family.Partition] consumes.
func (b *Backing) content() string { return b.Prefix + "content" }

// sorted returns the prefix of the topics that this partitioner writes. Nobody reads them.
func (b *Backing) sorted() string { return b.Prefix + "sorted-" }

// FillContent writes records of a schema into the content topic, as producers would, and
// returns how many there were.
func (b *Backing) FillContent(ctx context.Context, s *schemas.Schema, all iter.Seq2[Body, error]) (records int, err error) {
	if err := b.publish(ctx, kafka.Prefixed(b.sorted()), s); err != nil {
		return 0, err
	}
	if err := kafka.EnsureContentTopic(ctx, kafka.At(b.Kafka), b.content(), contentPartitions, nil); err != nil {
		return 0, err
	}
	return b.produce(ctx, all, func(i int, body Body) kafka.Outgoing {
		return kafka.Outgoing{Topic: b.content(), Partition: int32(i % contentPartitions), Value: schemas.Frame(s.Fingerprint(), body.Avro)}
	})
}

// publish creates the topics, and publishes the schema in the schema topic among them.
func (b *Backing) publish(ctx context.Context, topics kafka.Topics, s *schemas.Schema) error {
	if err := kafka.EnsureTopics(ctx, kafka.At(b.Kafka), topics, nil); err != nil {
		return err
	}
	registry, err := registry.New(nil, nil)
	if err != nil {
		return err
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(b.Kafka), Topic: topics.Schemas, Registry: registry})
	if err != nil {
		return err
	}
	defer log.Close()
	return log.Publish(ctx, s)
}

// produce sends every body as the message that as makes of it, and returns how many there
// were. i counts from 0.
func (b *Backing) produce(ctx context.Context, all iter.Seq2[Body, error], as func(i int, body Body) kafka.Outgoing) (records int, err error) {
	p, err := kafka.NewProducer(kafka.At(b.Kafka), "", nil)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	for body, err := range all {
		if err != nil {
			return records, err
		}
		p.Produce(ctx, as(records, body))
		if records++; records%1000 == 0 && p.Err() != nil {
			return records, p.Err()
		}
	}
	return records, p.Flush(ctx)
}
