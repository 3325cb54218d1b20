package timeline

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// FuzzKey cuts any bytes as a key: they are refused, or build the same key.
func FuzzKey(f *testing.F) {
	prefix := Prefix(7, millrace.Timeline{Entity: "member:1", Type: "post"})
	for _, k := range [][]byte{HeadKey(prefix), ChainKey(prefix), OlderKey(prefix, 9), filterKey(prefix), idKey(prefix, "id")} {
		f.Add(bytes.Clone(k))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		name, n, rest, err := CutKey(in)
		if err != nil {
			return
		}
		p := millrace.Partition(in[0])<<8 | millrace.Partition(in[1])
		if got := append(Prefix(p, name), rest...); !bytes.Equal(got, in) || n+len(rest) != len(in) {
			t.Fatalf("%x became %x", in, got)
		}
	})
}

// A key that lacks an end, or has more, is refused; but for that of an id row, whose id may be any.
func TestABadKeyIsRefused(t *testing.T) {
	prefix := slices.Clip(Prefix(7, millrace.Timeline{Entity: "member:1", Type: "post"}))
	for _, k := range [][]byte{HeadKey(prefix), ChainKey(prefix), OlderKey(prefix, 9), filterKey(prefix), append(prefix, PartID+1)} {
		for n := range k {
			if name, _, _, err := CutKey(k[:n]); !errors.Is(err, blob.ErrKey) {
				t.Errorf("%x is of %v, %v", k[:n], name, err)
			}
		}
		if name, _, _, err := CutKey(append(k, 0)); !errors.Is(err, blob.ErrKey) {
			t.Errorf("%x is of %v, %v", append(k, 0), name, err)
		}
	}
}

// FuzzIDRow decodes any bytes: they are refused, or, as numbers may be written
// longer than needed, encode to what decodes to the same.
func FuzzIDRow(f *testing.F) {
	f.Add(IDRow{At: 77}.encode())
	f.Fuzz(func(t *testing.T, in []byte) {
		if x, err := DecodeIDRow(in); err == nil {
			if y, err := DecodeIDRow(x.encode()); err != nil || x != y {
				t.Fatalf("id row %v became %v, %v", x, y, err)
			}
		}
	})
}
