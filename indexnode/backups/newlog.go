package backups

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// This file restores after the log is gone and its topics were created anew. The backups
// then have all that there is of the past. So a restored partition counts as being at the
// beginning of the new log, and as whole. Its digest stays.

// beginLog sets the partitions of a plan to the beginning of the new log, and
// publishes the schemas that they need there.
func (r *restorer) beginLog(ctx context.Context, plan []way) error {
	log, err := r.emptyLog(ctx, plan)
	if err != nil {
		return err
	}
	if err := r.publish(ctx); err != nil {
		return err
	}
	// From here on the store is not in the state of the backups. Without the mark a later
	// try does not take the store for one in that state, and begins anew.
	if err := os.Remove(r.mark()); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	var b store.Batch
	for i := range plan {
		p := plan[i].from.Partition
		b.SetOrigin(p, replica.OriginOf(log, true))
		b.SetApplied(p, store.Content, 0)
		b.SetApplied(p, store.FeatureStream, 0)
	}
	_, err = r.store.Apply(&b, nil)
	return err
}

// emptyLog returns the id of the log that is there. It refuses the log that the backups
// are of, and one that has lost its beginning.
func (r *restorer) emptyLog(ctx context.Context, plan []way) (log kafka.LogID, err error) {
	c, err := streams.NewConsumer(streams.Config{Brokers: r.cfg.Brokers, Topics: r.cfg.Topics, Log: r.cfg.Log})
	if err != nil {
		return log, err
	}
	defer c.Close()
	if log, err = c.LogID(ctx); err != nil {
		return log, err
	}
	var all []kafka.TopicPartition
	for i := range plan {
		if plan[i].from.Log == log.String() {
			return log, &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "log", Detail: "the log that is there is the one that the backups are of, and not a new one",
				WayOut: "leave out --log new: the node goes on where the backup ends",
			}
		}
		for _, s := range []kafka.Stream{kafka.Timeline, kafka.Features} {
			all = append(all, kafka.TopicPartition{Stream: s, Partition: plan[i].from.Partition})
		}
	}
	starts, err := c.StartOffsets(ctx, all...)
	if err != nil {
		return log, err
	}
	for tp, at := range starts {
		if at > 0 {
			return log, &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "log", Detail: fmt.Sprintf("%s begins at %d: something of the new log is gone already", tp, at),
				WayOut: "create its topics anew, and restore before anything is deleted there",
			}
		}
	}
	return log, nil
}

// publish writes the schemas of the backups to the schemas topic, in the order in which
// they were admitted.
func (r *restorer) publish(ctx context.Context) error {
	rows, err := replica.StoredSchemas(r.store).Schemas()
	if err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b registry.StoredSchema) int { return cmp.Compare(a.Order, b.Order) })
	registry, err := registry.New(nil, nil)
	if err != nil {
		return err
	}
	l, err := schemalog.Open(schemalog.Config{Brokers: r.cfg.Brokers, Topic: r.cfg.Topics.WithDefaults().Schemas, Registry: registry, Log: r.cfg.Log})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, row := range rows {
		s, err := schemas.Parse([]byte(row.JSON))
		if err == nil {
			err = l.Publish(ctx, s)
		}
		if err != nil {
			return fmt.Errorf("backups: publish the schema %s: %w", row.Fingerprint, err)
		}
	}
	return nil
}
