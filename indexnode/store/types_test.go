package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
)

// However many content types records have, the node remembers a bounded number
// of names, and that there are more; records of all of them are kept.
func TestTypesAreBounded(t *testing.T) {
	fs := vfs.NewMem()
	s := openMem(t, Options{FS: fs})
	check := func(when string, want int, wantAll bool) {
		t.Helper()
		if types, all := s.Types(); len(types) != want || all != wantAll || len(s.types.types) != want {
			t.Errorf("%s: %d types, %d kept, all: %t; want %d, %t", when, len(types), len(s.types.types), all, want, wantAll)
		}
	}
	stored := func() (n int) {
		for _, c := range nodeCopies {
			rows, err := s.nodeRows(c)
			if err != nil {
				t.Error(err)
			}
			n = 0
			for row := range rows {
				if row[0] == nodeType {
					n++
				}
			}
		}
		return n
	}
	put := func(types int) {
		var b Batch
		for i := range types {
			b.Put(3, typed(i), millrace.Record{ID: "a", Time: 1})
		}
		apply(t, s, &b)
	}
	put(256)
	check("as many as may be", 256, true)
	put(1000)
	check("more", 257, false)
	if n := stored(); n != 257 {
		t.Errorf("%d types are on disk", n)
	}
	if err := s.set(nodeRow(nodeType, "from before"), nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openMem(t, Options{FS: fs})
		check("opened again", 257, false)
		put(1001)
		check("and more", 257, false)
	}
	for _, i := range []int{0, 256, 1000} {
		if got, err := readNewest(s, 3, typed(i), 1); err != nil || len(got.Records) != 1 {
			t.Errorf("type %d: %v, %v", i, got, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func typed(i int) millrace.Timeline {
	return millrace.Timeline{Entity: "member:1", Type: millrace.ContentType(fmt.Sprint("type-", i))}
}

// A partition that comes from another node brings its content types: who asks
// for all of them gets its records.
func TestRestoreBringsTypes(t *testing.T) {
	fs := vfs.NewMem()
	from := openMem(t, Options{FS: fs})
	var b Batch
	b.Put(3, typed(1), millrace.Record{ID: "a", Time: 1})
	b.SetApplied(3, Content, 1)
	apply(t, from, &b)
	c := checkpoint(t, from, 3, "checkpoint")
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	to, err := Open("other", Options{FS: fs, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Restore(context.Background(), "checkpoint", c); err != nil {
		t.Fatal(err)
	}
	if types, all := to.Types(); !all || len(types) != 1 || types[0] != typed(1).Type {
		t.Errorf("%v", types)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
}
