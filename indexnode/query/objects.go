package query

import (
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// This file joins candidates with the features of their objects, for models
// that read them: each row of a batch gets a row of features.

// objectReader is a scorer of one model or of several.
type objectReader interface {
	ObjectLayout() *column.Layout // nil if it reads no features of objects
	SetObjects(*column.Slab)
}

// objectsOf gives a scorer the features of the objects of widened rows, if it reads them.
func (q *Query) objectsOf(scorer objectReader, c *columns, w *widened) error {
	l := scorer.ObjectLayout()
	if l == nil {
		return nil
	}
	o := relevance.NewObjects(l)
	q.route(w.segment)
	for row := range w.slab.Len() {
		if err := q.joinOne(o, w.segment, string(c.objectOf(w, int32(row)))); err != nil {
			return err
		}
	}
	scorer.SetObjects(o.Slab())
	return nil
}

// join appends to o the features of the objects of rows [lo, hi) of a segment, a row each.
func (q *Query) join(o *relevance.Objects, c *columns, s *segment, lo, hi int) error {
	q.route(s)
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

// routed is features of objects, a row for each. The object's name is the row's subject,
// and subjects ascend.
type routed struct {
	column.Packed
	subject int // the column of the subject
}

// route sets q.routed to the features of objects that the entity of a segment routes: see
// cache.Objects.
func (q *Query) route(s *segment) {
	q.routed = q.routed[:0]
	if tl := q.objects[s.timeline.Entity]; tl != nil {
		q.parts = tl.Append(q.parts[:0])
		for _, p := range q.parts {
			q.routed = append(q.routed, routed{p, p.Layout().Role("subject")})
		}
	}
}

// joinOne appends to o the features of one object. If the entity of the segment is that
// object, they are the entity's own; else those that the entity routes for the object; else
// the row is empty. Call route for the segment first.
func (q *Query) joinOne(o *relevance.Objects, s *segment, object string) error {
	if object == string(s.timeline.Entity) && !s.features.None() {
		return o.Add(s.features, 0)
	}
	for _, r := range q.routed {
		if at := r.find(object); at >= 0 {
			return o.Add(r.Packed, at)
		}
	}
	o.AddNone()
	return nil
}

// find returns the row of a subject, or -1.
func (r *routed) find(subject string) int {
	lo, hi := 0, r.Len()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if r.StringAt(r.subject, mid) < subject {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < r.Len() && r.StringAt(r.subject, lo) == subject {
		return lo
	}
	return -1
}
