package cache

import (
	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Held is how much the fat cache has of a content type in a partition.
type Held struct {
	Partition millrace.Partition   // NoPartition: of all keys whose names are too long to be kept
	Type      millrace.ContentType // "": of the types that have no number of their own, see Cache.Held
	Timelines int
	Records   int
}

// NoPartition stands for the partitions of keys whose names are not kept.
const NoPartition millrace.Partition = partition.Count

// Held returns how much the fat cache has now, by partition and type, for those of which it
// has a timeline. The counts are exact. Type is empty for types beyond the first 256 that
// came, and for keys whose names are not kept.
func (c *Cache) Held() (all []Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.mu.held
	for p := range h.of {
		for i, n := range h.of[p] {
			if n.timelines != 0 {
				x := Held{Partition: millrace.Partition(p), Timelines: n.timelines, Records: n.records}
				if i > 0 { // the first has no name
					x.Type = h.types[i]
				}
				all = append(all, x)
			}
		}
	}
	return all
}

// held counts what the fat cache has: by partition, [NoPartition] included, and by the
// number of a type.
type held struct {
	of      [partition.Count + 1][]heldCount
	types   []millrace.ContentType // by number; 0 is for all that have no number of their own
	numbers map[string]int         // the number of each type of types
}

type heldCount struct{ timelines, records int }

// maxHeldTypes is how many types have a number of their own. It bounds the memory of the
// counts, since each partition has a count for each type.
const maxHeldTypes = 256

// count adds timelines and records, which are negative for what leaves, to the counts of a
// key. name is the key's as [appendName] makes it. It counts the fat list only.
func (h *held) count(kind listKind, name []byte, timelines, records int) {
	if kind != fat {
		return
	}
	p, n := NoPartition, 0
	if len(name) > 0 {
		typ, entity := splitName(name)
		p, n = partition.OfBytes(entity), h.number(typ)
	}
	for len(h.of[p]) <= n {
		h.of[p] = append(h.of[p], heldCount{})
	}
	h.of[p][n].timelines += timelines
	h.of[p][n].records += records
}

// number returns the number of a type, and gives it one if it has none. It returns 0 if
// there are no more numbers.
func (h *held) number(typ []byte) int {
	n, ok := h.numbers[string(typ)]
	if ok {
		return n
	}
	if h.numbers == nil {
		h.numbers, h.types = map[string]int{}, []millrace.ContentType{""}
	}
	if len(h.types) > maxHeldTypes {
		return 0
	}
	n = len(h.types)
	h.numbers[string(typ)] = n
	h.types = append(h.types, millrace.ContentType(typ))
	return n
}

// forget sets all counts to zero. Types keep their numbers.
func (h *held) forget() { h.of = [partition.Count + 1][]heldCount{} }
