package restoration

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// What somebody writes while a restoration is under way, after it has read what etcd has,
// stays.
func TestWhatIsWrittenMeanwhileStays(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), etcdtest.Start(t, authority.New(t))
	c, err := cluster.Open(ctx, cluster.Config{
		Endpoints: []string{etcd.Addr}, Name: "test", Wait: 2 * time.Minute, Log: slog.New(slog.DiscardHandler),
		Access: dial.Access{TLS: etcd.Me, Login: secure.Login{Username: "millrace", PasswordFile: etcd.PasswordFile("old")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := documents.Of(c, "feeds")
	put := func(body string) {
		t.Helper()
		if err := d.Change(ctx, "home", func(string) (string, error) { return body, nil }); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (body string, version int64) {
		t.Helper()
		s, err := had(ctx, c, []string{"feeds"})
		if err != nil {
			t.Fatal(err)
		}
		v := s.Values[documents.Prefix("feeds")+"home"]
		return string(v.Data), v.Version
	}
	put("of the backup")
	p := &restoring{kind: "feeds", doc: documents.Document{Name: "home", Body: "kept"}, there: true, put: true}
	_, p.now.Version = read()
	put("theirs")
	var r Restored
	if err := restoreDocument(ctx, c, p, false, &r); err != nil {
		t.Fatal(err)
	}
	if body, _ := read(); body != "theirs" || !slices.Equal(r.Stays, []string{"feeds home"}) || len(r.Documents) > 0 {
		t.Errorf("etcd has %q; restored %+v", body, r)
	}
}
