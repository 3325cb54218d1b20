package backups

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
)

// taken is what was read of a tail.
type taken struct {
	all     []entry
	schemas map[millrace.Fingerprint][]byte
	given   map[millrace.Fingerprint]bool
	fails   string // the method that fails
}

func (t *taken) fail(method string) error {
	if t.fails == method {
		return errFull
	}
	return nil
}

type entry struct {
	s kafka.Stream
	r streams.Record
}

func (t *taken) add(s kafka.Stream, r *streams.Record) error {
	t.all = append(t.all, entry{s, *r})
	return t.fail("add")
}

func (t *taken) schema(fp millrace.Fingerprint, row []byte) error {
	t.schemas = map[millrace.Fingerprint][]byte{fp: row}
	return t.fail("schema")
}

func (t *taken) refused(fp millrace.Fingerprint) error {
	t.given = map[millrace.Fingerprint]bool{fp: true}
	return t.fail("refused")
}

// A tail reads back as it was written; one that is cut or altered anywhere is
// refused.
func TestTail(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	blob := func(most int) []byte {
		if n := rng.IntN(most + 1); n > 0 {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return b
		}
		return nil
	}
	dir := t.TempDir()
	for _, n := range []int{0, 1, 200} {
		w, err := newTailWriter(filepath.Join(dir, "raw"))
		must(t, err)
		must(t, w.schema(7, []byte("row")))
		must(t, w.refused(8))
		var want []entry
		for i := range n {
			e := entry{kafka.Stream(rng.IntN(2)), streams.Record{
				Offset: millrace.Offset(i) << rng.IntN(30), Time: millrace.Time(rng.Int64() - rng.Int64()), Key: blob(20), Value: blob(3000), Source: blob(20), CRC: blob(4),
			}}
			want = append(want, e)
			must(t, w.add(e.s, &e.r))
		}
		path := filepath.Join(dir, "tail")
		must(t, w.finish(path))
		take := &taken{}
		must(t, readTail(path, take))
		got := take.all
		if !reflect.DeepEqual(got, want) || string(take.schemas[7]) != "row" || !take.given[8] {
			t.Fatalf("%d records read back otherwise", n)
		}
		whole, err := os.ReadFile(path)
		must(t, err)
		z, err := zstd.NewReader(nil)
		must(t, err)
		plain, err := z.DecodeAll(whole, nil)
		must(t, err)
		pack, err := zstd.NewWriter(nil)
		must(t, err)
		for cut := range len(plain) {
			if cut > 300 && cut%9973 != 0 {
				continue
			}
			must(t, os.WriteFile(path, pack.EncodeAll(plain[:cut], nil), 0o644))
			part := &taken{}
			if err := readTail(path, part); !errors.Is(err, errTail) {
				t.Fatalf("%d records, %d of %d bytes: it is taken: %v", n, cut, len(plain), err)
			}
			if k := len(part.all); k > 0 && !reflect.DeepEqual(part.all, want[:k]) || part.schemas != nil && string(part.schemas[7]) != "row" || part.given != nil && !part.given[8] {
				t.Fatalf("%d records, %d of %d bytes: given is what was not written", n, cut, len(plain))
			}
		}
		for what, wrong := range map[string][]byte{
			"of another kind":               slices.Concat(plain[:len(tailMagic)], []byte{9}, plain[len(tailMagic):]),
			"with another magic":            slices.Concat([]byte("M"), plain[1:]),
			"with another count":            slices.Concat(plain[:len(plain)-1], []byte{plain[len(plain)-1] ^ 1}),
			"of a third stream":             slices.Concat(plain[:len(tailMagic)], []byte{tailRecord, 2, 0, 0, 0, 0, 0, 0, tailEnd, 1}),
			"with an endless offset":        slices.Concat(plain[:len(tailMagic)], []byte{tailRecord, 0}, bytes.Repeat([]byte{0xff}, 11)),
			"with a field that is too long": slices.Concat(plain[:len(tailMagic)], []byte{tailSchema, 0, 0, 0, 0, 0, 0, 0, 1}, binary.AppendUvarint(nil, maxTailField+1), make([]byte, 99)),
		} {
			must(t, os.WriteFile(path, pack.EncodeAll(wrong, nil), 0o644))
			if err := readTail(path, take); !errors.Is(err, errTail) {
				t.Errorf("%d records, %s: %v", n, what, err)
			}
		}
		for _, failing := range []string{"schema", "refused", "add"} {
			must(t, os.WriteFile(path, whole, 0o644))
			if err := readTail(path, &taken{fails: failing}); (err == nil) != (failing == "add" && n == 0) {
				t.Errorf("%d records, and %s fails: %v", n, failing, err)
			}
		}
	}
	if err := readTail(filepath.Join(dir, "none"), &taken{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is none: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "raw")); !os.IsNotExist(err) {
		t.Error("what was written first is still there")
	}
}

// A tail that cannot be written, before it is compressed or then, is told, whoever writes.
func TestATailOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	full, out := filepath.Join(dir, "full"), filepath.Join(dir, "out")
	big := make([]byte, 100<<10) // more than is kept in memory before it is written
	for what, write := range map[string]func(*tailWriter) error{
		"schema": func(w *tailWriter) error { return w.schema(1, big) },
		"record": func(w *tailWriter) error { return w.add(0, &streams.Record{Value: big}) },
		"refused": func(w *tailWriter) (err error) {
			for i := range len(big) / 8 {
				err = errors.Join(err, w.refused(millrace.Fingerprint(i)))
			}
			return err
		},
		"the end": func(w *tailWriter) error { return w.finish(out) },
	} {
		must(t, os.Symlink("/dev/full", full))
		w, err := newTailWriter(full)
		must(t, err)
		if err := write(w); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", what, err)
		}
		_ = w.f.Close()
		if err := os.Remove(full); (err == nil) == (what == "the end") {
			t.Errorf("%s: the file that was written first: %v", what, err)
		}
	}
	must(t, os.Symlink("/dev/full", full))
	for _, path := range []string{full, filepath.Join(dir, "none", "out")} {
		w, err := newTailWriter(filepath.Join(dir, "raw"))
		must(t, err)
		if must(t, w.schema(1, big)); w.finish(path) == nil {
			t.Errorf("it is written to %s", path)
		}
	}
	if _, err := newTailWriter(filepath.Join(dir, "none", "raw")); err == nil {
		t.Error("it is written where there is no directory")
	}
}

// Whatever a file holds, reading it as a tail ends, in bounded memory.
func FuzzTail(f *testing.F) {
	f.Add([]byte(tailMagic + "\x00\x00"))
	f.Add([]byte(tailMagic + "\x01\x00\x05\x0a\x01k\x01v\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := tailReader{r: newReader(bytes.NewReader(b))}
		_ = r.all(&taken{})
	})
}
