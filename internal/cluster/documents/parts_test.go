package documents

import (
	"testing"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

func FuzzParseParts(f *testing.F) {
	f.Add(partsOf(make([]byte, 3<<20)).line())
	f.Add("millrace parts 1 99999999999 1 x")
	f.Add("name: home")
	f.Fuzz(func(t *testing.T, doc string) {
		p, ok := parseParts(doc)
		if ok && (p.count < 1 || p.bytes > p.count*keyspace.MaxDocumentBytes || p.count > keyspace.MaxPartedBytes/keyspace.MaxDocumentBytes) {
			t.Fatalf("%q: %+v", doc, p)
		}
	})
}
