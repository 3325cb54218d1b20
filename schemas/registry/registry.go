// Package registry holds the schemas that are known, by fingerprint and by
// name. It admits a new schema only if it can read what every earlier one of its name
// wrote, and retires schemas that were a mistake. Package schemas says what a schema, an
// evolution and a family are.
package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

// Store persists a registry.
type Store interface {
	// PutSchema keeps a schema under its fingerprint, with its place in the
	// order of admission. One that is kept already is replaced.
	PutSchema(StoredSchema) error
	// Schemas returns every schema kept, in any order.
	Schemas() ([]StoredSchema, error)
}

// StoredSchema is a schema as a [Store] keeps it.
type StoredSchema struct {
	Fingerprint millrace.Fingerprint
	Order       uint64 // of admission, from 1
	Retired     bool
	JSON        string
}

// Lookup finds a schema by its id in a Confluent registry. An error that is a
// [*schemas.Error] of reason [schemas.UnknownSchema] says that the schema is not there.
// Any other error says that the registry could not be asked.
type Lookup func(ctx context.Context, id uint32) (*schemas.Schema, error)

// Registry holds every schema met, by fingerprint and by name.
// Readers take a [Snapshot] and never wait.
type Registry struct {
	store   Store
	lookup  Lookup // may be nil; see New
	current atomic.Pointer[Snapshot]

	mu struct {
		sync.Mutex                                // held while a schema is admitted or retired, and for each access to confluent
		confluent      map[uint32]*schemas.Schema // by id, schemas that lookup has found
		confluentBytes int                        // how many bytes these take
	}
}

// New returns the registry of what store holds. Without a store (nil)
// it starts empty and forgets when the process ends. Lookup may be nil: then
// Confluent framing is refused as [schemas.UnknownSchema].
func New(store Store, lookup Lookup) (*Registry, error) {
	r := &Registry{store: store, lookup: lookup}
	r.mu.confluent = map[uint32]*schemas.Schema{}
	r.current.Store(&Snapshot{})
	if store == nil {
		return r, nil
	}
	rows, err := store.Schemas()
	if err != nil {
		return nil, fmt.Errorf("schemas: load the registry: %w", err)
	}
	slices.SortFunc(rows, func(a, b StoredSchema) int { return cmp.Compare(a.Order, b.Order) })
	loaded, err := load(rows)
	if err != nil {
		return nil, err
	}
	r.current.Store(loaded)
	return r, nil
}

// load returns the snapshot of what a store keeps, in the order of admission. Each
// family is shaped only when all its schemas are known and which of them are retired: a
// later schema may fit only because an earlier one is retired.
func load(rows []StoredSchema) (*Snapshot, error) {
	all := (&Snapshot{}).clone()
	for _, row := range rows {
		s, err := schemas.Parse([]byte(row.JSON))
		if err != nil {
			return nil, fmt.Errorf("schemas: load %s: %w", row.Fingerprint, err)
		}
		if s.Fingerprint() != row.Fingerprint {
			return nil, fmt.Errorf("schemas: load %s: the text kept there has the fingerprint %s", row.Fingerprint, s.Fingerprint())
		}
		all.add(s)
		if row.Retired {
			all.retired[row.Fingerprint] = true
		}
	}
	for _, name := range all.names {
		if err := all.shape(name); err != nil {
			return nil, fmt.Errorf("schemas: load the schemas of %s: %w", name, err)
		}
	}
	return all, nil
}

// RefusedError says that a schema is refused for what it says: every registry
// that knows the same schemas refuses it too.
type RefusedError struct {
	Schema      string // its name
	Fingerprint millrace.Fingerprint
	Err         error // why
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("schemas: %s %s: %s", e.Schema, e.Fingerprint, e.Err)
}

// Unwrap returns why.
func (e *RefusedError) Unwrap() error { return e.Err }

// StoreError says that a schema could not be kept here and now: nothing is
// wrong with it, and trying again may succeed.
type StoreError struct {
	Schema      string // its name
	Fingerprint millrace.Fingerprint
	Err         error // of the Store
}

func (e *StoreError) Error() string {
	return fmt.Sprintf("schemas: keep %s %s: %s", e.Schema, e.Fingerprint, e.Err)
}

// Unwrap returns the Store's error.
func (e *StoreError) Unwrap() error { return e.Err }

// Admit adds a schema as the latest of its name, and reports whether it was new. A schema
// known already stays as it is. It refuses ([*RefusedError]) a schema that cannot read
// every earlier one of its name that is not retired, one with the fingerprint of another,
// and one with which all together would be larger than [MaxBytes]. The only other error is
// a [*StoreError].
func (r *Registry) Admit(s *schemas.Schema) (added bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Snapshot()
	next, err := now.after(s)
	if err != nil || next == now {
		return false, err
	}
	if r.store != nil {
		row := StoredSchema{Fingerprint: s.Fingerprint(), Order: uint64(len(now.all)) + 1, JSON: s.JSON()}
		if err := r.store.PutSchema(row); err != nil {
			return false, &StoreError{s.Name(), s.Fingerprint(), err}
		}
	}
	r.current.Store(next)
	return true, nil
}

// Retire takes a schema out of what shapes its family: its fields, aliases and
// defaults no longer count, and later schemas need not read what it wrote. Its records
// stay readable. It refuses ([*RefusedError]) a schema that is not known, and the last of
// its name. The only other error is a [*StoreError].
func (r *Registry) Retire(fp millrace.Fingerprint) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Snapshot()
	if now.retired[fp] {
		return nil
	}
	next, err := now.Without(fp)
	if err != nil {
		return err
	}
	s := now.byFP[fp]
	if r.store != nil {
		row := StoredSchema{Fingerprint: fp, Order: uint64(slices.Index(now.all, s)) + 1, JSON: s.JSON(), Retired: true}
		if err := r.store.PutSchema(row); err != nil {
			return &StoreError{s.Name(), fp, err}
		}
	}
	r.current.Store(next)
	return nil
}

// Check returns the [*RefusedError] that Admit would, without admitting.
func (r *Registry) Check(s *schemas.Schema) error {
	_, err := r.Snapshot().after(s)
	return err
}

// after returns the snapshot as it would be once a schema is admitted; s itself if it has
// the schema already. The error is a [*RefusedError].
func (s *Snapshot) after(add *schemas.Schema) (*Snapshot, error) {
	err, next := s.fits(add), s
	if err == nil && s.byFP[add.Fingerprint()] == nil {
		if next, err = s.with(add); err == nil {
			err = next.bounded()
		}
	}
	if err != nil {
		return nil, &RefusedError{add.Name(), add.Fingerprint(), err}
	}
	return next, nil
}

// bounded refuses a snapshot that is too large.
func (s *Snapshot) bounded() error {
	if s.bytes > MaxBytes {
		return fmt.Errorf("with it all schemas together would take %d MiB of memory in every process; at most %d are allowed: leave out fields that nobody reads, docs, and versions that nobody writes", (s.bytes+1<<20-1)>>20, MaxBytes>>20)
	}
	return nil
}

// fits returns why a schema must not be admitted: it cannot read what an earlier schema of
// its name wrote, or another schema has its fingerprint. It returns nil if it may be.
func (s *Snapshot) fits(add *schemas.Schema) error {
	if known := s.ByFingerprint(add.Fingerprint()); known != nil {
		return schemas.CheckSame(known, add)
	}
	for _, old := range s.all {
		if old.Name() == add.Name() && !s.retired[old.Fingerprint()] {
			if err := schemas.CheckEvolution(old, add); err != nil {
				return fmt.Errorf("after %s: %w", old.Fingerprint(), err)
			}
		}
	}
	return nil
}

// Writer returns the schema that a value was written under. An [*schemas.Error] of reason
// [schemas.UnknownSchema] says that nobody knows it. Any other error comes from the
// Confluent registry, and may be gone at the next try. Writer does not admit a schema that
// it finds there.
func (r *Registry) Writer(ctx context.Context, f schemas.Framed) (*schemas.Schema, error) {
	if !f.Confluent {
		if s := r.Snapshot().ByFingerprint(f.Fingerprint); s != nil {
			return s, nil
		}
		return nil, &schemas.Error{Reason: schemas.UnknownSchema, Detail: fmt.Sprintf("no schema has the fingerprint %s", f.Fingerprint)}
	}
	if r.lookup == nil {
		return nil, &schemas.Error{Reason: schemas.UnknownSchema, Detail: fmt.Sprintf("the value names schema %d of a Confluent registry, and none is configured", f.ID)}
	}
	r.mu.Lock()
	s := r.mu.confluent[f.ID]
	r.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := r.lookup(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.confluentBytes += s.Bytes(); r.mu.confluentBytes > MaxBytes { // forget all; schemas in use are looked up again
		clear(r.mu.confluent)
		r.mu.confluentBytes = s.Bytes()
	}
	r.mu.confluent[f.ID] = s
	return s, nil
}

// Snapshot returns the registry as it is now.
func (r *Registry) Snapshot() *Snapshot { return r.current.Load() }

// Snapshot is a registry at one instant. It is immutable.
type Snapshot struct {
	all      []*schemas.Schema // in the order of admission
	byFP     map[millrace.Fingerprint]*schemas.Schema
	retired  map[millrace.Fingerprint]bool
	families map[string]*schemas.Family // by name
	names    []string                   // of families, in the order in which their first schemas were admitted
	bytes    int                        // how much memory all schemas and families take, see MaxBytes
	fields   struct {                   // see Fields
		sync.Once
		names []string
		sum   uint64
	}
}

// MaxBytes bounds the memory of all schemas of a registry together: their texts and
// types, the plans that check and decode their records, and the columns of their
// families. Every process that decodes records needs that much.
const MaxBytes = 256 << 20

// maxFieldsBytes bounds how many bytes the names that [Snapshot.Fields] returns take
// together.
const maxFieldsBytes = 8 << 20

// with returns the snapshot as it is once add is admitted.
func (s *Snapshot) with(add *schemas.Schema) (*Snapshot, error) {
	next := s.clone()
	next.all, next.names = slices.Clip(s.all), slices.Clip(s.names)
	next.add(add)
	return next, next.shape(add.Name())
}

// add puts a schema behind all others of a snapshot that is being made. The caller must call
// shape for its family afterwards.
func (s *Snapshot) add(last *schemas.Schema) {
	s.all = append(s.all, last)
	s.byFP[last.Fingerprint()] = last
	s.bytes += last.Bytes()
	if !slices.Contains(s.names, last.Name()) {
		s.names = append(s.names, last.Name())
	}
}

// Without returns the snapshot as it would be once a schema is retired. It refuses, with a
// [*RefusedError], a schema that is not known, and the last of its name.
func (s *Snapshot) Without(fp millrace.Fingerprint) (*Snapshot, error) {
	old := s.byFP[fp]
	if old == nil {
		return nil, &RefusedError{Fingerprint: fp, Err: errors.New("no schema has this fingerprint")}
	}
	next := s.clone()
	next.retired[fp] = true
	if err := next.shape(old.Name()); err != nil {
		return nil, &RefusedError{old.Name(), fp, err}
	}
	return next, nil
}

func (s *Snapshot) clone() *Snapshot {
	next := &Snapshot{all: s.all, byFP: map[millrace.Fingerprint]*schemas.Schema{}, retired: map[millrace.Fingerprint]bool{}, families: map[string]*schemas.Family{}, names: s.names, bytes: s.bytes}
	maps.Copy(next.byFP, s.byFP)
	maps.Copy(next.retired, s.retired)
	maps.Copy(next.families, s.families)
	return next
}

// shape makes the family of a name anew, from its schemas that are not retired.
func (s *Snapshot) shape(name string) error {
	var of []*schemas.Schema
	for _, x := range s.all {
		if x.Name() == name {
			of = append(of, x)
		}
	}
	f, err := schemas.NewFamily(of, func(x *schemas.Schema) bool { return s.retired[x.Fingerprint()] })
	if err != nil {
		return err
	}
	if was := s.families[name]; was != nil {
		s.bytes -= was.Bytes()
	}
	s.families[name], s.bytes = f, s.bytes+f.Bytes()
	return nil
}

// ByFingerprint returns a schema, or nil.
func (s *Snapshot) ByFingerprint(fp millrace.Fingerprint) *schemas.Schema { return s.byFP[fp] }

// Retired reports whether a schema is retired; see [Registry.Retire].
func (s *Snapshot) Retired(fp millrace.Fingerprint) bool { return s.retired[fp] }

// Family returns the schemas of a full name, or nil.
func (s *Snapshot) Family(name string) *schemas.Family { return s.families[name] }

// Families returns every family, in the order in which their first schemas were
// admitted.
func (s *Snapshot) Families() []*schemas.Family {
	all := make([]*schemas.Family, len(s.names))
	for i, name := range s.names {
		all[i] = s.families[name]
	}
	return all
}

// Decoder returns the decoder of the bodies that a schema wrote into rows of
// its family's layout, or nil if nobody knows the schema.
func (s *Snapshot) Decoder(writer millrace.Fingerprint) *schemas.Decoder {
	w := s.byFP[writer]
	if w == nil {
		return nil
	}
	return s.families[w.Name()].Decoder(w)
}

// Fields returns the names of the fields of all content schemas, each once, sorted, and a
// checksum of them, which is not 0. If the names take more than maxFieldsBytes, it returns no
// names and 0. The caller must not change the slice.
func (s *Snapshot) Fields() (names []string, sum uint64) {
	s.fields.Do(func() {
		names, bytes := map[string]bool{}, 0
		for _, x := range s.all {
			if x.Features() {
				continue
			}
			for _, name := range x.Fields() {
				if !names[name] {
					bytes += len(name)
				}
				names[name] = true
			}
		}
		if bytes <= maxFieldsBytes {
			s.fields.names = slices.Sorted(maps.Keys(names))
			s.fields.sum = sumOf(s.fields.names)
		}
	})
	return s.fields.names, s.fields.sum
}

// sumOf returns a checksum of names. It is never 0, since its lowest bit is always 1.
func sumOf(names []string) uint64 {
	h := sha256.Sum256([]byte(strings.Join(names, "\x00")))
	return binary.LittleEndian.Uint64(h[:]) | 1
}

// All returns every schema in order of admission. The caller must not change
// the slice.
func (s *Snapshot) All() []*schemas.Schema { return s.all }
