package cache

import (
	"slices"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Continue puts a timeline with one record more, newer than all others, in the
// place of a cached one: add writes it under layout l. It reports false where
// that cannot be, as when the timeline has limit records; it must then be
// removed.
//
// The record does not go into the block with the others: a small block that
// continues it is written anew for each, until it is worth joining both.
func (c *Cache) Continue(t millrace.Timeline, l *column.Layout, limit int, add func(*column.Appender) error) bool {
	r := c.Reader()
	defer r.Leave()
	k := c.seeds.id(t)
	was := c.index.get(k)
	if was == nil || was.Len() >= limit {
		return false
	}
	x := extenders.Get().(*extender)
	defer extenders.Put(x)
	next, err := x.extend(was, l, add)
	if err != nil || next == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.get(k) != was {
		return false // evicted meanwhile
	}
	return c.replace(t, k, next)
}

// extender is memory for one extension.
type extender struct {
	block  []byte
	parts  []column.Packed
	slabs  []*column.Slab // as many as there were parts at once
	filled []*column.Slab
}

var extenders = sync.Pool{New: func() any { return new(extender) }}

// What continues a timeline is joined with it when it has a quarter of its
// records, or maxTail, but not before it has minTail.
const (
	minTail = 8
	maxTail = 32
)

func tailFull(tail, main int) bool { return tail >= min(max(main/4, minTail), maxTail) }

// extend returns was with one record more, in memory that holds until the
// next, or nil if was has no record of the layout.
func (x *extender) extend(was *Timeline, l *column.Layout, add func(*column.Appender) error) (*Timeline, error) {
	x.parts = x.parts[:0]
	older := was.Older()
	for b := was; b != nil; b = b.Older() {
		x.parts = b.Append(x.parts)
	}
	if was.records > 0 && !slices.ContainsFunc(x.parts, func(p column.Packed) bool { return p.Layout() == l }) {
		return nil, nil
	}
	x.parts = x.parts[:0]
	switch {
	case was.records == 0:
	case older == nil:
		older = was
	case tailFull(was.Len()-older.Len(), older.Len()):
		x.parts = was.Append(older.Append(x.parts))
		older = nil
	default:
		x.parts = was.Append(x.parts)
	}
	x.filled = x.filled[:0]
	for _, p := range x.parts {
		x.slab(p.Layout()).Gather(p, 0, p.Len(), nil)
	}
	rows := x.slab(l)
	appender := rows.Append()
	if err := add(appender); err != nil {
		return nil, err
	}
	*rows = *appender.Slab()
	b, err := appendTimeline(x.block[:0], was.from, older, x.filled)
	if err != nil {
		return nil, err
	}
	x.block = b
	return timelineOf(b), nil
}

// slab returns the slab for rows of a layout.
func (x *extender) slab(l *column.Layout) *column.Slab {
	for _, s := range x.filled {
		if s.Layout() == l {
			return s
		}
	}
	n := len(x.filled)
	if n == len(x.slabs) {
		x.slabs = append(x.slabs, column.New(l, maxTail+1, 0))
	}
	x.slabs[n].Reset(l)
	x.filled = x.slabs[:n+1]
	return x.slabs[n]
}
