package cache

import (
	"slices"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/ahead"
)

// Lookup appends to dst the cached timeline of each type of each entity, entity by entity:
// [Empty] if it is known to be empty, nil if it is not cached. It sees all writes that
// ended before it began. It marks what it finds as touched, and counts hits and misses.
//
// It works in batches: it asks the processor to load the cache lines of one batch, and
// reads those of the batch before while they are on their way.
func (r Reader) Lookup(dst []*Timeline, entities []millrace.Entity, types []millrace.ContentType) []*Timeline {
	var (
		few      [16]id
		typs     = few[:0]
		names    [batchKeys]id
		batches  [2]batch
		now, was = &batches[0], &batches[1]
	)
	for _, typ := range types {
		typs = append(typs, r.c.seeds.part(string(typ)).turned())
	}
	start, n := len(dst), len(entities)*len(types)
	dst = slices.Grow(dst, n)[:start+n]
	l := lookup{table: r.c.index.table.Load(), types: types, found: dst[start:]}
	for at := 0; at < len(entities); at += batchKeys {
		some := entities[at:min(at+batchKeys, len(entities))]
		r.c.seeds.parts(&names, some)
		for i, typ := range typs {
			now.n, now.typ, now.first = len(some), i, at*len(types)+i
			l.table.locate(now, &names, typ)
			l.read(was)
			now, was = was, now
		}
	}
	l.read(was)
	l.readLate()
	r.c.count(&l)
	return dst
}

// batchKeys is how many keys are in a batch: about as many cache lines as a core can load
// at a time.
const batchKeys = 16

// batch is the keys of one type and of up to [batchKeys] consecutive entities.
type batch struct {
	tags, checks [batchKeys]uint64  // of the keys' ids
	in           [batchKeys]*bucket // the keys' own buckets, in which the search for them begins
	n, typ       int                // how many keys, and the index of their type in lookup.types
	first        int                // the index of the first key's answer in lookup.found
}

// locate makes the ids of a batch from the parts of its names and type, finds their
// buckets, and asks the processor to load these.
func (t *table) locate(b *batch, names *[batchKeys]id, typ id) {
	buckets, mask := unsafe.Pointer(unsafe.SliceData(t.buckets)), t.mask
	for i := range uint(b.n) {
		k := join(names[i%batchKeys], typ)
		b.tags[i%batchKeys], b.checks[i%batchKeys] = k.tag, k.check
		in := unsafe.Add(buckets, (home(k.tag)&mask)*uint64(bucketBytes))
		b.in[i%batchKeys] = (*bucket)(in)
		ahead.Lines(in, 1)
	}
}

// match finds the value of each key whose slot is in the key's own bucket. It sets odd to 0
// for a key that is there and has the bit touched already. No branch depends on which
// slot of the bucket a key has, since the processor could not predict that.
func (b *batch) match(values, odd *[batchKeys]uint64) {
	for i, in := range b.in[:b.n] {
		tag := b.tags[uint(i)%batchKeys]
		t, v := in[0].tag.Load(), in[0].value.Load()
		t1, v1 := in[1].tag.Load(), in[1].value.Load()
		t2, v2 := in[2].tag.Load(), in[2].value.Load()
		t3, v3 := in[3].tag.Load(), in[3].value.Load()
		if t1 == tag {
			t, v = t1, v1
		}
		if t2 == tag {
			t, v = t2, v2
		}
		if t3 == tag {
			t, v = t3, v3
		}
		values[uint(i)%batchKeys] = v
		odd[uint(i)%batchKeys] = t ^ tag | (v^b.checks[uint(i)%batchKeys])&(checkBits|touched)
	}
}

// lookup is the state of one call of Lookup.
type lookup struct {
	table *table
	types []millrace.ContentType
	found []*Timeline // the answers
	hits  [listKinds]uint64

	misses, featureMisses uint64 // keys of timelines, and of features, that are not cached

	late struct { // the n keys that read has left for readLate
		keys [lateKeys]id
		at   [lateKeys]int // the indexes of their answers in found
		n    uint
	}
}

// lateKeys is how many keys lookup.late has room for. read has readLate empty it once it may
// have no room for a whole batch more.
const lateKeys = 4 * batchKeys

// read answers the keys of a batch that are in their own buckets and have the bit touched.
// Those are nearly all keys that are asked for. It leaves the others for readLate.
func (l *lookup) read(b *batch) {
	var values, odd [batchKeys]uint64
	b.match(&values, &odd)
	var known, empty, late uint64
	none := uint64(uintptr(unsafe.Pointer(Empty)))
	at := b.first
	for i := range uint(b.n) {
		v := values[i%batchKeys]
		if odd[i%batchKeys] != 0 {
			v = 0
			n := l.late.n
			l.late.keys[n%lateKeys] = id{b.tags[i%batchKeys], b.checks[i%batchKeys]}
			l.late.at[n%lateKeys] = at
			l.late.n++
			late++
		}
		tl := v & address
		if v&isEmpty != 0 {
			tl = none
		}
		empty += v & isEmpty
		if tl != 0 {
			known++
		}
		l.found[at] = timelineAt(uintptr(tl))
		at += len(l.types)
	}
	l.add(b.typ, known, empty/isEmpty, uint64(b.n)-late-known)
	if l.late.n > lateKeys-batchKeys {
		l.readLate()
	}
}

// readLate answers the keys that read has left, with nil for now. Most of those are in the
// bucket after their own, so it asks the processor to load these first.
func (l *lookup) readLate() {
	t, keys := l.table, l.late.keys[:l.late.n]
	for _, k := range keys {
		ahead.Lines(unsafe.Pointer(&t.buckets[(home(k.tag)+1)&t.mask]), 1)
	}
	for i, k := range keys {
		at := l.late.at[i]
		if s := t.find(k); s >= 0 {
			l.found[at] = t.slot(s).touch()
		}
		switch typ := at % len(l.types); l.found[at] {
		case nil:
			l.add(typ, 0, 0, 1)
		case Empty:
			l.add(typ, 1, 1, 0)
		default:
			l.add(typ, 1, 0, 0)
		}
	}
	l.late.n = 0
}

// add counts look-ups of a type: known of them found something, empty of those found Empty,
// and unknown found nothing.
func (l *lookup) add(typ int, known, empty, unknown uint64) {
	if len(l.types) == 0 {
		return
	}
	if isFeatures(l.types[typ]) {
		l.hits[features] += known
		l.featureMisses += unknown
		return
	}
	l.hits[skinny] += empty
	l.hits[fat] += known - empty
	l.misses += unknown
}

// count adds the hits and misses of a look-up that has ended to the cache's counts.
func (c *Cache) count(l *lookup) {
	for kind, n := range l.hits {
		c.hits[kind].Add(n)
	}
	c.misses.Add(l.misses)
	c.featureMisses.Add(l.featureMisses)
}
