package backups

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
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
}

type entry struct {
	s kafka.Stream
	r streams.Record
}

func (t *taken) add(s kafka.Stream, r *streams.Record) error {
	t.all = append(t.all, entry{s, *r})
	return nil
}

func (t *taken) schema(fp millrace.Fingerprint, row []byte) error {
	t.schemas = map[millrace.Fingerprint][]byte{fp: row}
	return nil
}

func (t *taken) refused(fp millrace.Fingerprint) error {
	t.given = map[millrace.Fingerprint]bool{fp: true}
	return nil
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
			if err := readTail(path, take); err == nil {
				t.Fatalf("%d records, %d of %d bytes: it is taken", n, cut, len(plain))
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "raw")); !os.IsNotExist(err) {
		t.Error("what was written first is still there")
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
