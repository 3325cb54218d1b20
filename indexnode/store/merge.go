package store

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// merge reads the tables of a checkpoint row by row, the newest of each key
// first. What is newer than the bottom goes into tables of one run: the rows
// that are there, and a tombstone for each row of the bottom that is not. All
// rows that are there are checked as [Store.Check] does it.
//
// Sequence numbers are compared within a table only. Among tables the order
// decides, as it does among Pebble's levels: a table that was ingested has no
// sequence numbers of its own.
type merge struct {
	p      millrace.Partition
	tables []*mergeTable
	heap   mergeHeap
	out    tables
	ranges []deletedRange // that begin behind the key at hand, in order
	active []deletedRange // that may hold the key at hand
	key    []byte         // the key at hand
	last   *mergeTable    // of the bottom, from which the last row came
	rows   *checker
}

// mergeTable is a table among those merged.
type mergeTable struct {
	*table
	name   string
	age    int // 0 is the newest
	bottom bool
}

// mergeHeap has the tables with the least key, and the newest, on top.
type mergeHeap []*mergeTable

func (h mergeHeap) Len() int      { return len(h) }
func (h mergeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h mergeHeap) Less(i, j int) bool {
	c := bytes.Compare(h[i].key, h[j].key)
	return c < 0 || c == 0 && h[i].age < h[j].age
}
func (h *mergeHeap) Push(t any) { *h = append(*h, t.(*mergeTable)) }
func (h *mergeHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	*h = (*h)[:last]
	return t
}

func (m *merge) close() error {
	errs := []error{m.out.finish()}
	for _, t := range m.tables {
		errs = append(errs, t.close())
	}
	return errors.Join(errs...)
}

// add takes a table that is older than those before it.
func (m *merge) add(t *table, f File) error {
	n := &mergeTable{table: t, name: f.Name, age: len(m.tables), bottom: f.Bottom}
	m.tables = append(m.tables, n)
	if f.Bottom && len(t.ranges) > 0 {
		return fmt.Errorf("%w: it is of the bottom and deletes ranges", errTable)
	}
	start, end := partitionSpan(m.p)
	for _, d := range t.ranges {
		if bytes.Compare(d.start, start) < 0 || bytes.Compare(d.end, end) > 0 {
			return errForeign
		}
		d.age = n.age
		m.ranges = append(m.ranges, d)
	}
	if err := t.next(); err != nil {
		return err
	}
	if t.more {
		m.heap = append(m.heap, n)
	} else if f.Bottom {
		return fmt.Errorf("%w: it has no rows", errTable)
	}
	return nil
}

var errForeign = fmt.Errorf("%w: it holds rows of another partition", errTable)

// run merges everything.
func (m *merge) run() error {
	heap.Init(&m.heap)
	slices.SortFunc(m.ranges, func(a, b deletedRange) int { return bytes.Compare(a.start, b.start) })
	for len(m.heap) > 0 {
		if err := m.row(m.heap[0]); err != nil {
			return err
		}
	}
	return m.out.finish()
}

// row merges the rows of the least key; t has the newest of them.
func (m *merge) row(t *mergeTable) error {
	if len(t.key) < 3 || t.key[0] != byte(m.p>>8) || t.key[1] != byte(m.p) {
		return t.wrong(errForeign)
	}
	if bytes.Compare(t.key, m.key) <= 0 {
		return t.wrong(fmt.Errorf("%w: its rows are out of order", errTable))
	}
	m.key = append(m.key[:0], t.key...)
	deleted := t.kind == pebble.InternalKeyKindDelete || m.deletes(t)
	if !deleted {
		if err := m.rows.add(t.key, t.val); err != nil {
			return t.wrong(err)
		}
		if !t.bottom {
			if err := m.out.add(pebble.InternalKeyKindSet, t.key, t.val); err != nil {
				return err
			}
		}
	}
	below, err := m.skip()
	if err == nil && deleted && below {
		err = m.out.add(pebble.InternalKeyKindDelete, m.key, nil)
	}
	return err
}

func (t *mergeTable) wrong(err error) error { return fmt.Errorf("file %s: %w", t.name, err) }

// skip goes on to the next key in all tables, and reports whether the bottom
// has a row of this one.
func (m *merge) skip() (below bool, err error) {
	bottom := false
	for len(m.heap) > 0 && bytes.Equal(m.heap[0].key, m.key) {
		t := m.heap[0]
		if err := m.check(t, bottom); err != nil {
			return false, t.wrong(err)
		}
		if t.bottom {
			bottom, below = true, t.kind != pebble.InternalKeyKindDelete
		}
		if err := t.next(); err != nil {
			return false, t.wrong(err)
		}
		if t.more {
			heap.Fix(&m.heap, 0)
		} else {
			heap.Pop(&m.heap)
		}
	}
	return below, nil
}

// check refuses a row that no store writes, or that no store takes: tables of
// the bottom follow one another, and have one row of a key. another says that
// there was one already.
func (m *merge) check(t *mergeTable, another bool) error {
	switch t.kind {
	case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete, pebble.InternalKeyKindDelete:
	default:
		return fmt.Errorf("%w: it has rows of kind %v", errTable, t.kind)
	}
	if !t.bottom {
		return nil
	}
	if t.seq != 0 {
		return fmt.Errorf("%w: it is of the bottom and has sequence numbers", errTable)
	}
	if another || m.last != nil && m.last != t && m.last.more {
		return fmt.Errorf("%w: it overlaps with %s at the bottom", errTable, m.last.name)
	}
	m.last = t
	return nil
}

// deletes reports whether a newer range deletes the row at hand.
func (m *merge) deletes(t *mergeTable) bool {
	for len(m.ranges) > 0 && bytes.Compare(m.ranges[0].start, t.key) <= 0 {
		m.active = append(m.active, m.ranges[0])
		m.ranges = m.ranges[1:]
	}
	m.active = slices.DeleteFunc(m.active, func(d deletedRange) bool { return bytes.Compare(d.end, t.key) <= 0 })
	return slices.ContainsFunc(m.active, func(d deletedRange) bool {
		return d.age < t.age || d.age == t.age && d.seq > t.seq
	})
}

// compare compares what is there with what a checkpoint says.
func (m *merge) compare(c *Checkpoint) error {
	if err := m.rows.end(); err != nil {
		return err
	}
	row, origin := m.rows.row, m.rows.origin
	switch {
	case row.applied != c.Applied, row.digest != c.Digest:
		return fmt.Errorf("%w: the files are at %v with digest %x, the checkpoint says %v with %x", blob.ErrRow, row.applied, row.digest, c.Applied, c.Digest)
	case row.clock != c.Clock, !bytes.Equal(origin, c.Origin):
		return fmt.Errorf("%w: the files have clock %d and origin %q, the checkpoint says %d, %q", blob.ErrRow, row.clock, origin, c.Clock, c.Origin)
	}
	return nil
}
