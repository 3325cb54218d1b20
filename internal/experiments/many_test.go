package experiments_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/experiments"
)

// large is a document of some 250,000 bytes, whose experiments set weights.
func large(i, limit int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "layers: [{name: l%d, salt: s%d, unit: viewer}]\nexperiments:\n", i, i)
	for j := range 14 {
		fmt.Fprintf(&b, "  - name: e%d-%d\n    layer: l%d\n    feeds: [f%d]\n    state: draft\n    slots: [%d-%d]\n    share: 0\n    variants:\n      - {name: control, weight: 5000}\n", i, j, i, i, 700*j, 700*j+699)
		for v := range 10 {
			fmt.Fprintf(&b, "      - name: v%d\n        weight: 500\n        set:\n          limit: %d\n          weights:\n", v, limit+v)
			for w := range 80 {
				fmt.Fprintf(&b, "            f%d: %d\n", w, v)
			}
		}
		fmt.Fprintf(&b, "    forced:\n")
		for k := range 60 {
			fmt.Fprintf(&b, "      member:%d-%d-%d: v1\n", i, j, k)
		}
	}
	return []byte(b.String())
}

func defineMany(tb testing.TB, s *experiments.Store, n int) {
	tb.Helper()
	for i := range n {
		if _, err := s.Define(tb.Context(), fmt.Sprint("d", i), large(i, 10)); err != nil {
			tb.Fatal(err)
		}
	}
}

// mallocs are what a call allocates, of anybody in the process.
func mallocs(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.Mallocs - before.Mallocs)
}

// A document is read and parsed once, however often all of them are looked at, also by
// who goes on from another's reading.
func TestDocumentsAreParsedOnce(t *testing.T) {
	all := stores(t, 2)
	defineMany(t, all[0], 4)
	read := func(s *experiments.Store) func() {
		return func() {
			if st, err := s.Read(t.Context()); err != nil || len(st.Set.Experiments()) != 4*14 || len(st.Texts["d3"]) < 200_000 {
				t.Fatal(err)
			}
		}
	}
	first := mallocs(read(all[1]))
	again := mallocs(read(all[1]))
	next := &experiments.Store{Documents: all[1].Documents, Known: anything{}}
	next.UseParsed(all[1])
	other := mallocs(read(next))
	if again > first/3 || other > first/3 {
		t.Errorf("the first reading allocates %d times, the second %d, and one that goes on from it %d", first, again, other)
	}
	if _, err := all[0].Define(t.Context(), "d1", large(1, 20)); err != nil {
		t.Fatal(err)
	}
	st, err := next.Read(t.Context())
	if err != nil || !strings.Contains(string(st.Texts["d1"]), "limit: 20") {
		t.Errorf("what was defined meanwhile is not read: %v", err)
	}
}

// What experiment define does, of a cluster with many large documents.
func BenchmarkDefineAmongMany(b *testing.B) {
	const documents = 16
	all := stores(b, 1)
	defineMany(b, all[0], documents)
	for limit := 20; b.Loop(); limit++ {
		s := &experiments.Store{Documents: all[0].Documents, Known: anything{}}
		if _, err := s.Define(b.Context(), "d1", large(1, limit%400)); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
		tells := &experiments.Store{Documents: all[0].Documents, Known: anything{}}
		tells.UseParsed(s)
		if _, err := tells.Read(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
