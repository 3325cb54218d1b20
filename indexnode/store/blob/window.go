package blob

import (
	"slices"

	"github.com/millrace/millrace"
)

// Grant is called before a blob is decoded, with how many bytes the blob has. If it
// returns an error, the read ends with that error. A nil Grant allows everything.
type Grant func(bytes int) error

// of calls g with the number of bytes of a blob, unless g is nil.
func (g Grant) of(b *Blob) error {
	if g == nil {
		return nil
	}
	return g(len(b.Buf))
}

// Window picks the live records of a span of time from blobs that come newest
// first.
type Window struct {
	From, To millrace.Time // From is part of the span, To is not
	Most     int           // how many records retention keeps: the newest so many, tombstones counted; 0: all
	Floor    *Floor        // nil: there is none
	Grant    Grant         // nil: every blob may be read
	Skipped  int           // how many records, tombstones counted, were in the blobs that Append has read
}

// Append appends the records of a blob that the window keeps, newest first, sharing the
// blob's memory. The blob has its records oldest first, so Append first makes room in dst for
// all of them, and fills the room from its end. Then it closes the gap that is left at the
// room's beginning by the records that the window does not keep. With an error, no record is
// appended.
func (w *Window) Append(dst []millrace.Record, b *Blob) ([]millrace.Record, error) {
	start, count, schemas := len(dst), b.Count(), b.schemas()
	if count > len(b.Buf)/4 {
		return dst, blobError("%d records in %d bytes", count, len(b.Buf))
	}
	if err := w.Grant.of(b); err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, count)[:start+count]
	first := len(dst)
	for at, i := b.records(), 0; at < len(b.Buf); i++ {
		rec, next, err := b.cut(at)
		if err != nil {
			return dst[:start], err
		}
		at = next
		flags, id, t, rest, err := position(rec)
		if err != nil {
			return dst[:start], err
		}
		if i == count {
			return dst[:start], blobError("more than %d records", count)
		}
		if t >= w.To {
			break
		}
		if t < w.From || flags&recDeleted != 0 || w.Floor.Under(t, id) ||
			w.Most > 0 && w.Skipped+count-1-i >= w.Most {
			continue
		}
		first--
		if err := decodeRest(flags, id, t, rest, schemas, &dst[first]); err != nil {
			return dst[:start], err
		}
	}
	w.Skipped += count
	if first > start {
		n := copy(dst[start:], dst[first:])
		clear(dst[start+n:])
		dst = dst[:start+n]
	}
	return dst, nil
}

// Done reports whether retention keeps no record that is older than those of the blobs that
// Append has read.
func (w *Window) Done() bool { return w.Most > 0 && w.Skipped >= w.Most }
