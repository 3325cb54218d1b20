package indexnode

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// maxCached is how many of a timeline's newest records the cache holds at
// first. Ingest lets it grow to twice that before it is loaded anew.
const maxCached = 1000

// segments appends the rows of a timeline in [from, to). The caller holds the
// partition's lock for reading.
func (n *Node) segments(dst []query.Segment, p millrace.Partition, t millrace.Timeline, from, to millrace.Time) ([]query.Segment, error) {
	tl, known := n.cache.Get(t)
	if !known {
		var err error
		if tl, err = n.fill(p, t); err != nil {
			return dst, err
		}
	}
	if tl == nil {
		return dst, nil
	}
	for _, slab := range tl.Segments {
		if s := query.Window(slab, from, to); s.Lo < s.Hi {
			dst = append(dst, s)
		}
	}
	if from >= tl.From {
		return dst, nil
	}
	older, err := n.store.Read(nil, p, t, from, min(to, tl.From))
	if err != nil {
		return dst, err
	}
	slabs, err := n.decode(older)
	for _, slab := range slabs {
		dst = append(dst, query.Segment{Slab: slab, Hi: slab.Len()})
	}
	return dst, err
}

// fill reads a timeline's newest records into the cache.
func (n *Node) fill(p millrace.Partition, t millrace.Timeline) (*cache.Timeline, error) {
	newest, err := n.store.ReadNewest(p, t, n.maxCached)
	if err != nil {
		return nil, err
	}
	slabs, err := n.decode(newest.Records)
	if err != nil {
		return nil, err
	}
	if len(slabs) == 0 && newest.From <= millrace.MinTime {
		n.cache.Put(t, nil)
		return nil, nil
	}
	tl := &cache.Timeline{Segments: slabs, From: newest.From}
	n.cache.Put(t, tl)
	return tl, nil
}

// decode turns records, newest first, into slabs, oldest first, one a record
// schema under its latest version.
func (n *Node) decode(records []millrace.Record) ([]*column.Slab, error) {
	known := n.schemas.Snapshot()
	var (
		readers []*schemas.Schema
		rows    []*column.Appender
	)
	for _, r := range slices.Backward(records) {
		reader := latest(known, r.Schema)
		if reader == nil {
			return nil, fmt.Errorf("record %s has the unknown schema %s", r.ID, r.Schema)
		}
		i := slices.Index(readers, reader)
		if i < 0 {
			i = len(readers)
			readers = append(readers, reader)
			rows = append(rows, column.New(reader.Layout(), len(records)+4, len(records)*(len(r.Body)+32)).Append())
		}
		if err := n.append(rows[i], reader, r); err != nil {
			return nil, err
		}
	}
	slabs := make([]*column.Slab, len(rows))
	for i, a := range rows {
		slabs[i] = a.Slab()
	}
	return slabs, nil
}

func (n *Node) append(a *column.Appender, reader *schemas.Schema, r millrace.Record) error {
	d, err := n.schemas.Decoder(r.Schema, reader)
	if err != nil {
		return fmt.Errorf("record %s: %w", r.ID, err)
	}
	if err := d.Append(a, r.Body); err != nil {
		return fmt.Errorf("record %s: %w", r.ID, err)
	}
	return nil
}

// entityFeatures returns the row of an entity's features, nil when it has
// none. The caller holds the partition's lock for reading.
func (n *Node) entityFeatures(p millrace.Partition, e millrace.Entity) (*column.Slab, error) {
	if !n.features.Load() {
		return nil, nil
	}
	if row, known := n.cache.Features(e); known {
		return row, nil
	}
	subjects, err := n.store.Features(p, e)
	if err != nil {
		return nil, err
	}
	var row *column.Slab
	for _, f := range subjects {
		if f.Subject != string(e) {
			continue
		}
		reader := latest(n.schemas.Snapshot(), f.Schema)
		if reader == nil {
			return nil, fmt.Errorf("features of %s have the unknown schema %s", e, f.Schema)
		}
		a := column.New(reader.Layout(), 1, len(f.Body)).Append()
		if err := n.append(a, reader, millrace.Record{ID: millrace.RecordID(e), Schema: f.Schema, Body: f.Body}); err != nil {
			return nil, err
		}
		row = a.Slab()
	}
	n.cache.PutFeatures(e, row)
	return row, nil
}

// latest returns the newest version of the schema that wrote a body, or nil if
// nobody knows the writer's.
func latest(known *schemas.Snapshot, writer millrace.Fingerprint) *schemas.Schema {
	if s := known.ByFingerprint(writer); s != nil {
		return known.Latest(s.Name())
	}
	return nil
}
