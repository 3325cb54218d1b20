package store

import (
	"slices"
	"sort"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// Read appends to dst the live records of a timeline with from <= Time < to,
// newest first: time descending, id ascending. It reads only the blobs that
// the window needs. The records' memory is not used for anything else, so they stay valid.
func (s *Store) Read(dst []millrace.Record, n millrace.Partition, name millrace.Timeline, from, to millrace.Time) ([]millrace.Record, error) {
	return s.ReadGranted(dst, n, name, from, to, nil)
}

// Grant is called before a read decodes a blob, with the number of the blob's bytes. Its error
// ends the read.
type Grant = blob.Grant

// ReadGranted is [Store.Read] that asks grant for all that it reads; nil: all is granted.
func (s *Store) ReadGranted(dst []millrace.Record, n millrace.Partition, name millrace.Timeline, from, to millrace.Time, grant Grant) ([]millrace.Record, error) {
	out := dst
	err := s.reading(n, func(p *part) (err error) {
		out, err = p.read(s, dst, name, blob.Window{From: from, To: to, Grant: grant})
		return err
	})
	if err != nil {
		return dst, err
	}
	return out, nil
}

// reading calls read with the partition's lock held for reading. A panic of read releases the
// lock too: the caller may recover from it, and ingest waits for the lock.
func (s *Store) reading(n millrace.Partition, read func(*part) error) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	epoch := 0
	err = func() error {
		p.mu.RLock()
		defer p.mu.RUnlock()
		epoch = p.epoch
		return read(p)
	}()
	return s.failed(p, epoch, err)
}

// read is [Store.Read] for a window, with the partition's lock held for reading.
func (p *part) read(s *Store, dst []millrace.Record, name millrace.Timeline, w blob.Window) ([]millrace.Record, error) {
	var v view
	if err := p.view(s, &v, name); err != nil || v.head == nil {
		return dst, err
	}
	w.From, w.Most = max(w.From, v.keep.Horizon), v.keep.Count
	oldest, err := v.head.FirstTime()
	if err != nil {
		return dst, err
	}
	older := v.head.HasChain() && oldest >= w.From
	if older || v.head.HasChain() && w.Most > 0 {
		if err := v.loadChain(); err != nil {
			return dst, err
		}
		w.Floor = v.chain.Floor
	}
	if dst, err = w.Append(dst, v.head); err != nil || !older {
		return dst, err
	}
	links := v.chain.Links
	first := sort.Search(len(links), func(i int) bool { return links[i].Newest >= w.From })
	for i := len(links) - 1; i >= first; i-- {
		if links[i].Oldest >= w.To {
			w.Skipped += int(links[i].Count)
			continue
		}
		if w.Most > 0 && w.Skipped >= w.Most {
			break
		}
		b, err := v.blob(&links[i])
		if err != nil {
			return dst, err
		}
		if dst, err = w.Append(dst, b); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// ReadNewestInto reads into out at least the newest max live records of a timeline, or all
// if there are fewer, and sets how far back they are complete. It may end with fewer: see
// [Newest].EnoughBytes. It uses out's memory again, so that what was read into it earlier
// is not valid any more. If the head blob holds the records, it reads one row of the store.
func (s *Store) ReadNewestInto(out *Newest, n millrace.Partition, name millrace.Timeline, max int) error {
	out.Records, out.From = out.Records[:0], millrace.MinTime
	err := s.reading(n, func(p *part) error { return p.readNewest(s, out, name, max) })
	if err != nil {
		out.Records = out.Records[:0]
	}
	return err
}

// readNewest is [Store.ReadNewestInto] with the partition's lock held for reading. atLeast is
// how many records are wanted.
func (p *part) readNewest(s *Store, n *Newest, name millrace.Timeline, atLeast int) error {
	v := view{buf: n.buf, key: n.key}
	err := p.view(s, &v, name)
	n.buf, n.key = v.buf, v.key
	if err != nil || v.head == nil {
		return err
	}
	w := blob.Window{From: v.keep.Horizon, To: blob.MaxTime, Most: v.keep.Count, Grant: n.Grant}
	if w.Most > 0 && v.head.HasChain() {
		if err := v.loadChain(); err != nil {
			return err
		}
		w.Floor = v.chain.Floor
	}
	b, bytes := v.head, 0
	for i := 0; ; i++ {
		bytes += len(b.Buf)
		if n.Records, err = w.Append(n.Records, b); err != nil || !v.head.HasChain() || w.Done() {
			return err
		}
		// The next blob may begin with records of the oldest time, so those are left out.
		oldest, err := b.FirstTime()
		if err != nil {
			return err
		}
		whole := sort.Search(len(n.Records), func(i int) bool { return n.Records[i].Time <= oldest })
		if whole >= atLeast || n.EnoughBytes > 0 && bytes >= n.EnoughBytes && whole > 0 {
			n.Records, n.From = n.Records[:whole], oldest+1
			return nil
		}
		if err := v.loadChain(); err != nil {
			return err
		}
		if i == len(v.chain.Links) {
			return nil
		}
		if b, err = v.blob(&v.chain.Links[len(v.chain.Links)-1-i]); err != nil {
			return err
		}
	}
}

// view is a timeline as a reader sees it, while the partition's lock is held for reading. It
// changes nothing that other readers see.
type view struct {
	s      *Store
	t      *timeline.Timeline // the timeline in memory; nil: it is not there
	prefix []byte             // of the timeline's keys
	buf    []byte             // memory for the head
	key    []byte             // memory for the prefix
	head   *blob.Blob         // nil: there is no such timeline
	chain  *blob.Chain        // nil until it is needed
	keep   timeline.Keeper
}

// view sets v to a timeline: from memory if it is there, else from Pebble. The caller holds
// p.mu for reading.
func (p *part) view(s *Store, v *view, name millrace.Timeline) error {
	if err := p.usable(); err != nil {
		return err
	}
	v.s, v.t, v.keep = s, p.known(name), s.keeper(name.Type, p.row.clock)
	if v.t != nil {
		v.head, v.chain = v.t.Head, v.t.Chain
		v.prefix = slices.Clip(v.t.Prefix)
		return nil
	}
	v.key = timeline.AppendPrefix(v.key[:0], p.p, name)
	v.prefix = v.key
	var err error
	v.buf, err = s.appendRow(v.buf[:0], timeline.HeadKey(v.prefix))
	if err == nil && len(v.buf) > 0 {
		v.head, err = blob.View(v.buf)
	}
	return err
}

// get reads a blob, or nil. It checks only the blob's header; records are checked when they
// are decoded.
func (v *view) get(key []byte) (*blob.Blob, error) {
	b, err := v.s.appendRow(nil, key)
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return blob.View(b)
}

// loadChain reads the chain, which says where the older blobs are, unless it is read.
func (v *view) loadChain() error {
	if v.chain != nil {
		return nil
	}
	b, err := v.s.get(timeline.ChainKey(v.prefix))
	if err != nil {
		return err
	}
	if b == nil {
		return timeline.ErrState
	}
	v.chain, err = blob.DecodeChain(b)
	return err
}

// blob returns the blob that a link of the chain is for.
func (v *view) blob(l *blob.Link) (*blob.Blob, error) {
	if v.t != nil {
		if b := v.t.Loaded(l.Suffix); b != nil {
			return b, nil
		}
	}
	b, err := v.get(timeline.OlderKey(v.prefix, l.Suffix))
	if err == nil && b == nil {
		err = timeline.ErrState
	}
	return b, err
}

// Features returns the features routed by an entity, by subject ascending.
func (s *Store) Features(n millrace.Partition, e millrace.Entity) ([]Features, error) {
	var out []Features
	err := s.reading(n, func(p *part) (err error) {
		out, err = p.readFeatures(s, e)
		return err
	})
	return out, err
}

func (p *part) readFeatures(s *Store, e millrace.Entity) ([]Features, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	var out []Features
	own := p.features[e]
	prefix := featuresPrefix(p.p, e)
	err := scan(s.db, prefix, func(k, v []byte) error {
		subject := string(k[len(prefix):])
		if _, dirty := own[subject]; dirty {
			return nil
		}
		f, err := decodeFeatures(subject, slices.Clone(v))
		out = append(out, f)
		return err
	})
	if len(own) == 0 {
		return out, err // in order already
	}
	for _, f := range own {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Features) int { return strings.Compare(a.Subject, b.Subject) })
	return out, err
}

// Found is the latest version of a record in a timeline, perhaps a tombstone.
type Found struct {
	millrace.Record
	// Expired says that retention has dropped it, though its blob is still
	// there.
	Expired bool
}

// Find looks up a record by its id, whatever its time and whether it is deleted. ok is
// false if the timeline never had it, or if retention has dropped it and
// its blob is gone. The record has memory of its own.
func (s *Store) Find(n millrace.Partition, name millrace.Timeline, id millrace.RecordID) (f Found, ok bool, err error) {
	err = s.reading(n, func(p *part) (err error) {
		f, ok, err = p.find(s, name, id)
		return err
	})
	if err != nil {
		return Found{}, false, err
	}
	return f, ok, nil
}

// find is [Store.Find] with the partition's lock held for reading.
func (p *part) find(s *Store, name millrace.Timeline, id millrace.RecordID) (Found, bool, error) {
	if err := p.usable(); err != nil {
		return Found{}, false, err
	}
	t, err := p.copyOf(s, name)
	if err != nil {
		return Found{}, false, err
	}
	at, ok, err := t.Find(id)
	if err != nil || !ok {
		return Found{}, false, err
	}
	f := Found{Record: at.Rec}
	f.ID, f.Object = id, millrace.Object(strings.Clone(string(f.Object)))
	f.Body = append([]byte(nil), f.Body...)
	f.Expired, err = s.keeper(name.Type, p.row.clock).Dropped(t, at)
	return f, true, err
}

// copyOf returns a copy of a timeline for a reader, so that what the reader loads into it
// is not seen by others. The copy shares memory with the writer's timeline, which only a
// writer changes.
func (p *part) copyOf(s *Store, name millrace.Timeline) (*timeline.Timeline, error) {
	if t := p.known(name); t != nil {
		own := *t
		return &own, nil
	}
	return timeline.Open((*source)(s), p.p, name, s.opts.MaxBlobBytes)
}
