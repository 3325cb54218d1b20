package blob

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace"
)

// A chain is the metadata of a timeline's older blobs. These are all of its blobs except the
// head, which has the newest records. When a head is full, it becomes an older blob, under a
// key that ends in a suffix, and a new head begins. The first time that this happens, the
// chain's row is written, which also keeps the counter of suffixes.
//
//	0   format, 1
//	1   flags: 1 = a floor stands at the end
//	2   the next suffix, uint32
//	6   number of links, uint32
//	10  number of stale id rows, uint32; see Stale
//	14  the links, oldest first, 32 bytes each:
//	    suffix, count (uint32), oldest, newest (int64), digest (uint64)
//	    the floor: time (int64), id
//
// The width of a link is fixed, so that a reader can search the row without decoding it.
type Chain struct {
	Next  uint32 // suffix of the next blob; only rises
	Stale uint32 // how many id rows, which say in which blob an older record is, are of dropped blobs; the next sweep removes them
	Links []Link // oldest first
	Floor *Floor // nil: there is none
}

// Link is the metadata of an older blob.
type Link struct {
	Suffix, Count  uint32        // Count is the number of its records, 1 or more
	Oldest, Newest millrace.Time // the times of its oldest and its newest record
	Digest         uint64        // see [Blob.Digest]
}

// Floor is the oldest position that retention by count keeps. It is set once one of the
// records that retention counted is gone: without it, an older record, which retention had
// dropped already, would come back in that record's place.
type Floor struct {
	Time millrace.Time
	ID   millrace.RecordID
}

// Under reports whether a position is older than the floor.
func (f *Floor) Under(t millrace.Time, id millrace.RecordID) bool {
	return f != nil && Newer(f.Time, f.ID, t, id)
}

const (
	chainFormat = 1
	chainHeader = 14
	LinkBytes   = 32 // of a chain, for each link
)

// ErrChain is the error for a row that is no chain; match it with errors.Is.
var ErrChain = errors.New("chain")

// Encode appends the chain to dst, as the row that [DecodeChain] reads.
func (c *Chain) Encode(dst []byte) []byte {
	var flags byte
	if c.Floor != nil {
		flags = 1
	}
	dst = append(dst, chainFormat, flags)
	dst = binary.LittleEndian.AppendUint32(dst, c.Next)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(c.Links)))
	dst = binary.LittleEndian.AppendUint32(dst, c.Stale)
	for _, l := range c.Links {
		dst = binary.LittleEndian.AppendUint32(dst, l.Suffix)
		dst = binary.LittleEndian.AppendUint32(dst, l.Count)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(l.Oldest))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(l.Newest))
		dst = binary.LittleEndian.AppendUint64(dst, l.Digest)
	}
	if c.Floor != nil {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(c.Floor.Time))
		dst = append(dst, c.Floor.ID...)
	}
	return dst
}

// DecodeChain reads a chain, and refuses one that contradicts itself. It keeps nothing of b.
func DecodeChain(b []byte) (*Chain, error) {
	if len(b) < chainHeader || b[0] != chainFormat || b[1] > 1 {
		return nil, fmt.Errorf("%w: header", ErrChain)
	}
	c := &Chain{Next: binary.LittleEndian.Uint32(b[2:]), Stale: binary.LittleEndian.Uint32(b[10:])}
	n := int(binary.LittleEndian.Uint32(b[6:]))
	rest := b[chainHeader:]
	if n > len(rest)/LinkBytes {
		return nil, fmt.Errorf("%w: %d links in %d bytes", ErrChain, n, len(rest))
	}
	c.Links = make([]Link, n, n+4)
	for i := range c.Links {
		l := decodeLink(rest[i*LinkBytes:])
		if l.Suffix >= c.Next || l.Oldest > l.Newest || l.Count == 0 || i > 0 && c.Links[i-1].Newest > l.Oldest {
			return nil, fmt.Errorf("%w: link %d", ErrChain, i)
		}
		c.Links[i] = l
	}
	rest = rest[n*LinkBytes:]
	switch {
	case b[1] == 0 && len(rest) == 0:
	case b[1] == 1 && len(rest) >= 8:
		c.Floor = &Floor{millrace.Time(binary.LittleEndian.Uint64(rest)), millrace.RecordID(rest[8:])}
	default:
		return nil, fmt.Errorf("%w: %d bytes behind the links", ErrChain, len(rest))
	}
	return c, nil
}

func decodeLink(b []byte) Link {
	return Link{
		Suffix: binary.LittleEndian.Uint32(b),
		Count:  binary.LittleEndian.Uint32(b[4:]),
		Oldest: millrace.Time(binary.LittleEndian.Uint64(b[8:])),
		Newest: millrace.Time(binary.LittleEndian.Uint64(b[16:])),
		Digest: binary.LittleEndian.Uint64(b[24:]),
	}
}

// LinkOf returns the metadata of a blob that is not empty, and that Open or Encode made.
func LinkOf(suffix uint32, b *Blob) Link {
	oldest, _ := b.Oldest()
	newest, _ := b.Newest()
	return Link{Suffix: suffix, Count: uint32(b.Count()), Oldest: oldest, Newest: newest, Digest: b.Digest()}
}
