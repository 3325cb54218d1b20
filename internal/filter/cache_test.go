package filter

import (
	"fmt"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

func TestCache(t *testing.T) {
	l := mustLayout(t, []column.Field{{Name: "i", Kind: column.Int}})
	c := NewCache(expr.Env{Record: []*column.Layout{l}}, 4)
	compile := func(src string) *Filter {
		f, err := c.Compile(src)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := compile("record.i > 0")
	for i := range 3 {
		compile(fmt.Sprintf("record.i > %d", i+1))
	}
	if compile("record.i > 0") != first {
		t.Error("a filter among the last four is compiled again")
	}
	for i := range 100 {
		compile(fmt.Sprintf("record.i > %d", i+10))
		if n := len(c.mu.young) + len(c.mu.old); n > 8 {
			t.Fatalf("%d filters are kept", n)
		}
	}
	if compile("record.i > 0") == first {
		t.Error("a filter not used for long is kept")
	}
	if _, err := c.Compile("record.x > 0"); err == nil {
		t.Error("a bad filter compiles")
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				if _, err := c.Compile(fmt.Sprintf("record.i > %d", i%7+g)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
