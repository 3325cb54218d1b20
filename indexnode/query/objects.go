package query

import (
	"sort"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// This file joins candidates with the features of their objects, for models
// that read them: a row of the batch gets a row of features.

// objectReader is a scorer of one model or of several.
type objectReader interface {
	ObjectLayout() *column.Layout
	SetObjects(*column.Slab)
}

// objectsOf gives a scorer what it reads of the objects of widened rows.
func (q *Query) objectsOf(scorer objectReader, c *columns, w *widened) error {
	l := scorer.ObjectLayout()
	if l == nil {
		return nil
	}
	o := relevance.NewObjects(l)
	for row := range w.slab.Len() {
		if err := q.joinOne(o, w.segment, string(c.objectOf(w, int32(row)))); err != nil {
			return err
		}
	}
	scorer.SetObjects(o.Slab())
	return nil
}

// join appends the features of the objects of rows [lo, hi) of a segment.
func (q *Query) join(o *relevance.Objects, c *columns, s *segment, lo, hi int) error {
	for row := lo; row < hi; row++ {
		object := ""
		if c.object >= 0 {
			object = s.rows.StringAt(c.object, row)
		}
		if object == "" {
			object = s.rows.StringAt(c.id, row)
		}
		if err := q.joinOne(o, s, object); err != nil {
			return err
		}
	}
	return nil
}

// joinOne appends the features of an object.
func (q *Query) joinOne(o *relevance.Objects, s *segment, object string) error {
	of, at := q.featuresOf(s, object)
	if of.None() {
		return o.Add(nil, 0)
	}
	l := of.Layout()
	reads, err := o.Reads(l)
	if err != nil {
		return err
	}
	if q.known == nil {
		q.known = column.New(l, 1, 0)
	}
	q.known.Reset(l)
	q.known.Gather(of, at, at+1, reads)
	return o.Add(q.known, 0)
}

// featuresOf finds the features of an object among those that the segment's
// entity routes; its own are among them.
func (q *Query) featuresOf(s *segment, object string) (column.Packed, int) {
	if object == string(s.timeline.Entity) {
		return s.features, 0
	}
	tl := q.objects[s.timeline.Entity]
	if tl == nil {
		return column.Packed{}, 0
	}
	q.parts = tl.Append(q.parts[:0])
	for _, part := range q.parts {
		subject := part.Layout().Role("subject")
		at := sort.Search(part.Len(), func(i int) bool { return part.StringAt(subject, i) >= object })
		if at < part.Len() && part.StringAt(subject, at) == object {
			return part, at
		}
	}
	return column.Packed{}, 0
}
