package tally

import (
	"bytes"
	"encoding/binary"
	"maps"
	"testing"

	"github.com/millrace/millrace"
)

func TestRow(t *testing.T) {
	flows := NewFlows(2)
	c := flows.Begin(true)
	c.Of("post").Counts = Counts{1, 2, 3, 4, -5, 6, 7, 8}
	of := State{7, 8}
	row := c.Encode(of)
	if got, err := flows.decode(row, of); err != nil || len(got) != 1 || got["post"] != (Counts{1, 2, 3, 4, -5, 6, 7, 8}) {
		t.Fatalf("%+v: %v", got, err)
	}
	for n := range row {
		if got, err := flows.decode(row[:n], of); err == nil {
			t.Errorf("%d bytes are read as %v", n, got)
		}
	}
	if _, err := flows.decode(append(row, 0), of); err == nil {
		t.Error("more is read")
	}
	if _, err := flows.decode(row, State{7, 9}); err == nil {
		t.Error("counts of another state are read")
	}
}

// FuzzRow decodes any bytes: they are refused, or encode to what decodes to the
// same, since numbers may be written longer than needed. What is accepted has as many
// types as it says, no more than a tally tells apart, and nothing is cut or added
// unseen.
func FuzzRow(f *testing.F) {
	const most = 4
	flows, of := NewFlows(most), State{7, 8}
	row := func(types ...millrace.ContentType) []byte {
		c := NewFlows(100).Begin(true)
		for _, t := range types {
			c.Of(t).Counts = Counts{1, 2, 3, 4, -5, 6, 7, 8}
		}
		return c.Encode(of)
	}
	f.Add(row())
	f.Add(row("post", ""))
	f.Add(row("1", "2", "3", "4", ""))
	f.Add(row("1", "2", "3", "4", "5", ""))
	f.Add(append(row("post"), 0))
	f.Add(bytes.Replace(row("a", "b"), []byte("\x01b"), []byte("\x01a"), 1)) // one type twice
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := flows.decode(in, of)
		if err != nil {
			return
		}
		if n, _ := binary.Uvarint(in[17:]); int(n) != len(c) || n > most+1 {
			t.Fatalf("%d types of %d are read", len(c), n)
		}
		again, err := flows.decode(flows.Read(in, true, of).Encode(of), of)
		if err != nil || !maps.Equal(c, again) {
			t.Fatalf("counts %v became %v: %v", c, again, err)
		}
		for n := range in {
			if _, err := flows.decode(in[:n], of); err == nil {
				t.Fatalf("%d bytes of %d are read", n, len(in))
			}
		}
		if _, err := flows.decode(append(in[:len(in):len(in)], 0), of); err == nil {
			t.Fatal("a byte more is read")
		}
	})
}
