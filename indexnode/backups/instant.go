package backups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas/registry"
)

// A partition is restored to a time between two backups with the help of the log. Kafka
// tells two offsets of each partition: all records before the first are of that time or
// earlier, and all from the second on are later. In between, transactions overlap, and only
// the records' own times tell. So the partition gets the newest backup that does not reach
// beyond the first offset, all records from there to the first offset, and of those up to
// the second offset the ones that are of the time or earlier. It then counts as being at the
// first offset: reading on from there brings some records again, which changes nothing, and
// misses none.

// String names the state that is restored, for people.
func (t Target) String() string {
	switch {
	case t.Cut != "":
		return "the cut " + t.Cut
	case !t.Time.IsZero():
		return t.Time.UTC().Format(time.RFC3339Nano)
	}
	return "the newest backups"
}

// mark is the file that says to which state a restore leads.
func (r *restorer) mark() string { return filepath.Join(r.dir, "to") }

// begin drops the partitions that an earlier try has left: all of them if it led to another
// state, or else those that are not restored this time.
func (r *restorer) begin(plan []way) error {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	drop := topology.All()
	was, err := os.ReadFile(r.mark())
	same := err == nil && string(was) == r.cfg.To.String()
	if same {
		for i := range plan {
			drop.Remove(plan[i].from.Partition)
		}
	}
	for p := range drop.All() {
		if at := r.store.Applied(p); at.Content >= 0 || at.Features >= 0 || r.store.Quarantined(p) != nil {
			if err := r.store.DropPartition(p); err != nil {
				return err
			}
		}
	}
	if same {
		return nil
	}
	return os.WriteFile(r.mark(), []byte(r.cfg.To.String()), 0o600)
}

// has reports whether an earlier try has restored a partition as w says: to the end of w,
// or, on the way to a time, to any point from its backup to the second offset (w.any).
func (r *restorer) has(w *way) bool {
	p := w.from.Partition
	at := r.store.Applied(p)
	switch {
	case r.store.Quarantined(p) != nil:
		return false
	case r.cfg.To.Time.IsZero():
		return at == store.Offsets(w.to)
	}
	from := w.from.Applied
	return at.Content >= from.Content && at.Features >= from.Features && at.Content <= w.any.Content && at.Features <= w.any.Features
}

// toTime returns how each partition is restored to a time. The comment at the top of this
// file describes it.
func (r *restorer) toTime(ctx context.Context) ([]way, error) {
	if r.cfg.Brokers.None() {
		return nil, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "brokers", Detail: "a time between backups is reached through the log, and nothing says where that is",
			WayOut: "name its Kafka by --brokers, or restore a cut or the newest backups, which need none",
		}
	}
	instant, log, err := r.instant(ctx)
	if err != nil {
		return nil, err
	}
	return r.ways(ctx, func(ctx context.Context, p millrace.Partition) (*way, error) {
		w := &way{to: offsetsAt(instant.All, p), any: offsetsAt(instant.Any, p)}
		do := func(m *backup.Manifest) bool {
			return m.Log == log.String() && m.Applied.Content <= w.to.Content && m.Applied.Features <= w.to.Features
		}
		w.older = r.olderThat(do)
		var err error
		w.from, err = r.newest(ctx, p, do)
		if w.from == nil {
			return nil, err
		}
		return w, nil
	})
}

func offsetsAt(all [2][partition.Count]millrace.Offset, p millrace.Partition) backup.Offsets {
	return backup.Offsets{Content: all[kafka.Timeline][p], Features: all[kafka.Features][p]}
}

// instant asks Kafka where the log was at the time, and which log it is.
func (r *restorer) instant(ctx context.Context) (at streams.Instant, log kafka.LogID, err error) {
	if at, err = streams.At(ctx, r.cfg.Brokers, r.cfg.Topics, millrace.TimeOf(r.cfg.To.Time)); err != nil {
		return at, log, err
	}
	log, err = logOf(ctx, r.cfg.Brokers, r.cfg.Topics)
	return at, log, err
}

// logOf asks Kafka which log is there.
func logOf(ctx context.Context, brokers kafka.Brokers, topics kafka.Topics) (kafka.LogID, error) {
	c, err := streams.NewConsumer(streams.Config{Brokers: brokers, Topics: topics})
	if err != nil {
		return kafka.LogID{}, err
	}
	defer c.Close()
	return c.LogID(ctx)
}

// follow applies the records of the log from the backups to the time.
func (r *restorer) follow(ctx context.Context, plan []way) error {
	c := cutter{cfg: CutConfig{Brokers: r.cfg.Brokers, Topics: r.cfg.Topics, Log: r.cfg.Log}}
	rows, refused, err := c.schemas(ctx)
	if err != nil {
		return err
	}
	given := givenUp{}
	for _, fp := range refused {
		given[fp] = true
	}
	if err := putRows(r.store, rows); err != nil {
		return err
	}
	aged := false
	for _, keep := range r.cfg.Store.Retention {
		aged = aged || keep.MaxAge > 0
	}
	all, err := replay(r.store, given, aged)
	if err != nil {
		return err
	}
	spans := map[kafka.TopicPartition]streams.Span{}
	for i := range plan {
		p := plan[i].from.Partition
		all.Serve(p, time.Now())
		at := r.store.Applied(p)
		for s, span := range [][2]millrace.Offset{{at.Content, plan[i].any.Content}, {at.Features, plan[i].any.Features}} {
			if from := max(span[0], 0); from < span[1] {
				spans[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: p}] = streams.Span{From: kafka.Position{Next: from, Epoch: -1}, To: span[1]}
			}
		}
	}
	tails := streams.TailsConfig{Brokers: r.cfg.Brokers, Topics: r.cfg.Topics, Log: r.cfg.Log, Until: millrace.TimeOf(r.cfg.To.Time)}
	err = streams.ReadTails(ctx, tails, spans, func(f streams.Fetched) error {
		if errors.Is(f.Err, kafka.ErrLostPosition) {
			return fmt.Errorf("backups: the log does not reach from the backup to the time; restore a cut, or choose a time nearer to a later backup: %w", f.Err)
		}
		return all.Bring(ctx, f)
	})
	if err != nil {
		return err
	}
	return r.settle(plan)
}

// settle sets the offsets of each partition to the first ones of the time: every record
// before these was applied.
func (r *restorer) settle(plan []way) error {
	var b store.Batch
	for i := range plan {
		p := plan[i].from.Partition
		b.SetApplied(p, store.Content, plan[i].to.Content)
		b.SetApplied(p, store.FeatureStream, plan[i].to.Features)
	}
	_, err := r.store.Apply(&b, nil)
	return err
}

// putRows puts schemas into a store.
func putRows(s *store.Store, rows []registry.StoredSchema) error {
	for _, x := range rows {
		if err := s.ReplaceSchema(x.Fingerprint, replica.SchemaRow(x)); err != nil {
			return err
		}
	}
	return nil
}
