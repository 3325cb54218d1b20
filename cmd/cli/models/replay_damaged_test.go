package models

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/millrace/millrace/cmd/cli/export"
)

// exportedBytes is a Parquet file of an export, of some pages.
func exportedBytes(t *testing.T, dir string) []byte {
	t.Helper()
	name := filepath.Join(dir, "whole.parquet")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := export.RowsTo(f, "parquet")
	for i := range 400 {
		place, id, likes := int64(i%10+1), fmt.Sprint("r", i), float64(i)
		if err := w.Write([]export.Item{{
			Answer: fmt.Sprint("a", i/10), Viewer: fmt.Sprint("v", i/20), Place: &place, ID: &id, Experiments: []export.Variant{{Experiment: "e", Variant: "b", ProbabilityInside: 0.5}},
			Outcomes: []export.Outcome{{Action: "click", Count: 1}}, Features: []export.Feature{{Name: "likes", Number: &likes}},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// damage changes a file somewhere: in its last part, where it says what it has, as
// often as anywhere.
func damage(rnd *rand.Rand, whole []byte) []byte {
	b := slices.Clone(whole)
	at := rnd.IntN(len(b))
	if tail := int(binary.LittleEndian.Uint32(b[len(b)-8:])); rnd.IntN(2) == 0 {
		at = len(b) - 1 - rnd.IntN(tail+8)
	}
	switch rnd.IntN(4) {
	case 0:
		b[at] ^= 1 << rnd.IntN(8)
	case 1:
		for i := range min(1+rnd.IntN(8), len(b)-at) {
			b[at+i] = byte(rnd.Uint32())
		}
	case 2:
		return append(b[:at], b[min(len(b), at+1+rnd.IntN(16)):]...)
	default:
		return b[:at]
	}
	return b
}

// rowsOf reads a file to its end, and returns how many rows it has.
func rowsOf(name string) (n int, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	next, err := shownRows(f)
	for ; err == nil && n < 1_000_000; n++ {
		_, err = next()
	}
	if err == io.EOF {
		return n - 1, nil
	}
	return n, err
}

// One byte of an export that is another one is an error, wherever it is.
func TestAFlippedByteIsAnError(t *testing.T) {
	dir := t.TempDir()
	whole := exportedBytes(t, dir)
	name := filepath.Join(dir, "damaged.parquet")
	says := bytes.LastIndex(whole, []byte("millrace version")) - 2 // who wrote it, which nothing else depends on
	for at := 0; at < len(whole); at += 17 {
		if at >= says && at < says+len("millrace version 1(build )")+2 {
			continue
		}
		b := bytes.Clone(whole)
		b[at] ^= 1 << (at % 8)
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if n, err := rowsOf(name); err == nil {
			t.Errorf("byte %d of %d: %d rows, and no error", at, len(whole), n)
		}
	}
}

// Of a file that others wrote the pages are held against their checksums, which exports
// have.
func TestAFlippedByteOfAPageIsAnError(t *testing.T) {
	dir := t.TempDir()
	whole := exportedBytes(t, dir)
	whole = bytes.ReplaceAll(whole, []byte("millrace version"), []byte("anything version"))
	file, err := parquet.OpenFile(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	name, flipped := filepath.Join(dir, "damaged.parquet"), 0
	for _, group := range file.Metadata().RowGroups {
		for i := range group.Columns {
			c := &group.Columns[i].MetaData
			b := bytes.Clone(whole)
			b[firstPage(c)+c.TotalCompressedSize-1] ^= 1 // the last of its last page
			if err := os.WriteFile(name, b, 0o644); err != nil {
				t.Fatal(err)
			}
			if n, err := rowsOf(name); err == nil {
				t.Errorf("column %v: %d rows, and no error", c.PathInSchema, n)
			}
			flipped++
		}
	}
	if flipped < 30 {
		t.Errorf("only %d columns", flipped)
	}
	if err := os.WriteFile(name, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := rowsOf(name); n != 400 || err != nil {
		t.Errorf("as it is: %d rows, %v", n, err)
	}
}

// firstPage is where the first page of a column is.
func firstPage(c *format.ColumnMetaData) int64 {
	if c.DictionaryPageOffset > 0 {
		return c.DictionaryPageOffset
	}
	return c.DataPageOffset
}

// A file that is damaged, wherever, is an error or is read: it ends no process.
func TestDamagedParquetIsAnError(t *testing.T) {
	dir := t.TempDir()
	whole := exportedBytes(t, dir)
	if n, err := rowsOf(filepath.Join(dir, "whole.parquet")); n != 400 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	name, failed := filepath.Join(dir, "damaged.parquet"), 0
	for i := range 600 {
		if err := os.WriteFile(name, damage(rnd, whole), 0o644); err != nil {
			t.Fatal(err)
		}
		n, err := rowsOf(name)
		if err != nil {
			failed++
		} else if n > 400 {
			t.Errorf("mutation %d: %d rows", i, n)
		}
	}
	if failed < 100 {
		t.Errorf("only %d of 600 are errors", failed)
	}
}
