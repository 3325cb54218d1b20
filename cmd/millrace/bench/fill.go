package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// fill brings the world into the log's timeline topic as the partitioner
// would, unless the file done says that it is there.
func fill(ctx context.Context, c *Config, w *world, b *backing, done string) error {
	if have, err := os.ReadFile(done); err == nil {
		c.say("the log is filled already: %s", bytes.TrimSpace(have))
		return nil
	}
	topics := kafka.Prefixed("")
	if err := kafka.EnsureTopics(ctx, kafka.At(b.kafka), topics, nil); err != nil {
		return err
	}
	registry, err := schemas.NewRegistry(nil, nil)
	if err != nil {
		return err
	}
	log, err := kafka.OpenSchemaLog(kafka.SchemaLogConfig{Brokers: kafka.At(b.kafka), Topic: topics.Schemas, Registry: registry})
	if err != nil {
		return err
	}
	defer log.Close()
	if err := log.Publish(ctx, schemas.Activity()); err != nil {
		return err
	}
	p, err := kafka.NewProducer(kafka.At(b.kafka), "", nil)
	if err != nil {
		return err
	}
	defer p.Close()

	began, records := time.Now(), 0
	var entities atomic.Int64
	stop := c.every(2*time.Second, func() { c.say("  %d of %d entities written", entities.Load(), w.entities) })
	defer stop()
	for i := range w.entities {
		for _, x := range w.records(i) {
			body, err := w.body(&x)
			if err != nil {
				return err
			}
			p.Produce(ctx, kafka.ToStream(topics.Timeline, entityName(i), schemas.Frame(schemas.Activity().Fingerprint(), body),
				kafka.Source{Topic: "bench", Offset: millrace.Offset(records)}))
			records++
		}
		entities.Add(1)
		if err := p.Err(); err != nil {
			return err
		}
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	what := fmt.Sprintf("%d records of %d entities", records, w.entities)
	c.say("%s written in %.1f s", what, time.Since(began).Seconds())
	return os.WriteFile(done, []byte(what+"\n"), 0o644)
}

// every calls do now and then until the returned function is called.
func (c *Config) every(d time.Duration, do func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	tick := time.NewTicker(d)
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick.C:
				do()
			case <-done:
				return
			}
		}
	}()
	return func() { tick.Stop(); close(done); <-ended }
}
