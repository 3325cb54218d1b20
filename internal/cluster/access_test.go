package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// openAs opens a cluster on a secured etcd as a command does.
func openAs(t *testing.T, s *etcdtest.Secured, a dial.Access, dir string) (*cluster.Client, error) {
	t.Helper()
	c, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{s.Addr}, Access: a, Name: "test", Dir: dir, Wait: 10 * time.Minute, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// A wrong certificate, authority, name, user or password is refused at once, by
// the key of the configuration that is wrong.
func TestSecuredEtcd(t *testing.T) {
	t.Parallel()
	a, other := authority.New(t), authority.New(t)
	s := etcdtest.Start(t, a)
	stranger := other.Issue("me")
	good := dial.Access{TLS: s.Me, Login: secure.Login{Username: "millrace", PasswordFile: s.PasswordFile("old")}}
	with := func(change func(*dial.Access)) dial.Access { x := good; change(&x); return x }
	if _, err := openAs(t, s, good, ""); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		as   dial.Access
		want string
	}{
		"another password":                {with(func(x *dial.Access) { x.PasswordFile = s.PasswordFile("other") }), "connect.etcd.username"},
		"another user":                    {with(func(x *dial.Access) { x.Username = "nobody" }), "connect.etcd.username"},
		"no user":                         {with(func(x *dial.Access) { x.Login = secure.Login{} }), "connect.etcd.username"},
		"a user without rights":           {with(func(x *dial.Access) { x.Username, x.PasswordFile = "nothing", s.PasswordFile("pw") }), "connect.etcd.username"},
		"no certificate":                  {with(func(x *dial.Access) { x.TLS = secure.TLS{CA: a.CA} }), "connect.etcd.tls"},
		"another authority's certificate": {with(func(x *dial.Access) { x.TLS.Cert, x.TLS.Key = stranger.Cert, stranger.Key }), "connect.etcd.tls"},
		"another authority's etcd":        {with(func(x *dial.Access) { x.TLS.CA = other.CA }), "connect.etcd.tls"},
		"another name":                    {with(func(x *dial.Access) { x.TLS.ServerName = "etcd.example" }), "connect.etcd.tls"},
	} {
		_, err := openAs(t, s, c.as, "")
		e, ok := errors.AsType[*millrace.Error](err)
		if !ok || e.Field != c.want || e.WayOut == "" {
			t.Errorf("%s: %v, of %+v; want a fault of %s", what, err, e, c.want)
		}
	}
	var log logged // of a role, which waits until that is mended
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		wrong := with(func(x *dial.Access) { x.PasswordFile = s.PasswordFile("other") })
		_, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{s.Addr}, Access: wrong, Name: "test", Log: slog.New(slog.NewTextHandler(&log, nil))})
		opened <- err
	}()
	await(t, "it is waited for", func() <-chan struct{} { return closedAfter(t) }, func() bool { return log.has("waiting for etcd, without which") && log.has("connect.etcd.username") })
	select {
	case err := <-opened:
		t.Errorf("a role does not wait: %v", err)
		opened <- err
	default:
	}
	cancel()
	says(t, <-opened, context.Canceled, "connect.etcd.username")
	_, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{"etcd-1:2379"}, Name: "test"})
	if err == nil || !strings.Contains(err.Error(), "connect.etcd.insecure: true") {
		t.Errorf("plain text beyond loopback: %v", err)
	}
}

// A client goes on when its password is replaced, at etcd and in the file, and
// its watchers hear what happens after.
func TestThePasswordOfEtcdRotates(t *testing.T) {
	s := etcdtest.Start(t, authority.New(t))
	file := s.PasswordFile("old")
	c, err := openAs(t, s, dial.Access{TLS: s.Me, Login: secure.Login{Username: "millrace", PasswordFile: file}}, "")
	check(t, err)
	c.SetRelist(200 * time.Millisecond)
	docs, err := documents.Watch(t.Context(), c, "feeds")
	check(t, err)
	check(t, os.WriteFile(file, []byte("new"), 0o600))
	_, err = s.Root.UserChangePassword(t.Context(), "millrace", "new") // which ends its tokens
	check(t, err)
	check(t, putDocument(t.Context(), docs, "home", []byte("after")))
	await(t, "the document is heard of", docs.Changed, func() bool { return docs.Current()["home"].Body == "after" })
}

// A role with a user starts while etcd is away, with what it last knew.
func TestAUserStartsWithoutEtcd(t *testing.T) {
	s := etcdtest.Start(t, authority.New(t))
	dir := t.TempDir()
	as := dial.Access{TLS: s.Me, Login: secure.Login{Username: "millrace", PasswordFile: s.PasswordFile("old")}}
	c, err := openAs(t, s, as, dir)
	check(t, err)
	w := watch(t, c)
	check(t, steering.Change(t.Context(), c, nil, func(s *steering.State) error { s.Assignment = spreadOver(t, 1, "a", "b"); return nil }))
	await(t, "the map is kept", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	docs, err := documents.Watch(t.Context(), c, "feeds")
	check(t, err)
	check(t, putDocument(t.Context(), docs, "home", []byte("kept")))
	await(t, "it is kept", docs.Changed, func() bool { return docs.Current()["home"].Body == "kept" })
	check(t, c.Close())
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	check(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	away, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{l.Addr().String()}, Access: as, Name: "test", Dir: dir, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer away.Close()
	docs, err = documents.Watch(ctx, away, "feeds")
	check(t, err)
	if docs.Current()["home"].Body != "kept" {
		t.Errorf("it knows %v", docs.Current())
	}
}
