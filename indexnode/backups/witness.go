package backups

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
)

// WitnessConfig says what a witness is made of. A witness is a replica of a stream of a
// partition that is made anew, so that its digest shows which of several differing replicas
// are right. All of it is required, except Bucket and Retention.
type WitnessConfig struct {
	Brokers   kafka.Brokers
	Topics    kafka.Topics
	Bucket    func(context.Context) (*backup.Bucket, error) // nil: there are no backups
	Retention map[millrace.ContentType]store.Retention      // the retention of the replicas
	Scratch   string                                        // a directory
	Log       *slog.Logger

	Partition millrace.Partition
	Stream    kafka.Stream
	Of        string          // the log that the replicas are of, see [replica.LogOf]
	Past      bool            // the replicas have records from before the log
	Offset    millrace.Offset // the witness has all records before it
	// Trusts reports whether a backup was made of a replica that was right.
	Trusts func(*backup.Manifest) bool
}

// Witness makes a stream of a partition anew up to an offset, in a temporary store. It
// returns its digest there, and in words what it was made from. If the log still has its
// beginning, and replicas have nothing from before it, it reads the whole log, with which
// nothing can be wrong. Otherwise it starts from the newest backup that can be trusted,
// and reads the log from there on.
func Witness(ctx context.Context, cfg WitnessConfig) (digest uint64, source string, err error) {
	rc := RestoreConfig{
		Data: cfg.Scratch, Brokers: cfg.Brokers, Topics: cfg.Topics, Log: cfg.Log,
		Store: store.Options{CacheBytes: 8 << 20, MaxDirtyBytes: 16 << 20, Retention: cfg.Retention, Log: cfg.Log},
	}
	err = withScratch(rc, func(r *restorer) error {
		w := witness{WitnessConfig: cfg, restorer: r}
		digest, source, err = w.run(ctx)
		return err
	})
	return digest, source, err
}

// witness is one Witness under way.
type witness struct {
	WitnessConfig
	*restorer
}

func (w *witness) run(ctx context.Context) (digest uint64, source string, err error) {
	begin, err := w.begins(ctx)
	if err != nil {
		return 0, "", err
	}
	source = "the log from its beginning"
	past := w.Past
	if begin == 0 && !past {
		if past, err = w.hasPast(ctx); err != nil {
			return 0, "", err
		}
	}
	if begin > 0 || past {
		m, err := w.newest(ctx, begin, past)
		if err != nil {
			return 0, "", err
		}
		source = fmt.Sprintf("backup %s of %s, and the log", m.ID, m.Node)
		if err := w.restorePartition(ctx, &way{from: m, to: m.Applied}); err != nil {
			return 0, "", err
		}
	}
	if err := w.follow(ctx); err != nil {
		return 0, "", err
	}
	at, d := w.store.Applied(w.Partition), w.store.Digest(w.Partition)
	if w.Stream == kafka.Features {
		at.Content, d.Content = at.Features, d.Features
	}
	if max(at.Content, 0) != w.Offset {
		return 0, "", fmt.Errorf("backups: partition %d was made anew up to %d of %s and not to %d", w.Partition, at.Content, w.Stream, w.Offset)
	}
	return d.Content, source, nil
}

// begins returns the first offset that the log of the stream still has. It fails if the
// log is not the one that the replicas are of.
func (w *witness) begins(ctx context.Context) (millrace.Offset, error) {
	c, err := streams.NewConsumer(streams.Config{Brokers: w.Brokers, Topics: w.Topics, Log: w.Log})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	id, err := c.LogID(ctx)
	if err != nil {
		return 0, err
	}
	if id.String() != w.Of {
		return 0, fmt.Errorf("backups: the log that is there is %s, and the replicas are of %s", id, w.Of)
	}
	tp := w.topic()
	starts, err := c.StartOffsets(ctx, tp)
	return starts[tp], err
}

func (w *witness) topic() kafka.TopicPartition {
	return kafka.TopicPartition{Stream: w.Stream, Partition: w.Partition}
}

// newest returns the newest backup that is trusted, that is not beyond the offset, and
// from which the log, which begins at begin, goes on. With past it must have the records
// from before the log. It fails if there is none.
func (w *witness) newest(ctx context.Context, begin millrace.Offset, past bool) (*backup.Manifest, error) {
	none := errors.New("backups: the log does not have everything from the beginning, and there is no backup of before the replicas differed, nor one by another node")
	if w.Bucket == nil {
		return nil, none
	}
	all, err := w.manifests(ctx)
	if err != nil {
		return nil, err
	}
	for m, err := range all {
		if err != nil {
			return nil, err
		}
		at := m.Applied.Content
		if w.Stream == kafka.Features {
			at = m.Applied.Features
		}
		if m.Log == w.Of && at >= begin && at <= w.Offset && w.Trusts(m) && (!past || replica.HasPast(m.Origin)) {
			return m, nil
		}
	}
	return nil, none
}

// hasPast reports whether a backup of the log has records from before it. A replica that
// was made anew since may not know that there were any.
func (w *witness) hasPast(ctx context.Context) (bool, error) {
	if w.Bucket == nil {
		return false, nil
	}
	all, err := w.manifests(ctx)
	if err != nil {
		return false, err
	}
	for m, err := range all {
		if err != nil || m.Log == w.Of && replica.HasPast(m.Origin) {
			return err == nil, err
		}
	}
	return false, nil
}

// manifests returns the partition's backups, the newest first. It also sets the bucket
// that the restorer reads.
func (w *witness) manifests(ctx context.Context) (iter.Seq2[*backup.Manifest, error], error) {
	b, err := w.Bucket(ctx)
	if err != nil {
		return nil, err
	}
	w.cfg.Bucket = b
	return b.Manifests(ctx, w.Partition, time.Time{}, func(d *backup.Damage) { w.Log.Error("a backup is damaged", "err", d) }), nil
}

// follow applies the log up to the offset.
func (w *witness) follow(ctx context.Context) error {
	c := cutter{cfg: CutConfig{Brokers: w.Brokers, Topics: w.Topics, Log: w.Log}}
	rows, refused, err := c.schemas(ctx)
	if err == nil {
		err = putRows(w.store, rows)
	}
	if err != nil {
		return err
	}
	given, aged := givenUp{}, false
	for _, fp := range refused {
		given[fp] = true
	}
	for _, keep := range w.Retention {
		aged = aged || keep.MaxAge > 0
	}
	all, err := replay(w.store, given, aged)
	if err != nil {
		return err
	}
	all.Serve(w.Partition, time.Now())
	from := all.Of(w.Partition).Applied()[w.Stream]
	if from >= w.Offset {
		return nil
	}
	spans := map[kafka.TopicPartition]streams.Span{w.topic(): {From: kafka.Position{Next: from, Epoch: -1}, To: w.Offset}}
	return streams.ReadTails(ctx, streams.TailsConfig{Brokers: w.Brokers, Topics: w.Topics, Log: w.Log}, spans, func(f streams.Fetched) error {
		if errors.Is(f.Err, kafka.ErrLostPosition) {
			return f.Err
		}
		return all.Bring(ctx, f)
	})
}

// Bucket returns the bucket that backups go to.
func (k *Keeper) Bucket(ctx context.Context) (*backup.Bucket, error) { return k.bucket(ctx) }
