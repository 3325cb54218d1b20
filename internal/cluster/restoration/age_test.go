package restoration

import (
	"testing"

	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// The table in DESIGN.md, line by line.
func TestAgeOfADocument(t *testing.T) {
	first := keyspace.Name{Generation: 1, ID: "aaaaaaaa11111111"}
	second := keyspace.Name{Generation: 2, ID: "aaaaaaaa22222222"} // of its restoration
	third := keyspace.Name{Generation: 3, ID: "aaaaaaaa33333333"}
	anew := keyspace.Name{Generation: 2, ID: "bbbbbbbb22222222"}
	other := keyspace.Name{Generation: 1, ID: "bbbbbbbb11111111"}
	back := func(of keyspace.Name, at int64) *keyspace.Setback {
		return &keyspace.Setback{At: at, Generation: of.Generation}
	}
	for _, c := range []struct {
		what       string
		has, knows keyspace.Name
		found      *keyspace.Setback
		now, kept  int64 // revisions of the document
		want       age
	}{
		{"an older one", second, second, nil, 6, 7, ofBackup},
		{"an older one, found so", second, second, back(second, 6), 6, 7, ofBackup},
		{"a newer one", second, second, nil, 8, 7, since},
		{"another by the same revision", second, second, nil, 7, 7, since},
		{"one written since it was found", second, second, back(second, 5), 6, 7, since},
		{"one of before a restoration", first, second, back(second, 9), 9, 7, ofBackup},
		{"one of before a restoration, that nobody has found", first, second, nil, 9, 7, ofBackup},
		{"one of before a restoration, where only an earlier return was found", first, second, back(first, 5), 9, 7, ofBackup},
		{"one of before a restoration, written since that was found", first, second, back(second, 8), 9, 7, since},
		{"one of before two restorations, written since that was found", first, third, back(third, 8), 9, 7, since},
		{"one of an etcd that has begun anew", anew, second, nil, 6, 7, since},
		{"one of a later restoration", third, second, nil, 6, 7, unsure},
		{"one of a lower generation of others", other, second, nil, 6, 7, unsure},
		{"one of a keyspace without a name", keyspace.Name{}, second, nil, 6, 7, unsure},
	} {
		s := &keyspace.Snapshot{Keyspace: c.has, Setback: c.found}
		if got := ageOf(s, keyspace.Value{Version: c.now}, documents.Document{Version: c.kept}, keyspace.Origin{Keyspace: c.knows}); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}
