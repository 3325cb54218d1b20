package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
)

// The node's own rows (the format, schemas, content types, quarantines) are
// there twice, each time in files of their own, so that a damaged file costs
// none of them. The counts of the partitions are in the first copy alone, and
// are counted anew when they are lost.
var nodeCopies = [...]millrace.Partition{nodePartition - 1, nodePartition}

// nodeSpan is the range of all keys of a copy.
func nodeSpan(n millrace.Partition) (start, end []byte) {
	return []byte{byte(n >> 8), byte(n)}, []byte{byte(n >> 8), byte(n), 0xff}
}

// nodeRow is the key of a row without its copy.
func nodeRow(kind byte, rest string) string { return string(kind) + rest }

// set writes a row of the node.
func (s *Store) set(row string, value []byte) error {
	s.node.Lock()
	defer s.node.Unlock()
	return s.changeNode(func(b *pebble.Batch, key []byte) error { return b.Set(key, value, nil) }, row)
}

// unset removes a row of the node.
func (s *Store) unset(row string) error {
	s.node.Lock()
	defer s.node.Unlock()
	return s.changeNode(func(b *pebble.Batch, key []byte) error { return b.Delete(key, nil) }, row)
}

// changeNode changes rows in every copy, at once. s.node is held.
func (s *Store) changeNode(change func(b *pebble.Batch, key []byte) error, rows ...string) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	b := s.db.NewBatch()
	defer b.Close()
	for _, row := range rows {
		for _, c := range nodeCopies {
			if err := change(b, append(partitionPrefix(c), row...)); err != nil {
				return err
			}
		}
	}
	return b.Commit(pebble.NoSync)
}

// loadNode reads the node's rows, and makes the copies equal again when one has
// lost any. s.node is held.
func (s *Store) loadNode() (map[string][]byte, error) {
	rows := make(map[string][]byte)
	var damaged []error
	equal := true
	for i, c := range nodeCopies {
		own, err := s.nodeRows(c)
		if err != nil {
			if !isCorrupt(err) {
				return nil, err
			}
			damaged = append(damaged, err)
			start, end := nodeSpan(c)
			if err := s.excise(start, end); err != nil {
				return nil, err
			}
		}
		equal = equal && err == nil && (i == 0 || maps.EqualFunc(own, rows, bytes.Equal))
		maps.Copy(rows, own)
	}
	if len(damaged) == len(nodeCopies) {
		return nil, fmt.Errorf("%w: %w", errLost, errors.Join(damaged...))
	}
	if equal {
		return rows, nil
	}
	return rows, s.writeNode(rows)
}

func (s *Store) writeNode(rows map[string][]byte) error {
	return s.changeNode(func(b *pebble.Batch, key []byte) error { return b.Set(key, rows[string(key[2:])], nil) },
		slices.Sorted(maps.Keys(rows))...)
}

// nodeRows reads one copy, or none of it. It reads over counts, whose files are
// then known to be whole; the second copy has some where an earlier version made
// the copies equal.
func (s *Store) nodeRows(c millrace.Partition) (map[string][]byte, error) {
	rows := make(map[string][]byte)
	err := scan(s.db, partitionPrefix(c), func(k, v []byte) error {
		if k[2] != nodeCounts {
			rows[string(k[2:])] = append([]byte(nil), v...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}
