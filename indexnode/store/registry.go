package store

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
)

// registry is what the node knows apart from partitions: schemas and content
// types. Both are written ahead of the records that need them, so that a crash
// cannot leave a record without them.
type registry struct {
	mu      sync.RWMutex
	types   map[millrace.ContentType]bool
	schemas map[millrace.Fingerprint][]byte
}

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
	known := r.types[t]
	r.mu.RUnlock()
	if known {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t = millrace.ContentType(append([]byte(nil), t...))
	if err := s.set(nodeKey(nodeType, string(t)), nil); err != nil {
		return err
	}
	r.types[t] = true
	return nil
}

// PutSchema adds a schema to the node's registry.
func (s *Store) PutSchema(fp millrace.Fingerprint, json []byte) error {
	if s.closed.Load() {
		return ErrClosed
	}
	r := &s.types
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.schemas[fp]; known {
		return nil
	}
	json = append([]byte(nil), json...)
	if err := s.set(schemaKey(fp), json); err != nil {
		return err
	}
	r.schemas[fp] = json
	return nil
}

func schemaKey(fp millrace.Fingerprint) []byte {
	return nodeKey(nodeSchema, string(binary.BigEndian.AppendUint64(nil, uint64(fp))))
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

// Types returns every content type ever met on this node, sorted.
func (s *Store) Types() []millrace.ContentType {
	s.types.mu.RLock()
	defer s.types.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.types.types))
}

func (s *Store) loadTypes() error {
	s.types.types = make(map[millrace.ContentType]bool)
	s.types.schemas = make(map[millrace.Fingerprint][]byte)
	err := s.scanNode(nodeType, func(rest, _ []byte) error {
		s.types.types[millrace.ContentType(rest)] = true
		return nil
	})
	if err != nil {
		return err
	}
	return s.scanNode(nodeSchema, func(rest, v []byte) error {
		if len(rest) != 8 {
			return errKey
		}
		s.types.schemas[millrace.Fingerprint(binary.BigEndian.Uint64(rest))] = append([]byte(nil), v...)
		return nil
	})
}

// scanNode visits the node's rows of a kind.
func (s *Store) scanNode(kind byte, visit func(rest, v []byte) error) error {
	return scan(s.db, nodeKey(kind, ""), func(k, v []byte) error { return visit(k[3:], v) })
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
