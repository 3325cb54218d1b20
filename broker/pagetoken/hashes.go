package pagetoken

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// Hashes are spread evenly over 64 bits, so the gaps between n of them in ascending order
// are about 2^64/n. Each gap is written in Rice code. The part above its low bits is a
// small number, 0.6 to 1.5 on average: it is written first, as that many ones and a zero.
// The low bits, about 64-log2(n) of them, follow as they are. A thousand hashes take about
// 56 bits each.

// appendHashes appends the count of some ascending hashes to b, and then the hashes.
func appendHashes(b []byte, hashes []uint64) []byte {
	b = binary.AppendUvarint(b, uint64(len(hashes)))
	w := bitWriter{b: b}
	low := lowBits(len(hashes))
	last := uint64(0)
	for _, h := range hashes {
		gap := h - last
		last = h
		for range gap >> low {
			w.write(1, 1)
		}
		w.write(0, 1)
		w.write(gap&(1<<low-1), low)
	}
	return w.b
}

// lowBits returns how many low bits of each gap between n hashes are written as they are.
// For a single hash it is 63: its top bit alone is written in ones and a zero.
func lowBits(n int) int { return 64 - max(1, bits.Len(uint(n))) }

// decodeHashes reads what appendHashes wrote, which must be all of b. It refuses more than
// twice [MaxServed] hashes: the last page may go beyond MaxServed, by less than a page.
func decodeHashes(b []byte) ([]uint64, error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > 2*MaxServed {
		return nil, errors.New("it holds no count of hashes")
	}
	r := bitReader{b: b[k:]}
	low := lowBits(int(n))
	hashes := make([]uint64, n)
	last := uint64(0)
	for i := range hashes {
		high := uint64(0)
		for r.read(1) == 1 {
			high++
		}
		gap := high<<low | r.read(low)
		if r.bad || high > 1<<(64-low)-1 || last+gap < last {
			return nil, errors.New("its hashes are damaged")
		}
		last += gap
		hashes[i] = last
	}
	if r.left() >= 8 {
		return nil, errors.New("it goes on behind its hashes")
	}
	return hashes, nil
}

// bitWriter appends bits, highest first within a byte.
type bitWriter struct {
	b    []byte
	free int // unused bits of the last byte
}

// write appends the low n bits of v.
func (w *bitWriter) write(v uint64, n int) {
	for n > 0 {
		if w.free == 0 {
			w.b = append(w.b, 0)
			w.free = 8
		}
		take := min(n, w.free)
		chunk := byte(v >> (n - take) & (1<<take - 1))
		w.b[len(w.b)-1] |= chunk << (w.free - take)
		w.free -= take
		n -= take
	}
}

// bitReader reads what a bitWriter wrote.
type bitReader struct {
	b   []byte
	at  int  // bits read
	bad bool // a read asked for more bits than are left; that read and all later ones return 0
}

// left returns how many bits are not read yet.
func (r *bitReader) left() int { return 8*len(r.b) - r.at }

// read returns the next n bits, n up to 64.
func (r *bitReader) read(n int) (v uint64) {
	if r.bad = r.bad || n > r.left(); r.bad {
		return 0
	}
	for n > 0 {
		free := 8 - r.at%8
		take := min(n, free)
		v = v<<take | uint64(r.b[r.at/8]>>(free-take)&(1<<take-1))
		r.at += take
		n -= take
	}
	return v
}
