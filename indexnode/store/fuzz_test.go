package store

import (
	"bytes"
	"testing"
)

// FuzzRows decodes any bytes as each of the small rows: they are refused, or
// encode to themselves, or, where numbers may be written longer than needed,
// to what decodes to the same.
func FuzzRows(f *testing.F) {
	f.Add((&partRow{applied: Offsets{4, -1}, digest: Digest{1, 2}, dropped: 3, clock: 4}).encode())
	f.Add((&Features{Version: 3, Time: 4, Schema: 5, Body: []byte("b")}).encode(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, err := decodePartRow(in); err == nil && !bytes.Equal(r.encode(), in) {
			t.Fatalf("partition row %x became %x", in, r.encode())
		}
		if x, err := decodeFeatures("s", in); err == nil {
			if y, err := decodeFeatures("s", x.encode(nil)); err != nil || !equalFeatures([]Features{x}, []Features{y}) {
				t.Fatalf("features %v became %v, %v", x, y, err)
			}
		}
	})
}
