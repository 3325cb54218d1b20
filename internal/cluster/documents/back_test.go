package documents

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// What an etcd has that went back is not taken over, however that shows; what one has
// that did not is.
func TestAnEtcdThatWentBackIsNotBelieved(t *testing.T) {
	first := keyspace.Name{Generation: 1, ID: "a"}
	for what, c := range map[string]struct {
		revision, version int64 // of etcd, and of the document
		forked            bool
		setback           *keyspace.Setback
		want              string
	}{
		"a lower revision":          {revision: 9, version: 7, want: "mine"},
		"an older document":         {revision: 12, version: 6, want: "mine"},
		"another past":              {revision: 12, version: 11, forked: true, want: "mine"},
		"another process says so":   {revision: 12, version: 11, setback: &keyspace.Setback{At: 9}, want: "mine"},
		"it is written, as by rule": {revision: 12, version: 11, want: "theirs"},
	} {
		was := documents{by: map[string]Document{"home": {Name: "home", Body: "mine", Version: 7}}, revision: 10}
		d := &Kind{kind: "feeds", state: keyspace.NewLatest(was), origin: keyspace.Origin{Cluster: 1, Revision: 10, Keyspace: first}, log: slog.New(slog.DiscardHandler)}
		d.apply(&keyspace.Snapshot{
			Cluster: 1, Revision: c.revision, Count: "720", Keyspace: first, Forked: c.forked, Setback: c.setback,
			Values: map[string]keyspace.Value{"home": {Data: []byte("theirs"), Version: c.version}},
		}, c.version, nil)
		if got, back := d.Current()["home"].Body, errors.Is(d.Fault(), keyspace.ErrBack); got != c.want || back != (c.want == "mine") {
			t.Errorf("%s: it goes by %q, and says %v", what, got, d.Fault())
		}
	}
}
