package backups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas/registry"
)

// CutConfig says what a cut is made of. A cut is one moment of the whole log, to which all
// partitions can be restored. All of it is required, except Tell.
type CutConfig struct {
	Name    string // of the cut
	Bucket  *backup.Bucket
	Brokers kafka.Brokers
	Topics  kafka.Topics
	Tell    func(step string) // is told in words how far it is; may be nil
	Log     *slog.Logger
}

// TakeCut takes a cut, see [groups.TakeCut], and writes it into the bucket, with the part
// of each partition's log from its newest backup to the cut. It fails if a partition has
// no backup.
func TakeCut(ctx context.Context, cfg CutConfig) (*backup.Cut, error) {
	if cfg.Tell == nil {
		cfg.Tell = func(string) {}
	}
	dir, err := os.MkdirTemp("", "millrace-cut-")
	if err != nil {
		return nil, fmt.Errorf("backups: %w", err)
	}
	defer os.RemoveAll(dir)
	c := cutter{cfg: cfg, dir: dir}
	cfg.Tell("looking for the newest backups")
	if err := c.bases(ctx); err != nil { // before the cut, so that all are older
		return nil, err
	}
	cfg.Tell("looking for one moment of the log")
	if c.log, err = groups.TakeCut(ctx, groups.CutConfig{Brokers: cfg.Brokers, Topics: cfg.Topics, Log: cfg.Log}); err != nil {
		return nil, err
	}
	if err := c.fit(); err != nil {
		return nil, err
	}
	if err := c.readTails(ctx); err != nil {
		return nil, err
	}
	if err := c.writeParts(ctx); err != nil {
		return nil, err
	}
	cut := c.cut()
	return cut, cfg.Bucket.WriteCut(ctx, cut)
}

// cutter takes one cut.
type cutter struct {
	cfg   CutConfig
	dir   string                            // for temporary files
	base  [partition.Count]*backup.Manifest // the newest backup of each partition
	log   groups.Cut                        // where the log is at the cut
	tails [partition.Count]*tailWriter      // the log from the backup to the cut; nil: there is nothing in between
}

// bases finds the newest backup of each partition.
func (c *cutter) bases(ctx context.Context) error {
	newest, err := c.cfg.Bucket.Newest(ctx, func(d *backup.Damage) { c.cfg.Log.Error("a backup is damaged", "err", d) })
	if err != nil {
		return err
	}
	var lacking int
	for p := range partition.All() {
		if c.base[p] = newest[p]; newest[p] == nil {
			lacking++
		}
	}
	if lacking > 0 {
		return &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "backup", Detail: fmt.Sprintf("%d of %d partitions have no backup yet, and a cut is reached from one", lacking, partition.Count),
			WayOut: "wait until each has one (millrace backup status), then take the cut",
		}
	}
	return nil
}

// fit refuses backups of another log than the cut's, and backups that are beyond the cut.
func (c *cutter) fit() error {
	for p, m := range c.base {
		if got := m.Log; got != c.log.Log.String() {
			return fmt.Errorf("backups: the newest backup of partition %d is of the log %s, and the cut of %s; wait until each has one of this log", p, got, c.log.Log)
		}
		for s, at := range []millrace.Offset{m.Applied.Content, m.Applied.Features} {
			if end := c.log.Ends[s][p].Next; at > end {
				return fmt.Errorf("backups: the backup %s of partition %d is at %d of %s, behind the cut at %d", m.ID, p, at, kafka.Stream(s), end)
			}
		}
	}
	return nil
}

// readTails writes what the log has between the backups and the cut to files, one for each
// partition that has anything there. Each file begins with the schemas.
func (c *cutter) readTails(ctx context.Context) error {
	rows, refused, err := c.schemas(ctx)
	if err != nil {
		return err
	}
	spans := map[kafka.TopicPartition]streams.Span{}
	var total, done int64
	for p := range partition.All() {
		m := c.base[p]
		for s, at := range []millrace.Offset{m.Applied.Content, m.Applied.Features} {
			end := c.log.Ends[s][p].Next
			if at = max(at, 0); at == end {
				continue
			}
			total += int64(end - at)
			spans[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: p}] = streams.Span{From: kafka.Position{Next: at, Epoch: -1}, To: end}
			if c.tails[p] == nil {
				if c.tails[p], err = c.newTail(p, rows, refused); err != nil {
					return err
				}
			}
		}
	}
	return streams.ReadTails(ctx, streams.TailsConfig{Brokers: c.cfg.Brokers, Topics: c.cfg.Topics, Log: c.cfg.Log}, spans, func(f streams.Fetched) error {
		if errors.Is(f.Err, kafka.ErrLostPosition) {
			return fmt.Errorf("backups: the log does not reach from the backup %s to the cut: %w", c.base[f.Partition].ID, f.Err)
		}
		for i := range f.Records {
			if err := c.tails[f.Partition].add(f.Stream, &f.Records[i]); err != nil {
				return err
			}
		}
		done += int64(f.Next - f.From)
		c.cfg.Tell(fmt.Sprintf("reading the log from the backups to the cut: %d of %d records", done, total))
		return nil
	})
}

func (c *cutter) newTail(p millrace.Partition, rows []registry.StoredSchema, refused []millrace.Fingerprint) (*tailWriter, error) {
	t, err := newTailWriter(filepath.Join(c.dir, fmt.Sprintf("%03d", p)))
	if err != nil {
		return nil, fmt.Errorf("backups: %w", err)
	}
	for _, x := range rows {
		err = errors.Join(err, t.schema(x.Fingerprint, replica.SchemaRow(x)))
	}
	for _, fp := range refused {
		err = errors.Join(err, t.refused(fp))
	}
	return t, err
}

// memory is a store for a registry that keeps the schemas in memory.
type memory struct{ rows []registry.StoredSchema }

func (m *memory) PutSchema(x registry.StoredSchema) error {
	m.rows = slices.DeleteFunc(m.rows, func(have registry.StoredSchema) bool { return have.Fingerprint == x.Fingerprint })
	m.rows = append(m.rows, x)
	return nil
}

// Schemas returns none: the registry begins empty.
func (m *memory) Schemas() ([]registry.StoredSchema, error) { return nil, nil }

// schemas reads the schemas topic to its end. It returns the schemas that are admitted, and
// those that an operator has given up. Every record before the cut has one of these.
func (c *cutter) schemas(ctx context.Context) ([]registry.StoredSchema, []millrace.Fingerprint, error) {
	var kept memory
	registry, err := registry.New(&kept, nil)
	if err != nil {
		return nil, nil, err
	}
	l, err := schemalog.Open(schemalog.Config{Brokers: c.cfg.Brokers, Topic: c.cfg.Topics.WithDefaults().Schemas, Registry: registry, Log: c.cfg.Log})
	if err != nil {
		return nil, nil, err
	}
	err = l.Refresh(ctx)
	refused := l.AllRefused()
	l.Close()
	return kept.rows, refused, err
}

// writeParts uploads the tails, and for each partition a part of the cut, which names the
// backup and the tail that lead to it.
func (c *cutter) writeParts(ctx context.Context) error {
	parts := make([]*backup.CutPart, partition.Count)
	g, uploading := errgroup.WithContext(ctx)
	g.SetLimit(uploads)
	for p := range partition.All() {
		parts[p] = &backup.CutPart{Partition: p, Backup: c.base[p].ID, To: c.end(p)}
		if t := c.tails[p]; t != nil {
			g.Go(func() (err error) {
				parts[p].Tail, err = c.putTail(uploading, p, t)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.cfg.Bucket.WriteCutParts(ctx, c.cfg.Name, parts)
}

func (c *cutter) putTail(ctx context.Context, p millrace.Partition, t *tailWriter) (backup.Ref, error) {
	path := filepath.Join(c.dir, fmt.Sprintf("%03d.tail", p))
	if err := t.finish(path); err != nil {
		return backup.Ref{}, fmt.Errorf("backups: %w", err)
	}
	ref, _, err := c.cfg.Bucket.PutFile(ctx, path, nil, nil)
	return ref, errors.Join(err, os.Remove(path))
}

func (c *cutter) end(p millrace.Partition) backup.Offsets {
	return backup.Offsets{Content: c.log.Ends[kafka.Timeline][p].Next, Features: c.log.Ends[kafka.Features][p].Next}
}

func (c *cutter) cut() *backup.Cut {
	cut := &backup.Cut{Name: c.cfg.Name, Time: c.log.Time, Log: c.log.Log.String(), Groups: c.log.Groups}
	for p := range partition.All() {
		end := c.end(p)
		cut.Content, cut.Features = append(cut.Content, end.Content), append(cut.Features, end.Features)
	}
	return cut
}
