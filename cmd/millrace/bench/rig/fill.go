package rig

import (
	"context"
	"iter"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// Body is a record as Avro, and whose timeline gets it.
type Body struct {
	Entity millrace.Entity
	Avro   []byte
}

// Fill brings records of a schema into the log's timeline topic as the
// partitioner would, and returns how many there were.
func (b *Backing) Fill(ctx context.Context, s *schemas.Schema, all iter.Seq2[Body, error]) (records int, err error) {
	topics := kafka.Prefixed(b.Prefix)
	if err := kafka.EnsureTopics(ctx, kafka.At(b.Kafka), topics, nil); err != nil {
		return 0, err
	}
	registry, err := schemas.NewRegistry(nil, nil)
	if err != nil {
		return 0, err
	}
	log, err := kafka.OpenSchemaLog(kafka.SchemaLogConfig{Brokers: kafka.At(b.Kafka), Topic: topics.Schemas, Registry: registry})
	if err != nil {
		return 0, err
	}
	defer log.Close()
	if err := log.Publish(ctx, s); err != nil {
		return 0, err
	}
	p, err := kafka.NewProducer(kafka.At(b.Kafka), "", nil)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	for body, err := range all {
		if err != nil {
			return records, err
		}
		p.Produce(ctx, kafka.ToStream(topics.Timeline, body.Entity, schemas.Frame(s.Fingerprint(), body.Avro),
			kafka.Source{Topic: "bench", Offset: millrace.Offset(records)}))
		if records++; records%1000 == 0 && p.Err() != nil {
			return records, p.Err()
		}
	}
	return records, p.Flush(ctx)
}
