package codegen

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/schemas"
)

// TestDecodersAreFresh generates the decoders of the shipped schemas, and of
// the one that the tests of package schemas use, again and compares.
func TestDecodersAreFresh(t *testing.T) {
	for _, c := range []struct{ avsc, pkg, dir string }{
		{"../schemas/activity.avsc", "decoders", "../schemas/decoders"},
		{"../schemas/note.avsc", "decoders", "../schemas/decoders"},
		{"../schemas/features.avsc", "decoders", "../schemas/decoders"},
		{"../schemas/testdata/every/every.avsc", "every", "../schemas/testdata/every"},
	} {
		text, err := os.ReadFile(c.avsc)
		if err != nil {
			t.Fatal(err)
		}
		s, err := schemas.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		f, err := GenerateDecoder(c.pkg, c.avsc, s)
		if err != nil {
			t.Fatal(err)
		}
		checkFile(t, filepath.Join(c.dir, f.Name), f.Text)
	}
}
