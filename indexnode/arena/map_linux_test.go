//go:build linux && !race

package arena

import (
	"testing"

	"golang.org/x/sys/unix"
)

// gone reports whether memory is not mapped any more.
func gone(b []byte) bool { return unix.Madvise(b, unix.MADV_NORMAL) == unix.ENOMEM }

// Memory that an arena does not count any more is not mapped: of large blocks and blocks
// apart, of mappings that are free, and of all that there is when it is closed.
func TestMemoryIsUnmapped(t *testing.T) {
	a := New()
	whole := func(b []byte) []byte { return b[:len(b)/hugeBytes*hugeBytes] }
	large, apart := whole(a.Alloc(chunkBytes)), whole(a.AllocApart(chunkBytes))
	var chunks [][]byte
	for range 4 * chunkBytes / largeBytes {
		chunks = append(chunks, whole(a.Alloc(largeBytes)))
	}
	if gone(large) || gone(apart) || gone(chunks[0]) {
		t.Fatal("what is in use is not mapped")
	}
	a.Free(large)
	a.RetireApart(apart)
	for range 3 {
		a.mu.Lock()
		a.advance()
		a.mu.Unlock()
	}
	if !gone(large) || !gone(apart) {
		t.Error("a block of its own is mapped still")
	}
	unmapped := func() (n int) {
		for _, b := range chunks {
			if gone(b) {
				n++
			}
		}
		return n
	}
	const each = chunkBytes / largeBytes
	for _, b := range chunks[:3*each] { // of four mappings, one is kept free beside the one in use
		a.Free(b)
	}
	if n := unmapped(); n != 2*each {
		t.Errorf("%d blocks are unmapped, want those of two mappings, %d", n, 2*each)
	}
	a.Limit(a.Stats().Mapped) // a block needs what is free
	more := whole(a.Alloc(chunkBytes))
	if n := unmapped(); n != 3*each || gone(more) {
		t.Errorf("%d blocks are unmapped, want those of three mappings", n)
	}
	apart = whole(a.AllocApart(chunkBytes))
	a.Close()
	if n := unmapped(); n != 4*each || !gone(more) || !gone(apart) || a.Stats() != (Stats{}) {
		t.Errorf("%d of %d blocks are unmapped after the end: %+v", n, 4*each, a.Stats())
	}
	a.Close()
	for name, alloc := range map[string]func(int) []byte{"Alloc": a.Alloc, "AllocApart": a.AllocApart} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a closed arena", name)
				}
			}()
			alloc(1)
		}()
	}
}

// A reader that is there at the end, whether it came in the present epoch or in the one
// before, keeps all memory.
func TestMemoryIsKeptForAReader(t *testing.T) {
	for epochs := range 2 {
		a := New()
		b := a.Alloc(largeBytes + 1)
		r := a.Enter()
		for range epochs {
			a.mu.Lock()
			a.advance()
			a.mu.Unlock()
		}
		if a.Close(); gone(b[:largeBytes]) {
			t.Errorf("%d epochs after a reader came its memory is gone", epochs)
		}
		r.Leave()
	}
}

// Memory is mapped in whole huge pages.
func TestMappedIsOfHugePages(t *testing.T) {
	for _, c := range [][2]int{{1, hugeBytes}, {hugeBytes - 1, hugeBytes}, {hugeBytes, hugeBytes}, {hugeBytes + 1, 2 * hugeBytes}} {
		for range 3 {
			b := mapped(c[0])
			if len(b) != c[1] || address(b)%hugeBytes != 0 || rounded(c[0]) != c[1] {
				t.Errorf("%d bytes are mapped for %d, at %x", len(b), c[0], address(b))
			}
			b[0], b[len(b)-1] = 1, 1
			if unmap(b); !gone(b) {
				t.Error("it is mapped still")
			}
		}
	}
}
