// Package etcdtest starts an etcd with TLS, client certificates and users, for
// tests.
package etcdtest

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// Secured is an etcd with three users: root; "millrace" with the password "old", who may
// read and write keys under /millrace/; and "nothing" with the password "pw", who may do
// nothing.
type Secured struct {
	t    testing.TB
	Addr string           // host:port
	Me   secure.TLS       // the certificate of a client that may connect, but is no user
	Root *clientv3.Client // a client of the user root
}

// Start starts an etcd that ends with the test. The authority issues its certificate, for
// 127.0.0.1.
func Start(t testing.TB, a *authority.Authority) *Secured {
	t.Helper()
	s := &Secured{t: t, Me: a.Issue("etcd-caller")}
	server := a.Issue("etcd", "127.0.0.1")
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.UnsafeNoFsync = t.TempDir(), "fatal", true
	cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: server.Cert, KeyFile: server.Key, TrustedCAFile: a.CA, ClientCertAuth: true}
	e, err := embed.StartEtcd(cfg)
	s.must(nil, err)
	t.Cleanup(e.Close)
	s.Addr = e.Clients[0].Addr().String()
	<-e.Server.ReadyNotify()
	s.users()
	return s
}

func (s *Secured) users() {
	c, ctx := s.connect("", ""), s.t.Context()
	for user, password := range map[string]string{"root": "rootpw", "millrace": "old", "nothing": "pw"} {
		s.must(c.UserAdd(ctx, user, password))
	}
	s.must(c.RoleAdd(ctx, "root"))
	s.must(c.UserGrantRole(ctx, "root", "root"))
	s.must(c.RoleAdd(ctx, "millrace"))
	s.must(c.RoleGrantPermission(ctx, "millrace", "/millrace/", clientv3.GetPrefixRangeEnd("/millrace/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	s.must(c.UserGrantRole(ctx, "millrace", "millrace"))
	s.must(c.AuthEnable(ctx))
	s.Root = s.connect("root", "rootpw")
}

// connect returns a client of a user, or of no user if user is "". It ends with the test.
func (s *Secured) connect(user, password string) *clientv3.Client {
	files, err := secure.Open(s.Me, "tls", nil)
	s.must(nil, err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, TLS: files.Client(), Username: user, Password: password, DialTimeout: time.Minute})
	s.must(nil, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// PasswordFile writes a password into a new file and returns the file's name.
func (s *Secured) PasswordFile(password string) string {
	file := filepath.Join(s.t.TempDir(), "password")
	s.must(nil, os.WriteFile(file, []byte(password+"\n"), 0o600))
	return file
}

func (s *Secured) must(_ any, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
