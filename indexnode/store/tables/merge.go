package tables

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Merge reads the tables of a checkpoint row by row, and of each key the newest row first.
// The bottom is the tables of Pebble's lowest level, which do not overlap and are used as
// they are. Everything above the bottom is merged into tables of one run, which do not
// overlap either: the rows that are there, and a tombstone for each row of the bottom that
// newer tables delete. All rows that are there are checked.
//
// Sequence numbers are compared within a table only, because a table that was ingested has
// none of its own. Among tables the order decides, as it does among Pebble's levels.
type Merge struct {
	prefix []byte // of all keys
	end    []byte // behind the last key with prefix
	tables []*mergeTable
	heap   mergeHeap
	out    *Writer
	ranges []deletedRange          // those that begin behind the current key, by their start
	active []deletedRange          // those that may contain the current key
	key    []byte                  // the current key
	last   *mergeTable             // the table of the bottom that the last bottom row came from
	check  func(k, v []byte) error // refuses a row that no store writes
}

// NewMerge returns a merge into out, without tables yet. All keys must begin with prefix; end
// is behind the last such key. check refuses wrong rows.
func NewMerge(prefix, end []byte, out *Writer, check func(k, v []byte) error) *Merge {
	return &Merge{prefix: prefix, end: end, out: out, check: check}
}

// mergeTable is a table among those merged.
type mergeTable struct {
	*Table
	name   string
	age    int // 0 is the newest
	bottom bool
}

// mergeHeap has on top the table whose current key is least, and among equal keys the newest
// table.
type mergeHeap []*mergeTable

func (h mergeHeap) Len() int      { return len(h) }
func (h mergeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h mergeHeap) Less(i, j int) bool {
	c := bytes.Compare(h[i].Key, h[j].Key)
	return c < 0 || c == 0 && h[i].age < h[j].age
}
func (h *mergeHeap) Push(t any) { *h = append(*h, t.(*mergeTable)) }
func (h *mergeHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	*h = (*h)[:last]
	return t
}

// Close closes the tables, and finishes the one that is being written.
func (m *Merge) Close() error {
	errs := []error{m.out.Finish()}
	for _, t := range m.tables {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// Add adds a table, which must be older than those added before. name is for errors; bottom
// says that the table is of the bottom. Close closes the table, also after an error.
func (m *Merge) Add(t *Table, name string, bottom bool) error {
	n := &mergeTable{Table: t, name: name, age: len(m.tables), bottom: bottom}
	m.tables = append(m.tables, n)
	if bottom && len(t.Ranges) > 0 {
		return fmt.Errorf("%w: it is of the bottom and deletes ranges", ErrTable)
	}
	for _, d := range t.Ranges {
		if bytes.Compare(d.start, m.prefix) < 0 || bytes.Compare(d.end, m.end) > 0 {
			return errForeign
		}
		d.age = n.age
		m.ranges = append(m.ranges, d)
	}
	if err := t.Next(); err != nil {
		return err
	}
	if t.More {
		m.heap = append(m.heap, n)
	} else if bottom {
		return fmt.Errorf("%w: it has no rows", ErrTable)
	}
	return nil
}

var errForeign = fmt.Errorf("%w: it holds rows of another partition", ErrTable)

// Run merges all tables that were added.
func (m *Merge) Run() error {
	heap.Init(&m.heap)
	slices.SortFunc(m.ranges, func(a, b deletedRange) int { return bytes.Compare(a.start, b.start) })
	for len(m.heap) > 0 {
		if err := m.row(m.heap[0]); err != nil {
			return err
		}
	}
	return m.out.Finish()
}

// row merges all rows of the least key. t, the top of the heap, has the newest of them.
func (m *Merge) row(t *mergeTable) error {
	if len(t.Key) <= len(m.prefix) || !bytes.HasPrefix(t.Key, m.prefix) {
		return t.wrong(errForeign)
	}
	if bytes.Compare(t.Key, m.key) <= 0 {
		return t.wrong(fmt.Errorf("%w: its rows are out of order", ErrTable))
	}
	m.key = append(m.key[:0], t.Key...)
	deleted := t.Kind == pebble.InternalKeyKindDelete || m.deletes(t)
	if !deleted {
		if err := m.check(t.Key, t.val); err != nil {
			return t.wrong(err)
		}
		if !t.bottom {
			if err := m.out.Add(pebble.InternalKeyKindSet, t.Key, t.val); err != nil {
				return err
			}
		}
	}
	below, err := m.skip()
	if err == nil && deleted && below {
		err = m.out.Add(pebble.InternalKeyKindDelete, m.key, nil)
	}
	return err
}

func (t *mergeTable) wrong(err error) error { return fmt.Errorf("file %s: %w", t.name, err) }

// skip moves all tables past the current key, and reports whether the bottom has a row of
// that key.
func (m *Merge) skip() (below bool, err error) {
	bottom := false
	for len(m.heap) > 0 && bytes.Equal(m.heap[0].Key, m.key) {
		t := m.heap[0]
		if err := m.refuse(t, bottom); err != nil {
			return false, t.wrong(err)
		}
		if t.bottom {
			bottom, below = true, t.Kind != pebble.InternalKeyKindDelete
		}
		if err := t.Next(); err != nil {
			return false, t.wrong(err)
		}
		if t.More {
			heap.Fix(&m.heap, 0)
		} else {
			heap.Pop(&m.heap)
		}
	}
	return below, nil
}

// refuse returns an error for a current row that no store writes or takes. Tables of the
// bottom must not overlap, and have one row of a key; another says that the bottom had a
// row of the current key already.
func (m *Merge) refuse(t *mergeTable, another bool) error {
	switch t.Kind {
	case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete, pebble.InternalKeyKindDelete:
	default:
		return fmt.Errorf("%w: it has rows of kind %v", ErrTable, t.Kind)
	}
	if !t.bottom {
		return nil
	}
	if t.Seq != 0 {
		return fmt.Errorf("%w: it is of the bottom and has sequence numbers", ErrTable)
	}
	if another || m.last != nil && m.last != t && m.last.More {
		return fmt.Errorf("%w: it overlaps with %s at the bottom", ErrTable, m.last.name)
	}
	m.last = t
	return nil
}

// deletes reports whether a newer range deletion covers the current row of t.
func (m *Merge) deletes(t *mergeTable) bool {
	for len(m.ranges) > 0 && bytes.Compare(m.ranges[0].start, t.Key) <= 0 {
		m.active = append(m.active, m.ranges[0])
		m.ranges = m.ranges[1:]
	}
	m.active = slices.DeleteFunc(m.active, func(d deletedRange) bool { return bytes.Compare(d.end, t.Key) <= 0 })
	return slices.ContainsFunc(m.active, func(d deletedRange) bool {
		return d.age < t.age || d.age == t.age && d.seq > t.Seq
	})
}
