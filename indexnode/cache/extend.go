package cache

import (
	"slices"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Continue replaces a cached timeline by one that has one more record, newer than all
// others. add writes the record under layout l. Continue reports false where it cannot do
// that, as when the timeline is not cached or has limit records. The caller must then
// remove the timeline.
//
// The block with the older records is not copied. The new records are in a small block
// that points to the older block. The small block is written again for each record. When it
// has grown enough, both are joined into one.
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

// extender is the reusable memory of one call of Continue.
type extender struct {
	block  []byte          // the new timeline
	parts  []column.Packed // the parts of the old timeline that are copied into the new block
	slabs  []*column.Slab  // memory for filled; each call gives them other layouts
	filled []*column.Slab  // the slabs with the rows that go into the new block: the first ones of slabs
}

// extenders are extenders that no call uses now.
var extenders = sync.Pool{New: func() any { return new(extender) }}

// The small block of new records is joined with the older block when it has a quarter as
// many records or maxTail, but not before it has minTail. A longer tail makes each write
// copy more, and a shorter one makes the older block be copied more often.
const (
	minTail = 8
	maxTail = 32
)

// tailFull reports whether a small block of tail records is to be joined with an older
// block of main records.
func tailFull(tail, main int) bool { return tail >= min(max(main/4, minTail), maxTail) }

// extend returns was with one more record. The result is in x's memory until x is used
// again. It is nil if was has records, but none of layout l.
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

// slab returns the slab of filled for rows of a layout, and adds an empty one if there is
// none.
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
