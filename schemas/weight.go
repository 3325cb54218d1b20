package schemas

import "fmt"

// MaxBytes bounds all schemas of a registry together, in bytes of what is made
// of them: their texts and types, the plans that check and decode their
// records, and the columns of their families. Every process that decodes
// records keeps it.
const MaxBytes = 256 << 20

// What a part of a compiled schema counts, in bytes. It is counted and not
// measured, so that all nodes of a cluster refuse the same schema; a test holds
// the sum against the heap.
const (
	textWeight   = 12  // a byte of text: it stays, and names and types are made of it
	stepWeight   = 160 // a step of a plan, beside its path and default
	columnWeight = 200 // a column of a layout, beside its name
	symbolWeight = 24  // a symbol of an enum, for each pair of writer and reader
	planWeight   = 24  // a plan within a step
)

func (s *Schema) weigh() int {
	n := textWeight*len(s.json) + s.envelope.weigh(map[*[]byte]bool{})
	for _, c := range s.layout.Fields() {
		n += columnWeight + len(c.Name)
	}
	return n
}

// weigh is of a family without its schemas.
func (f *Family) weigh() int {
	n := 0
	for _, c := range f.layout.Fields() {
		n += columnWeight + len(c.Name)
	}
	for _, d := range f.decoders {
		n += d.plan.weigh(map[*[]byte]bool{})
	}
	return n
}

// weigh counts tables of symbols once, which are shared.
func (p plan) weigh(met map[*[]byte]bool) (n int) {
	for i := range p {
		s := &p[i]
		n += stepWeight + len(s.path) + len(s.def)
		if len(s.syms) > 0 && !met[&s.syms[0]] {
			met[&s.syms[0]] = true
			n += symbolWeight * len(s.syms)
		}
		for _, sub := range s.subs {
			n += planWeight + sub.weigh(met)
		}
	}
	return n
}

// bounded refuses a snapshot that is too large.
func (s *Snapshot) bounded() error {
	if s.bytes > MaxBytes {
		return fmt.Errorf("with it all schemas together would take %d MiB of memory in every process; at most %d are allowed: leave out fields that nobody reads, docs, and versions that nobody writes", (s.bytes+1<<20-1)>>20, MaxBytes>>20)
	}
	return nil
}
