package cli

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/secure"
)

// rotate replaces the certificates of all roles and of the caller, and then their
// authority, by files alone, while a client of both brokers asks, and others do that
// connect for each request: none fails. In the end the roles that answer are started
// again by turns, so that all connections are by the new certificates.
func (e *estate) rotate() {
	e.t.Helper()
	cl := e.client(e.both())
	defer cl.Close()
	load := startSteady(e.ctx, e.t, cl, []*feedv1.GetFeedRequest{oneRecord}, 50)
	load.await(10)
	for range 10 {
		e.replace()
	}
	old := e.kept(e.me)
	e.a.Succeed() // its file has both
	e.everyoneShows()
	e.replace()
	e.a.Retire()
	e.everyoneShows()
	if text, err := output("feed", "--viewer", "member:9", "--entities", "member:1", "--cert", old.Cert, "--key", old.Key); err == nil || !strings.Contains(text, "certificate") {
		e.t.Errorf("a certificate of the authority that is gone is taken: %v\n%s", err, text)
	}
	for _, name := range []string{"broker", "broker-2", "node-1", "node-2"} {
		e.roles[name].end()
		e.roles[name].restart()
		clitest.WaitFor(e.ctx, e.t, name+" to be back", func() bool { return e.get(e.me, "https://"+e.at[name].admin+"/readyz") == nil })
	}
	load.await(100)
	failed := load.stop()
	e.t.Logf("%d requests while certificates were replaced, %d failed", load.asked.Load(), failed)
	if e.measured() {
		figure.Print("certificates_replaced_failed", float64(failed), "requests")
		figure.Print("certificates_replaced_asked", float64(load.asked.Load()), "requests")
	}
}

// oneRecord is answered with one record.
var oneRecord = &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "member:9"}, Entities: []string{"member:1"}}

// measured reports whether what is told are figures: those of a real Kafka.
func (e *estate) measured() bool { return os.Getenv("MILLRACE_KAFKA_SECURED") != "" }

// client is one of brokers, with the certificate of me.
func (e *estate) client(addr string) *client.Client {
	e.t.Helper()
	s := reach.Security{TLS: e.me}
	how, err := s.Dial()
	if err != nil {
		e.t.Fatal(err)
	}
	cl, err := client.Dial(addr, how)
	if err != nil {
		e.t.Fatal(err)
	}
	return cl
}

// replace issues all certificates of the estate's authority anew, and that by which
// etcd knows the roles.
func (e *estate) replace() {
	e.t.Helper()
	for name := range e.at {
		e.a.Issue(name, "127.0.0.1")
	}
	e.a.Issue("me")
	e.theirs.Issue("etcd-caller")
	e.everyoneShows()
}

// everyoneShows asks each broker by a connection of its own, and fails where a port
// shows another certificate than its role's file has.
func (e *estate) everyoneShows() {
	e.t.Helper()
	for _, broker := range []string{"broker", "broker-2"} {
		cl := e.client(e.at[broker].grpc)
		resp, err := cl.GetFeed(e.ctx, oneRecord)
		if err != nil || len(resp.Items) != 1 || len(resp.Coverage.Missing) > 0 {
			e.t.Fatalf("%s: %v, %v", broker, resp, err)
		}
		cl.Close()
	}
	files := e.files(e.me)
	for _, name := range slices.Sorted(maps.Keys(e.at)) {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(e.me.Cert), name+".pem"))
		if err != nil {
			e.t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		want, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			e.t.Fatal(err)
		}
		for _, addr := range e.at[name].all() {
			conn, err := files.Dial(e.ctx, "tcp", addr)
			if err != nil {
				e.t.Fatalf("%s at %s: %v", name, addr, err)
			}
			if !conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Equal(want) {
				e.t.Errorf("%s shows an older certificate at %s", name, addr)
			}
			conn.Close()
		}
	}
}

// kept are copies of the files that t names.
func (e *estate) kept(t secure.TLS) secure.TLS {
	e.t.Helper()
	dir := e.t.TempDir()
	for _, name := range []*string{&t.Cert, &t.Key} {
		text, err := os.ReadFile(*name)
		if err != nil {
			e.t.Fatal(err)
		}
		*name = filepath.Join(dir, filepath.Base(*name))
		if err := os.WriteFile(*name, text, 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	return t
}
