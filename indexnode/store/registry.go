package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
)

// registry is what the node knows apart from partitions: schemas and content
// types. Both are written ahead of the records that need them, so that a crash
// cannot leave a record without them.
type registry struct {
	mu      sync.RWMutex
	types   map[millrace.ContentType]bool // one beyond MaxTypes when there are more
	sorted  []millrace.ContentType        // replaced whole
	schemas map[millrace.Fingerprint][]byte
}

// MaxTypes is how many content types a node knows by name. Types come with
// records, so that who writes these could bring any number; records of further
// types are kept like all others and read by who names their type.
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
	if err := s.set(nodeRow(nodeType, string(t)), nil); err != nil {
		return err
	}
	r.add(millrace.ContentType(strings.Clone(string(t))))
	if len(r.types) == MaxTypes+1 {
		s.opts.Log.Error("too many content types: what asks for all of them is refused from now on", "known", MaxTypes, "further", t)
	}
	return nil
}

// add makes a type known. A store may have the names of more, as one from
// before they were bounded. The caller holds mu.
func (r *registry) add(t millrace.ContentType) {
	if len(r.types) <= MaxTypes {
		r.types[t] = true
		r.sorted = slices.Sorted(maps.Keys(r.types))
	}
}

// PutSchema adds a schema to the node's registry. One that is there stays.
func (s *Store) PutSchema(fp millrace.Fingerprint, json []byte) error {
	return s.putSchema(fp, json, false)
}

// ReplaceSchema adds a schema to the node's registry, in the place of what is
// there of it. [ErrDiskFull] refuses it.
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
				return errKey
			}
			s.types.schemas[millrace.Fingerprint(binary.BigEndian.Uint64([]byte(rest)))] = v
		}
	}
	return nil
}

// scan visits the rows whose key begins with prefix, in key order.
func scan(r pebble.Reader, prefix []byte, visit func(k, v []byte) error) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = visit(it.Key(), v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// after is the first key behind those that begin with prefix.
func after(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
