package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace"
)

// A chain is the metadata of a timeline's older blobs, all but the head. Its
// row exists from the first rename of a head on, and keeps the suffix counter.
//
//	0   format, 1
//	1   flags: 1 = a floor stands at the end
//	2   the next suffix, uint32
//	6   number of links, uint32
//	10  stale id rows that trimming left, uint32
//	14  the links, oldest first, 32 bytes each:
//	    suffix, count (uint32), oldest, newest (int64), digest (uint64)
//	    the floor: time (int64), id
//
// The width is fixed so that a reader searches the row without decoding it.
type chain struct {
	next  uint32 // suffix of the next blob; only rises
	stale uint32 // id rows that trimming left for the sweep
	links []link // oldest first
	floor *floor
}

type link struct {
	suffix, count  uint32
	oldest, newest millrace.Time
	digest         uint64
}

// floor is the oldest position that retention by count keeps, once a record
// left from among the counted.
type floor struct {
	time millrace.Time
	id   millrace.RecordID
}

// under reports whether a position is older than the floor.
func (f *floor) under(t millrace.Time, id millrace.RecordID) bool {
	return f != nil && newer(f.time, f.id, t, id)
}

const (
	chainFormat = 1
	chainHeader = 14
	linkBytes   = 32
)

var errChain = errors.New("chain")

func (c *chain) encode(dst []byte) []byte {
	var flags byte
	if c.floor != nil {
		flags = 1
	}
	dst = append(dst, chainFormat, flags)
	dst = binary.LittleEndian.AppendUint32(dst, c.next)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(c.links)))
	dst = binary.LittleEndian.AppendUint32(dst, c.stale)
	for _, l := range c.links {
		dst = binary.LittleEndian.AppendUint32(dst, l.suffix)
		dst = binary.LittleEndian.AppendUint32(dst, l.count)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(l.oldest))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(l.newest))
		dst = binary.LittleEndian.AppendUint64(dst, l.digest)
	}
	if c.floor != nil {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(c.floor.time))
		dst = append(dst, c.floor.id...)
	}
	return dst
}

func decodeChain(b []byte) (*chain, error) {
	if len(b) < chainHeader || b[0] != chainFormat || b[1] > 1 {
		return nil, fmt.Errorf("%w: header", errChain)
	}
	c := &chain{next: binary.LittleEndian.Uint32(b[2:]), stale: binary.LittleEndian.Uint32(b[10:])}
	n := int(binary.LittleEndian.Uint32(b[6:]))
	rest := b[chainHeader:]
	if n > len(rest)/linkBytes {
		return nil, fmt.Errorf("%w: %d links in %d bytes", errChain, n, len(rest))
	}
	c.links = make([]link, n, n+4)
	for i := range c.links {
		l := decodeLink(rest[i*linkBytes:])
		if l.suffix >= c.next || l.oldest > l.newest || l.count == 0 || i > 0 && c.links[i-1].newest > l.oldest {
			return nil, fmt.Errorf("%w: link %d", errChain, i)
		}
		c.links[i] = l
	}
	rest = rest[n*linkBytes:]
	switch {
	case b[1] == 0 && len(rest) == 0:
	case b[1] == 1 && len(rest) >= 8:
		c.floor = &floor{millrace.Time(binary.LittleEndian.Uint64(rest)), millrace.RecordID(rest[8:])}
	default:
		return nil, fmt.Errorf("%w: %d bytes behind the links", errChain, len(rest))
	}
	return c, nil
}

func decodeLink(b []byte) link {
	return link{
		suffix: binary.LittleEndian.Uint32(b),
		count:  binary.LittleEndian.Uint32(b[4:]),
		oldest: millrace.Time(binary.LittleEndian.Uint64(b[8:])),
		newest: millrace.Time(binary.LittleEndian.Uint64(b[16:])),
		digest: binary.LittleEndian.Uint64(b[24:]),
	}
}
