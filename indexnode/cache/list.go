package cache

import "github.com/millrace/millrace"

// listKind is which of the caches an entry belongs to: fat has the records of timelines,
// skinny the keys of timelines without any, and features the features of entities and
// objects.
type listKind uint8

const (
	fat listKind = iota
	skinny
	features
	listKinds // how many kinds there are
)

// kindOf returns which list the key t belongs to while it has the timeline tl.
func kindOf(t millrace.Timeline, tl *Timeline) listKind {
	switch {
	case isFeatures(t.Type):
		return features
	case tl.records == 0:
		return skinny
	}
	return fat
}

// isOf reports whether a timeline that was found by a tag of a list belongs to that list. A
// tag may move between fat and skinny, but features always stay in their own list.
func isOf(kind listKind, tl *Timeline) bool {
	return kind == features || (kind == skinny) == (tl.records == 0)
}

// weightOf returns what an entry adds to the size of its list that Stats reports: its
// records in fat, 1 key in skinny, and its rows, but at least 1, in features.
func weightOf(kind listKind, tl *Timeline) int {
	if kind == skinny {
		return 1
	}
	return max(1, tl.Len())
}

func isFeatures(t millrace.ContentType) bool { return t == Features || t == Objects }

// list is the keys of one kind in the order of their eviction, and what they take.
type list struct {
	order     order
	weight    int // the sum of weightOf
	bytes     int // what the timelines and their keys take, in bytes
	evictions uint64
	door      doorkeeper // see Cache.Fill
}

// newList returns an empty list. Its order has no bound: the cache bounds the bytes of all
// lists.
func newList() list { return list{order: newOrder()} }

// doorkeeper remembers roughly which keys lately found no room. It is a Bloom filter with
// two bits for each key, which is emptied when a quarter of its bits may be set. A key
// is admitted when it asks for the second time.
type doorkeeper struct {
	bits    []uint64
	members int // keys that were remembered since the filter was emptied
}

const (
	minDoorBits   = 1 << 12
	bitsPerMember = 16 // the least number of bits for each key of the list
)

// seen reports whether k asked before, and remembers it. entries is how many keys the list
// has, which sets the size of the filter when it is emptied.
func (d *doorkeeper) seen(k id, entries int) bool {
	if d.bits == nil || d.members > len(d.bits)*64/8 {
		d.forget(entries)
	}
	mask := uint64(len(d.bits)*64 - 1)
	a, b := k.tag&mask, k.check&mask
	if d.has(a) && d.has(b) {
		return true
	}
	d.bits[a/64] |= 1 << (a % 64)
	d.bits[b/64] |= 1 << (b % 64)
	d.members++
	return false
}

func (d *doorkeeper) has(bit uint64) bool { return d.bits[bit/64]&(1<<(bit%64)) != 0 }

// forget empties the filter, and makes it as large as entries keys need.
func (d *doorkeeper) forget(entries int) {
	bits := minDoorBits
	for bits < entries*bitsPerMember {
		bits *= 2
	}
	if len(d.bits)*64 != bits {
		d.bits = make([]uint64, bits/64)
	} else {
		clear(d.bits)
	}
	d.members = 0
}
