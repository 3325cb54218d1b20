package blob

import (
	"slices"

	"github.com/millrace/millrace"
)

// Grant is called before a blob is read, with its bytes. Its error ends the read. A nil Grant
// allows everything.
type Grant func(bytes int) error

// of asks for the bytes of a blob.
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
	Most     int           // how many records retention keeps, the newest, deleted ones counted; 0: all
	Floor    *Floor
	Grant    Grant
	Skipped  int // how many records, deleted or not, the blobs so far had
}

// Append appends the records of a blob that the window keeps, newest first, sharing the
// blob's memory. It fills the room for all of them from behind, then closes the gap that
// those left out leave. With an error dst is as it was.
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

// Done reports whether retention keeps nothing that is older than the blobs so far.
func (w *Window) Done() bool { return w.Most > 0 && w.Skipped >= w.Most }
