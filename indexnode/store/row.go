package store

import (
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// Digest is the digest of a partition's two streams: the sum, modulo 2^64, of
// the digests of what was accepted and not replaced since. A sum, so that
// neither the order of application nor the blobs matter; what retention drops
// stays in it, so that neither does the time of sweeps.
type Digest struct{ Content, Features uint64 }

// partRow is a partition's row:
//
//	0  format, 1
//	1  applied content, applied features, digest of content, digest of
//	   features, dropped, clock: 8 bytes each
type partRow struct {
	applied Offsets
	digest  Digest
	dropped uint64        // the part of digest.Content that retention dropped
	clock   millrace.Time // of the log; see Batch.SetClock
}

const (
	partFormat   = 1
	partRowBytes = 1 + 6*8
)

var errRow = errors.New("row")

func (r *partRow) encode() []byte {
	b := append(make([]byte, 0, partRowBytes), partFormat)
	for _, x := range [...]uint64{uint64(r.applied.Content), uint64(r.applied.Features),
		r.digest.Content, r.digest.Features, r.dropped, uint64(r.clock)} {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func decodePartRow(b []byte) (r partRow, err error) {
	if len(b) != partRowBytes || b[0] != partFormat {
		return r, errRow
	}
	x := func(i int) uint64 { return binary.LittleEndian.Uint64(b[1+8*i:]) }
	r.applied = Offsets{millrace.Offset(x(0)), millrace.Offset(x(1))}
	r.digest = Digest{x(2), x(3)}
	r.dropped = x(4)
	r.clock = millrace.Time(x(5))
	if r.applied.Content < -1 || r.applied.Features < -1 {
		return r, errRow
	}
	return r, nil
}

// A features row: format, version and time (varint), schema (8 bytes), body.
const featuresFormat = 1

func (f *Features) encode(dst []byte) []byte {
	dst = binary.AppendVarint(append(dst, featuresFormat), f.Version)
	dst = binary.AppendVarint(dst, int64(f.Time))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(f.Schema))
	return append(dst, f.Body...)
}

// decodeFeatures reads a row; it shares b's memory.
func decodeFeatures(subject string, b []byte) (f Features, err error) {
	if len(b) == 0 || b[0] != featuresFormat {
		return f, errRow
	}
	b = b[1:]
	version, w := binary.Varint(b)
	if w <= 0 {
		return f, errRow
	}
	b = b[w:]
	at, w := binary.Varint(b)
	if w <= 0 || len(b)-w < 8 {
		return f, errRow
	}
	b = b[w:]
	return Features{Subject: subject, Version: version, Time: millrace.Time(at),
		Schema: millrace.Fingerprint(binary.LittleEndian.Uint64(b)), Body: b[8:len(b):len(b)]}, nil
}

func featuresDigest(e millrace.Entity, f *Features) uint64 {
	return blob.DigestOf(xxhash.Sum64String(string(e)), xxhash.Sum64String(f.Subject), uint64(f.Version),
		uint64(f.Time), uint64(f.Schema), xxhash.Sum64(f.Body))
}

// An id row: the time of the record, varint.
func (r idRow) encode() []byte { return binary.AppendVarint(nil, int64(r.at)) }

func decodeIDRow(b []byte) (idRow, error) {
	at, w := binary.Varint(b)
	if w <= 0 || w != len(b) {
		return idRow{}, errRow
	}
	return idRow{millrace.Time(at), true}, nil
}
