package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// registry is what the node knows apart from partitions: schemas and content
// types. Both are written ahead of the records that need them, so that a crash
// cannot leave a record without them.
type registry struct {
	mu      sync.RWMutex
	types   map[millrace.ContentType]bool   // MaxTypes+1 of them if there are more than MaxTypes
	sorted  []millrace.ContentType          // the same; replaced, never changed
	schemas map[millrace.Fingerprint][]byte // JSON
}

// MaxTypes is how many content types a node knows by name. The bound is there because
// records bring types, and a writer could bring any number. Records of further types are
// kept like all others, and found by requests that name the type.
const MaxTypes = 256

// register writes the schemas and the new content types of a batch.
func (s *Store) register(b *Batch) error {
	for _, row := range b.schemas {
		if err := s.PutSchema(row.fp, row.json); err != nil {
			return err
		}
	}
	for _, o := range b.parts {
		var last millrace.ContentType
		for i := range o.list {
			op := &o.list[i]
			if op.kind != opPut || i > 0 && op.timeline.Type == last {
				continue
			}
			last = op.timeline.Type
			if err := s.putType(last); err != nil {
				return err
			}
		}
	}
	return nil
}

// putType makes a content type known, on disk too, unless it or more than MaxTypes are known.
func (s *Store) putType(t millrace.ContentType) error {
	r := &s.types
	r.mu.RLock()
	known := r.types[t] || len(r.types) > MaxTypes
	r.mu.RUnlock()
	if known {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.types[t] || len(r.types) > MaxTypes { // by another batch, meanwhile
		return nil
	}
	if err := s.set(nodeRow(nodeType, string(t)), nil); err != nil {
		return here(err)
	}
	r.add(millrace.ContentType(strings.Clone(string(t))))
	if len(r.types) == MaxTypes+1 {
		s.opts.Log.Error("too many content types: requests for all types are refused from now on", "known", MaxTypes, "further", t)
	}
	return nil
}

// add makes a type known, unless more than MaxTypes are. A store that an earlier version
// wrote may have the names of more. The caller holds mu.
func (r *registry) add(t millrace.ContentType) {
	if len(r.types) <= MaxTypes {
		r.types[t] = true
		r.sorted = slices.Sorted(maps.Keys(r.types))
	}
}

// PutSchema adds a schema to the node's registry. If there is one with the fingerprint, it
// stays as it is.
func (s *Store) PutSchema(fp millrace.Fingerprint, json []byte) error {
	return s.putSchema(fp, json, false)
}

// ReplaceSchema adds a schema to the node's registry, in place of what the registry has under
// the fingerprint. It returns an [ErrDiskFull] if the disk is short of space.
func (s *Store) ReplaceSchema(fp millrace.Fingerprint, json []byte) error {
	if err := s.admit(); err != nil {
		return err
	}
	return s.putSchema(fp, json, true)
}

func (s *Store) putSchema(fp millrace.Fingerprint, json []byte, replace bool) error {
	if s.closed.Load() {
		return ErrClosed
	}
	r := &s.types
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, known := r.schemas[fp]; known && (!replace || bytes.Equal(was, json)) {
		return nil
	}
	json = append([]byte(nil), json...)
	if err := s.set(schemaKey(fp), json); err != nil {
		return here(err)
	}
	r.schemas[fp] = json
	return nil
}

func schemaKey(fp millrace.Fingerprint) string {
	return nodeRow(nodeSchema, string(binary.BigEndian.AppendUint64(nil, uint64(fp))))
}

// Schemas returns the node's schema registry: JSON by fingerprint. The caller
// must not change the JSON.
func (s *Store) Schemas() (map[millrace.Fingerprint][]byte, error) {
	if s.closed.Load() {
		return nil, ErrClosed
	}
	s.types.mu.RLock()
	defer s.types.mu.RUnlock()
	return maps.Clone(s.types.schemas), nil
}

// Types returns the content types ever met on this node, sorted, and whether
// these are all: when there are more than MaxTypes they are not. The caller
// must not change them.
func (s *Store) Types() (types []millrace.ContentType, all bool) {
	s.types.mu.RLock()
	defer s.types.mu.RUnlock()
	return s.types.sorted, len(s.types.sorted) <= MaxTypes
}

func (s *Store) loadTypes(node map[string][]byte) error {
	s.types.types = make(map[millrace.ContentType]bool)
	s.types.schemas = make(map[millrace.Fingerprint][]byte)
	for row, v := range node {
		switch rest := row[1:]; row[0] {
		case nodeType:
			s.types.add(millrace.ContentType(rest))
		case nodeSchema:
			if len(rest) != 8 {
				return blob.ErrKey
			}
			s.types.schemas[millrace.Fingerprint(binary.BigEndian.Uint64([]byte(rest)))] = v
		}
	}
	return nil
}

// nodeCopies are the partitions of keys under which the node's own rows are kept: format,
// schemas, content types and quarantines. There are two copies, each in files of its own, so
// that a damaged file loses none of them. The counts of the partitions are in the first copy
// alone; if they are lost, the partitions are counted again.
var nodeCopies = [...]millrace.Partition{nodePartition - 1, nodePartition}

// nodeSpan returns the range of all keys of a copy of the node's rows.
func nodeSpan(n millrace.Partition) (start, end []byte) {
	return []byte{byte(n >> 8), byte(n)}, []byte{byte(n >> 8), byte(n), 0xff}
}

// nodeRow returns the key of a row of the node, without the two bytes of its copy.
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

// changeNode changes rows in every copy, in one batch. s.node is held.
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

// writeNode writes rows into every copy. s.node is held.
func (s *Store) writeNode(rows map[string][]byte) error {
	return s.changeNode(func(b *pebble.Batch, key []byte) error { return b.Set(key, rows[string(key[2:])], nil) },
		slices.Sorted(maps.Keys(rows))...)
}

// nodeRows reads one copy; with an error it returns no rows. It reads counts too, to find
// damage in their files, but leaves them out. The second copy also may have counts, if an
// earlier version made the copies equal.
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
