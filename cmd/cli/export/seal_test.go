package export

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// The checksum of a file is of all of its bytes, of those that were passed on while it
// was written and of its last part; a file that others wrote has none, whatever it took
// along.
func TestSeal(t *testing.T) {
	var file bytes.Buffer
	rows := RowsTo(&file, "parquet")
	for i := range 20_000 {
		id := fmt.Sprint("record:", i*7919)
		if err := rows.Write([]Item{{Answer: fmt.Sprint("answer:", i), Viewer: fmt.Sprint("viewer:", i), ID: &id}}); err != nil {
			t.Fatal(err)
		}
	}
	if passed := file.Len(); rows.Close() != nil || passed == file.Len() {
		t.Fatal("it is not closed")
	}
	if file.Len() < 100_000 {
		t.Fatalf("only %d bytes", file.Len())
	}
	check := func(change func([]byte)) error {
		b := bytes.Clone(file.Bytes())
		change(b)
		f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		return CheckSeal(f)
	}
	if err := check(func([]byte) {}); err != nil {
		t.Error(err)
	}
	for _, at := range []int{10, 40_000, file.Len() / 2} {
		if err := check(func(b []byte) { b[at] ^= 4 }); err == nil || !strings.Contains(err.Error(), "its checksum is ") {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	of := func(text string, at int) func([]byte) {
		return func(b []byte) { b[bytes.LastIndex(b, []byte(text))+at] ^= 1 }
	}
	if err := check(of(sealKey, 3)); err == nil || !strings.Contains(err.Error(), "its checksum is not there") {
		t.Errorf("%v", err)
	}
	if err := check(of(sealKey, len(sealKey)+20)); err == nil {
		t.Error("another checksum is taken")
	}
	if err := check(func(b []byte) { of("millrace version", 0)(b); b[10] ^= 4 }); err != nil {
		t.Errorf("of others: %v", err)
	}
}
