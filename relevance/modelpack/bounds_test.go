package modelpack

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/relevance"
)

// bomb is a .tar.zst of files of zeros.
func bomb(t *testing.T, files int, size int64, name func(int) string) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i := range files {
		if err := w.WriteHeader(&tar.Header{Name: name(i), Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func indents(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i+2) + "a:\n")
	}
	return b.String()
}

func manyFeatures(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "    f%d: 1\n", i)
	}
	return b.String()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// aliases is YAML whose anchors multiply: ten levels of ten.
func aliases() string {
	var b strings.Builder
	b.WriteString("name: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&b, "k%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	return b.String()
}

// TestRefusalsAreCheap: whatever a pack or a spec holds, it is refused within
// 64 MiB and 100 ms of one core (P20).
func TestRefusalsAreCheap(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	name := func(i int) string { return fmt.Sprintf("f%d", i) }
	pack := func(b []byte) func() error {
		return func() error { _, err := Read(bytes.NewReader(b)); return err }
	}
	spec := func(text string) func() error {
		return func() error {
			_, err := relevance.Parse("spec.yaml", []byte(text), relevance.ShippedSchemas())
			return err
		}
	}
	head := "name: x\nversion: \"1\"\nscorer: linear\nparameters: {weights: {}}\n"
	for _, c := range []struct {
		what string
		try  func() error
	}{
		{"one file of 1 GiB", pack(bomb(t, 1, 1<<30, name))},
		{"60 files of 10 MiB", pack(bomb(t, 60, 10<<20, name))},
		{"a manifest of 40 MiB", pack(bomb(t, 1, 40<<20, func(int) string { return ManifestFile }))},
		{"10,000 empty files", pack(bomb(t, 10_000, 0, name))},
		{"aliases that multiply", spec(head + aliases())},
		{"a list of commas", spec(head + "features: [" + strings.Repeat("a,", 100_000) + "]\n")},
		{"lists in lists", spec(head + "features: " + strings.Repeat("[", 50_000) + "\n")},
		{"mappings in mappings", spec(head + "features: " + strings.Repeat("{a: ", 50_000) + "\n")},
		{"sequences in sequences", spec(head + "features: \n  " + strings.Repeat("- ", 100_000) + "a\n")},
		{"keys in keys", spec(head + strings.Repeat("? ", 100_000) + "a\n")},
		{"anchors of anchors", spec(head + "about: " + strings.Repeat("&a ", 100_000) + "x\n")},
		{"tags of tags", spec(head + "about: " + strings.Repeat("!a ", 100_000) + "x\n")},
		{"deep indents", spec(head + "features:\n" + indents(700))},
		{"as many features as lines may be", spec(head + "features:\n" + manyFeatures(4_480))},
		{"as many parameters", spec("name: x\nversion: \"1\"\nscorer: linear\nfeatures: {a: 1}\nparameters:\n  weights:\n" + manyFeatures(4_480))},
		{"200,000 features", spec(head + "features:\n" + strings.Repeat("  f: 1\n", 40_000))},
		{"a long line", spec(head + "about: " + strings.Repeat("x", document.MaxBytes-200) + "\nfeatures: 3\n")},
		{"10 MiB", spec(strings.Repeat("a: b\n", 2<<20))},
	} {
		t.Run(c.what, func(t *testing.T) {
			least, looking, room := time.Hour, time.Hour, peak(func() { _ = c.try() })
			limit := func() time.Duration { return max(100*time.Millisecond, 4*looking) }
			var err error
			for try := 0; try < 5 || try < 20 && least > limit(); try++ { // others have the caches, on a busy machine
				began := cpuTime()
				err = c.try()
				least = min(least, cpuTime()-began)
				began = cpuTime()
				if !json.Valid(yardstick) {
					t.Fatal("the yardstick is no JSON")
				}
				looking = min(looking, cpuTime()-began)
			}
			if err == nil {
				t.Fatal("it is accepted")
			}
			t.Logf("%v; %v, %d KiB: %.200s", least, looking, room>>10, err)
			if !race.Enabled && least > limit() || room > 64<<20 {
				t.Errorf("%v and %d MiB until it is refused", least, room>>20)
			}
		})
	}
}

// yardstick takes encoding/json about a quarter of 100 ms to look at, of a processor that
// nobody else has.
var yardstick = []byte(`"` + strings.Repeat("x", 14<<20) + `"`)

// peak is how much memory a call has at a time at most, beyond what there was.
func peak(call func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, m.HeapAlloc
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case <-done:
			tick.Stop()
			return most - before
		case <-tick.C:
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
	}
}

// cpuTime is the time that this process has had on processors.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		panic(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
