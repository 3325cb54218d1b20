package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// Contents is all that a partition holds, as it was when [Store.Contents] returned it. Writes
// go on, and do not change it. The caller closes it soon, since the disk space of what is
// replaced meanwhile is not freed until then.
type Contents struct {
	snap *snapshot
	row  partRow
}

// Row is a record of a timeline, a tombstone too, or features of a subject.
type Row struct {
	Key      []byte            // of the timeline or the features, without the partition
	Timeline millrace.Timeline // of features, only the entity that routes them
	ID       millrace.RecordID // of features, the subject
	Time     millrace.Time
	Version  int64
	Deleted  bool
	Schema   millrace.Fingerprint
	Sum      uint64 // a hash of all of the row: what it adds to the digest
}

// Features reports whether the row is features, not a record.
func (r *Row) Features() bool { return len(r.Key) > 0 && r.Key[0] == kindFeatures }

// Contents returns what a partition holds now; see [Contents].
func (s *Store) Contents(n millrace.Partition) (*Contents, error) {
	snap, err := s.snapshot(n)
	if err != nil {
		return nil, err
	}
	c := &Contents{snap: snap, row: partRow{applied: nothingApplied}}
	b, err := get(snap, partitionKey(n, kindPart))
	if err == nil && b != nil {
		c.row, err = decodePartRow(b)
	}
	if err != nil {
		return nil, errors.Join(snap.failed(err), c.Close())
	}
	return c, nil
}

// Close releases the contents.
func (c *Contents) Close() error { return here(c.snap.Close()) }

// Applied returns the offsets that the contents are of.
func (c *Contents) Applied() Offsets { return c.row.applied }

// Digest returns the digests at these offsets.
func (c *Contents) Digest() Digest { return c.row.digest }

// Rows ranges over what retention keeps: the features by key, then the timelines by key. The
// records of a timeline come from the newest to the oldest, those of one time by id. So two
// replicas at equal offsets have equal rows in the same order, however their records are
// divided into blobs. A row with an error is the last.
func (c *Contents) Rows() iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		give := func(r Row) error {
			if !yield(r, nil) {
				return errEnough
			}
			return nil
		}
		err := c.features(give)
		if err == nil {
			err = c.timelines(give)
		}
		if err != nil && err != errEnough {
			yield(Row{}, c.snap.failed(err))
		}
	}
}

// errEnough ends a range early, when its caller wants no more rows.
var errEnough = errors.New("enough")

// features gives all features of the partition.
func (c *Contents) features(give func(Row) error) error {
	return scan(c.snap, partitionKey(c.snap.p.p, kindFeatures), func(k, v []byte) error {
		entity, subject, err := blob.CutString(k[3:])
		if err != nil {
			return err
		}
		f, err := decodeFeatures(string(subject), v)
		if err != nil {
			return err
		}
		e := millrace.Entity(entity)
		return give(Row{
			Key: bytes.Clone(k[2:]), Timeline: millrace.Timeline{Entity: e}, ID: millrace.RecordID(f.Subject),
			Time: f.Time, Version: f.Version, Schema: f.Schema, Sum: featuresDigest(e, &f),
		})
	})
}

// timelines gives the records of all timelines of the partition that retention keeps.
func (c *Contents) timelines(give func(Row) error) error {
	for name, err := range heads(c.snap, c.snap.p.p) {
		if err != nil {
			return err
		}
		if err := c.timeline(name, give); err == errEnough {
			return err
		} else if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// timeline gives the records of one timeline that retention keeps.
func (c *Contents) timeline(name millrace.Timeline, give func(Row) error) error {
	prefix := timeline.Prefix(c.snap.p.p, name)
	b, err := c.blob(timeline.HeadKey(prefix))
	if err != nil {
		return err
	}
	var older blob.Chain
	if b.HasChain() {
		if older, err = c.chain(prefix); err != nil {
			return err
		}
	}
	k, hash := c.snap.s.keeper(name.Type, c.row.clock), blob.TimelineDigest(name)
	for i, n := len(older.Links), 0; ; {
		recs, err := b.DecodeAll(nil) // the oldest first
		if err != nil {
			return err
		}
		for j := range slices.Backward(recs) {
			r := &recs[j]
			if n++; k.Count > 0 && n > k.Count || r.Time < k.Horizon || older.Floor.Under(r.Time, r.ID) {
				return nil // everything behind it is dropped too
			}
			if err := give(Row{
				Key: prefix[2:], Timeline: name, ID: r.ID, Time: r.Time, Version: r.Version,
				Deleted: r.Deleted, Schema: r.Schema, Sum: blob.RecordDigest(hash, r),
			}); err != nil {
				return err
			}
		}
		if i--; i < 0 {
			return nil
		}
		if b, err = c.blob(timeline.OlderKey(prefix, older.Links[i].Suffix)); err != nil {
			return err
		}
	}
}

func (c *Contents) chain(prefix []byte) (blob.Chain, error) {
	b, err := get(c.snap, timeline.ChainKey(prefix))
	if err != nil || b == nil {
		return blob.Chain{}, cmp.Or(err, timeline.ErrState)
	}
	all, err := blob.DecodeChain(b)
	if err != nil {
		return blob.Chain{}, err
	}
	return *all, nil
}

func (c *Contents) blob(key []byte) (*blob.Blob, error) {
	b, err := get(c.snap, key)
	if err != nil || b == nil {
		return nil, cmp.Or(err, timeline.ErrState)
	}
	return blob.Open(b)
}

// Timelines ranges over the timelines of a partition as they are when the
// range begins.
func (s *Store) Timelines(n millrace.Partition) iter.Seq2[millrace.Timeline, error] {
	return func(yield func(millrace.Timeline, error) bool) {
		snap, err := s.snapshot(n)
		if err != nil {
			yield(millrace.Timeline{}, err)
			return
		}
		defer snap.Close()
		for t, err := range heads(snap, n) {
			if !yield(t, snap.failed(err)) || err != nil {
				return
			}
		}
	}
}

// Routes ranges over the entities of a partition that route features, as they
// are when the range begins.
func (s *Store) Routes(n millrace.Partition) iter.Seq2[millrace.Entity, error] {
	return func(yield func(millrace.Entity, error) bool) {
		snap, err := s.snapshot(n)
		if err != nil {
			yield("", err)
			return
		}
		defer snap.Close()
		for e, err := range routes(snap, n) {
			if !yield(e, snap.failed(err)) || err != nil {
				return
			}
		}
	}
}

// snapshot is a partition as it was at one time.
type snapshot struct {
	*pebble.Snapshot
	s       *Store
	p       *part
	epoch   int     // of the partition at that time; see part.epoch
	counted counted // its counts at that time
}

// failed is [Store.failed] for what was read from the snapshot.
func (v *snapshot) failed(err error) error { return v.s.failed(v.p, v.epoch, err) }

// snapshot returns a partition as it is now. It first hands what is applied and not yet
// written to Pebble.
func (s *Store) snapshot(n millrace.Partition) (*snapshot, error) {
	p, err := s.part(n)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(s); err != nil {
		return nil, err
	}
	if p.changed {
		if err := p.write(s); err != nil {
			return nil, s.rewind(p, err)
		}
	}
	return &snapshot{s.db.NewSnapshot(), s, p, p.epoch, counted{p.tally, p.tally.Now()}}, nil
}

// heads ranges over the timelines that have a head.
func heads(r pebble.Reader, n millrace.Partition) iter.Seq2[millrace.Timeline, error] {
	return func(yield func(millrace.Timeline, error) bool) {
		prefix := partitionKey(n, timeline.Kind)
		it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
		if err != nil {
			yield(millrace.Timeline{}, err)
			return
		}
		defer it.Close()
		for ok := it.First(); ok; {
			t, n, rest, err := timeline.CutKey(it.Key())
			if err != nil || rest[0] == timeline.PartHead {
				if !yield(t, err) || err != nil {
					return
				}
			}
			ok = it.SeekGE(append(slices.Clone(it.Key()[:n]), timeline.PartID+1))
		}
		if err := it.Error(); err != nil {
			yield(millrace.Timeline{}, err)
		}
	}
}

// routes ranges over the entities that have rows of features.
func routes(r pebble.Reader, n millrace.Partition) iter.Seq2[millrace.Entity, error] {
	return func(yield func(millrace.Entity, error) bool) {
		prefix := partitionKey(n, kindFeatures)
		it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
		if err != nil {
			yield("", err)
			return
		}
		defer it.Close()
		for ok := it.First(); ok; {
			e, _, err := blob.CutString(it.Key()[len(prefix):])
			if !yield(millrace.Entity(e), err) || err != nil {
				return
			}
			ok = it.SeekGE(after(featuresPrefix(n, millrace.Entity(e))))
		}
		if err := it.Error(); err != nil {
			yield("", err)
		}
	}
}

// scan visits the rows whose key begins with prefix, in key order.
func scan(r pebble.Reader, prefix []byte, visit func(k, v []byte) error) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = visit(it.Key(), v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// after returns the first key behind all keys that begin with prefix; nil if there is none.
func after(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// Counted is how much a partition has at some offsets.
type Counted struct {
	Applied Offsets
	// Known is false if the partition has to be counted, which [Store.Check] does.
	Known bool
	// Types is nil unless Known. Types beyond MaxTypes are counted together, as type "".
	Types map[millrace.ContentType]tally.Counts
}

// Counts returns how much a partition has of each content type. Beside an error, Types is nil.
func (s *Store) Counts(n millrace.Partition) (Counted, error) {
	p, err := s.part(n)
	if err != nil {
		return Counted{Applied: nothingApplied}, err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	c := Counted{Applied: p.row.applied, Known: p.tally.Known()}
	if err := p.usable(); err != nil || !c.Known {
		return c, err
	}
	c.Types = p.tally.Now()
	return c, nil
}

// counted is a tally at one moment.
type counted struct {
	of *tally.Tally // it goes on counting, until its partition is replaced or rewound
	at map[millrace.ContentType]tally.Counts
}

// Flows returns what became of records since the store was opened, by content type. Types
// beyond MaxTypes are counted together, as type "".
func (s *Store) Flows() map[millrace.ContentType]tally.Flow { return s.flows.Now() }
