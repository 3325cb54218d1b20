package tally

import (
	"maps"
	"testing"
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
// same, since numbers may be written longer than needed.
func FuzzRow(f *testing.F) {
	flows, of := NewFlows(256), State{7, 8}
	c := flows.Begin(true)
	c.Of("post").Counts = Counts{1, 2, 3, 4, -5, 6, 7, 8}
	c.Of("")
	f.Add(c.Encode(of))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := flows.decode(in, of)
		if err != nil {
			return
		}
		again, err := flows.decode(flows.Read(in, true, of).Encode(of), of)
		if err != nil || !maps.Equal(c, again) {
			t.Fatalf("counts %v became %v: %v", c, again, err)
		}
	})
}
