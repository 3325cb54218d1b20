package secure_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve answers every caller on loopback with the serial number of the
// certificate that it showed, and returns the address.
func serve(t *testing.T, how *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s := tls.Server(c, how)
				if s.Handshake() == nil {
					for _, shown := range s.ConnectionState().PeerCertificates {
						io.WriteString(s, shown.SerialNumber.String())
					}
				}
				s.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// ask returns what a server answers to who shows these files.
func ask(t *testing.T, f *secure.Files, addr string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := f.Dial(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	return string(text), err
}

func open(t *testing.T, of secure.TLS, log *slog.Logger) *secure.Files {
	t.Helper()
	f, err := secure.Open(of, "tls", log)
	must(t, err)
	return f
}

// A wrong certificate, name or authority is refused, and told with a way out.
func TestHandshakesAreRefused(t *testing.T) {
	ours, theirs := authority.New(t), authority.New(t)
	server := ours.Issue("server", "127.0.0.1")
	me, stranger := ours.Issue("me"), theirs.Issue("me")
	addr := serve(t, ours.Server(server, true))
	if got, err := ask(t, open(t, me, nil), addr); err != nil || got == "" {
		t.Fatalf("who should be served is told %q, %v", got, err)
	}
	with := func(t secure.TLS, change func(*secure.TLS)) secure.TLS { change(&t); return t }
	for what, c := range map[string]struct {
		addr string
		as   secure.TLS
		want string
	}{
		"another authority's server":      {addr, with(me, func(t *secure.TLS) { t.CA = theirs.CA }), "name the authority"},
		"no certificate":                  {addr, secure.TLS{CA: ours.CA}, "show a certificate"},
		"another authority's certificate": {addr, with(stranger, func(t *secure.TLS) { t.CA = ours.CA }), "show a certificate"},
		"another name":                    {addr, with(me, func(t *secure.TLS) { t.ServerName = "kafka.example" }), "server_name"},
		"a server that has no address":    {serve(t, ours.Server(ours.Issue("named", "kafka.example"), true)), me, "server_name"},
		"a certificate that has ended":    {serve(t, ours.Server(ours.IssueUntil("old", time.Now().Add(-time.Minute), "127.0.0.1"), true)), me, "renew"},
	} {
		_, err := ask(t, open(t, c.as, nil), c.addr)
		if err == nil || !strings.Contains(secure.Refused(err), c.want) {
			t.Errorf("%s: %v; way out: %q, want %q", what, err, secure.Refused(err), c.want)
		}
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer plain.Close()
	go func() {
		if c, err := plain.Accept(); err == nil {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			c.Close()
		}
	}()
	if _, err := ask(t, open(t, me, nil), plain.Addr().String()); err == nil || !strings.Contains(secure.Refused(err), "plain text") {
		t.Errorf("a server of plain text: %v", err)
	}
	if secure.Refused(nil) != "" || secure.Refused(io.EOF) != "" {
		t.Error("what is no refusal is told to be one")
	}
}

// Certificates are read again when they change, of a caller and of a server; what
// is half-written, does not fit or is gone changes nothing, and is told once.
func TestCertificatesAreReadAgain(t *testing.T) {
	a := authority.New(t)
	me := a.Issue("me")
	of := a.Issue("server", "127.0.0.1")
	server, err := open(t, of, nil).Server(tls.RequireAndVerifyClientCert)
	must(t, err)
	addr := serve(t, server)
	var log bytes.Buffer
	f := open(t, me, slog.New(slog.NewTextHandler(&log, nil)))
	first, err := ask(t, f, addr)
	must(t, err)

	good, err := os.ReadFile(me.Cert)
	must(t, err)
	authorities, err := os.ReadFile(a.CA)
	must(t, err)
	two := func(second []byte) error { return os.WriteFile(a.CA, slices.Concat(authorities, second), 0o600) }
	for what, spoil := range map[string]func() error{
		"half-written": func() error { return os.WriteFile(me.Cert, good[:len(good)/2], 0o600) },
		"of a chain, cut": func() error {
			return os.WriteFile(me.Cert, append(slices.Clone(good), authorities[:len(authorities)/2]...), 0o600)
		},
		"of authorities, cut": func() error { return two(authorities[:len(authorities)/2]) },
		"of authorities, cut first": func() error {
			return os.WriteFile(a.CA, slices.Concat(authorities[:len(authorities)/2], []byte("\n"), authorities), 0o600)
		},
		"of authorities, malformed": func() error {
			return two(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")}))
		},
		"of an authority, of none": func() error { return os.WriteFile(a.CA, good, 0o600) },
		"gone":                     func() error { return os.Remove(me.Cert) },
		"of an authority, gone":    func() error { return os.Rename(a.CA, a.CA+".away") },
	} {
		log.Reset()
		must(t, spoil())
		for range 3 {
			if got, err := ask(t, f, addr); err != nil || got != first {
				t.Errorf("%s: the server is shown %s, %v; want the last good one, %s", what, got, err, first)
			}
		}
		if n := strings.Count(log.String(), "the last good ones stay"); n != 1 {
			t.Errorf("%s: told %d times: %s", what, n, &log)
		}
		must(t, os.WriteFile(me.Cert, good, 0o600))
		must(t, os.WriteFile(a.CA, authorities, 0o600))
		if got, err := ask(t, f, addr); err != nil || got != first {
			t.Errorf("after %s: %s, %v", what, got, err)
		}
	}
	a.Issue("me") // over the files of before
	second, err := ask(t, f, addr)
	must(t, err)
	if second == first {
		t.Error("the certificate of before is shown")
	}

	// The server's own, and whom it serves.
	shown := func() string {
		c, err := f.Dial(t.Context(), "tcp", addr)
		must(t, err)
		defer c.Close()
		return c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := shown()
	a.Issue("server", "127.0.0.1")
	if shown() == before {
		t.Error("the server shows its certificate of before")
	}
	other := authority.New(t)
	stranger := other.Issue("me")
	stranger.CA = a.CA
	away := open(t, stranger, nil)
	if _, err := ask(t, away, addr); err == nil {
		t.Fatal("a stranger is served")
	}
	theirs, err := os.ReadFile(other.CA)
	must(t, err)
	own, err := os.ReadFile(a.CA)
	must(t, err)
	must(t, os.WriteFile(of.CA, append(own, theirs...), 0o600))
	if _, err := ask(t, away, addr); err != nil {
		t.Errorf("an authority that came by is not known: %v", err)
	}
}

// A secret is read again when its file changes, and stays when that is of no use.
func TestSecretsAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) { must(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("alpha7\n")
	var log bytes.Buffer
	s, err := secure.OpenSource(file, "password_file", slog.New(slog.NewTextHandler(&log, nil)))
	must(t, err)
	is := func(want string, told bool) {
		t.Helper()
		log.Reset()
		for range 2 {
			if got := s.Current(); got != want {
				t.Errorf("the secret is %q, want %q", got, want)
			}
		}
		if n := strings.Count(log.String(), "the last good one stays"); (n == 1) != told || n > 1 {
			t.Errorf("told %d times: %s", n, &log)
		}
		if strings.Contains(log.String(), want) {
			t.Errorf("the log has the secret: %s", &log)
		}
	}
	is("alpha7", false)
	write("")
	is("alpha7", true)
	write("\ufeff")
	is("alpha7", false)        // the same is told once
	write("\ufefftwo two\r\n") // as some editors write it
	is("two two", false)
	must(t, os.Remove(file))
	is("two two", true)
	write(strings.Repeat("x", 65<<10))
	is("two two", true)
	write("three")
	is("three", false)
}

// A certificate that the other side would refuse does not replace one that is
// good; it does where that has ended, too.
func TestCertificatesThatAreRefusedReplaceNone(t *testing.T) {
	a := authority.New(t)
	of := a.Issue("server", "127.0.0.1")
	f, err := secure.Open(of, "unfit", slog.New(slog.DiscardHandler))
	must(t, err)
	how, err := f.Server(tls.RequireAndVerifyClientCert)
	must(t, err)
	addr, me := serve(t, how), open(t, a.Issue("me"), nil)
	is := func(what, fault string) {
		t.Helper()
		if got := secure.Faults()["unfit"]; (got == "") != (fault == "") || !strings.Contains(got, fault) {
			t.Errorf("%s: the fault is %q, want one of %q", what, got, fault)
		}
		if _, err := ask(t, me, addr); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	is("good", "")
	for what, c := range map[string]struct {
		change func(*x509.Certificate)
		fault  string
	}{
		"ended":      {func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "it ended on"},
		"to begin":   {func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, "it begins on"},
		"a client's": {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "not for a server"},
	} {
		a.IssueWith("server", c.change, "127.0.0.1")
		is(what, c.fault)
		a.IssueWith("server", func(c *x509.Certificate) { c.ExtKeyUsage = nil }, "127.0.0.1")
		is("after one that "+what, "")
	}

	// What only calls others may be a client's.
	mine := a.Issue("mine")
	caller, err := secure.Open(mine, "unfit", slog.New(slog.DiscardHandler))
	must(t, err)
	a.IssueWith("mine", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	is("a caller's", "")
	runtime.KeepAlive(caller)

	// Of two that are refused the newer is taken: its time may come.
	a.IssueUntil("server", time.Now().Add(-2*time.Hour), "127.0.0.1")
	first, err := secure.Open(of, "ended", slog.New(slog.DiscardHandler))
	must(t, err)
	a.IssueUntil("server", time.Now().Add(-time.Minute), "127.0.0.1")
	if fault := secure.Faults()["ended"]; !strings.Contains(fault, "it ended on") || !time.Now().Add(-time.Hour).Before(secure.Lives()["ended"].Ends) {
		t.Errorf("the last one has ended, too, and of the newer, which ends %v, is told %q", secure.Lives()["ended"].Ends, fault)
	}
	a.IssueUntil("server", time.Now().Add(time.Hour), "127.0.0.1")
	if fault := secure.Faults()["ended"]; fault != "" {
		t.Errorf("it was replaced by one that has not ended, and the fault is %q", fault)
	}
	runtime.KeepAlive(first)
}

// A pipe in place of a file has nobody wait for who would write to it: it is a
// fault, and the last good stays, until a file is back.
func TestPipesAreNoFiles(t *testing.T) {
	a := authority.New(t)
	me := a.Issue("me")
	f, err := secure.Open(me, "pipes", slog.New(slog.DiscardHandler))
	must(t, err)
	file := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(file, []byte("alpha7"), 0o600))
	s, err := secure.OpenSource(file, "piped", slog.New(slog.DiscardHandler))
	must(t, err)
	soon := func(what string, look func() string) string {
		t.Helper()
		got := make(chan string, 1)
		go func() { got <- look() }()
		select {
		case x := <-got:
			return x
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: it is waited for", what)
			return ""
		}
	}
	for _, name := range []string{me.CA, me.Cert, me.Key, file} {
		key := "pipes"
		if name == file {
			key = "piped"
		}
		fault := func() string { return secure.Faults()[key] }
		must(t, os.Rename(name, name+".away"))
		must(t, syscall.Mkfifo(name, 0o600))
		if got := soon(name, fault); !strings.Contains(got, name+" is no regular file") {
			t.Errorf("a pipe has the fault %q", got)
		}
		soon(name, func() string { f.Client(); return "" })
		if got := soon(name, s.Current); got != "alpha7" {
			t.Errorf("the password is %q", got)
		}
		must(t, os.Rename(name+".away", name))
		if got := soon(name, fault); got != "" {
			t.Errorf("a file is back, and the fault is %q", got)
		}
	}
	if _, err := secure.OpenSource(os.DevNull, "piped", nil); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a device is opened: %v", err)
	}
}

// Files that are spoiled are told without a handshake or a login, and so is that
// they are mended; of several with one key each counts until it is.
func TestFaultsAreFoundWithoutAHandshake(t *testing.T) {
	a := authority.New(t)
	one, two := a.Issue("one"), a.Issue("two")
	var all []any
	for _, of := range []secure.TLS{one, two} {
		f, err := secure.Open(of, "ports", slog.New(slog.DiscardHandler))
		must(t, err)
		all = append(all, f)
	}
	file := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(file, []byte("alpha7"), 0o600))
	s, err := secure.OpenSource(file, "login", slog.New(slog.DiscardHandler))
	must(t, err)
	spoil := func(file string) (mend func()) {
		text, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, nil, 0o600))
		return func() { must(t, os.WriteFile(file, text, 0o600)) }
	}
	is := func(what, key string, files ...string) {
		t.Helper()
		fault := secure.Faults()[key]
		if (fault == "") != (len(files) == 0) {
			t.Errorf("%s: %s has the fault %q", what, key, fault)
		}
		for _, file := range files {
			if !strings.Contains(fault, file) {
				t.Errorf("%s: %s has the fault %q, and not that of %s", what, key, fault, file)
			}
		}
	}
	is("nothing is spoiled", "ports")
	mendOne, mendTwo, mendLogin := spoil(one.Cert), spoil(two.Cert), spoil(file)
	is("both are spoiled", "ports", one.Cert, two.Cert)
	is("the password is spoiled", "login", file)
	mendOne()
	is("one is mended", "ports", two.Cert)
	mendTwo()
	mendLogin()
	is("both are mended", "ports")
	is("the password is mended", "login")
	runtime.KeepAlive(s)

	// What nothing uses any more is not looked at.
	spoil(one.Cert)
	is("one is spoiled again", "ports", one.Cert)
	runtime.KeepAlive(all)
	runtime.GC()
	is("nothing uses them", "ports")
}

// What is of no use, or a contradiction, is refused by the key's name.
func TestConfigurationsAreRefused(t *testing.T) {
	a := authority.New(t)
	me := a.Issue("me")
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, nil, 0o600))
	files := func(of secure.TLS) error { _, err := secure.Open(of, "x", nil); return err }
	login := func(l secure.Login) error { _, err := l.Open("x", nil); return err }
	server := func(of secure.TLS) error {
		_, err := open(t, of, nil).Server(tls.RequireAndVerifyClientCert)
		return err
	}
	for what, c := range map[string]struct {
		err   error
		field string
	}{
		"no authority":              {files(secure.TLS{Cert: me.Cert, Key: me.Key}), "x.ca"},
		"no key":                    {files(secure.TLS{CA: a.CA, Cert: me.Cert}), "x.key"},
		"no certificate":            {files(secure.TLS{CA: a.CA, Key: me.Key}), "x.cert"},
		"no file":                   {files(secure.TLS{CA: a.CA + ".none"}), "x.ca"},
		"a file without any":        {files(secure.TLS{CA: empty}), "x.ca"},
		"another's key":             {files(secure.TLS{CA: a.CA, Cert: me.Cert, Key: a.Issue("other").Key}), "x.cert"},
		"a port without one":        {server(secure.TLS{CA: a.CA}), "tls"},
		"a port for anybody":        {server(secure.TLS{CA: secure.SystemCA, Cert: me.Cert, Key: me.Key}), "tls"},
		"a password of nobody":      {login(secure.Login{Password: "p"}), "x.username"},
		"a user without a password": {login(secure.Login{Username: "u"}), "x.password_file"},
		"two passwords":             {login(secure.Login{Username: "u", Password: "p", PasswordFile: empty}), "x.password_file"},
		"an empty password":         {login(secure.Login{Username: "u", PasswordFile: empty}), "x.password_file"},
	} {
		e, ok := errors.AsType[*millrace.Error](c.err)
		if !ok || e.Field != c.field || e.WayOut == "" {
			t.Errorf("%s: %v, of %v; want a fault of %s with a way out", what, c.err, e, c.field)
		}
	}
	if _, err := secure.Open(secure.TLS{CA: secure.SystemCA}, "x", nil); err != nil {
		t.Errorf("whom the machine trusts: %v", err)
	}
	l, err := secure.Login{Username: "u", Password: "p"}.Open("x", nil)
	if err != nil || l.Current() != "p" {
		t.Errorf("a password that stands by itself: %v", err)
	}
}

// Plain text goes to loopback, and elsewhere where somebody says so.
func TestPlainTextStaysOnLoopback(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:0": true, "localhost:0": true, "[::1]:0": true, "127.9.9.9:1": true,
		"0.0.0.0:0": false, ":0": false, "192.0.2.1:80": false, "127.0.0.1": false, "kafka:9092": false, "localhost.example:1": false,
	} {
		p := secure.Plain{Field: "connect.kafka"}
		err := p.Check(addr)
		if e, is := errors.AsType[*millrace.Error](err); (err == nil) != ok || !ok && (!is || e.Field != p.Field || e.WayOut == "") {
			t.Errorf("Check(%q) = %v", addr, err)
		}
		if _, err := p.Dial(t.Context(), "tcp", addr); !ok && err == nil {
			t.Errorf("%s is called", addr)
		}
		p.Insecure = true
		if err := p.Check(addr); err != nil {
			t.Errorf("insecure: Check(%q) = %v", addr, err)
		}
	}
}

// A secret is not printed, however it is asked for.
func TestSecretsAreNotPrinted(t *testing.T) {
	var out bytes.Buffer
	l := secure.Login{Username: "u", Password: "geheim"}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "login", l)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		out.WriteString(fmt.Sprintf(format, l))
	}
	if strings.Contains(out.String(), "geheim") {
		t.Errorf("it stands in\n%s", &out)
	}
}

// Who has a session of before comes back by it only as long as the authority of its
// certificate is in the file.
func TestSessionsEndWithTheirAuthority(t *testing.T) {
	a := authority.New(t)
	files, err := secure.Open(a.Issue("server", "127.0.0.1"), "tls", nil)
	must(t, err)
	how, err := files.Server(tls.RequireAndVerifyClientCert)
	must(t, err)
	addr, me := serve(t, how), a.Issue("me")
	pair, err := tls.LoadX509KeyPair(me.Cert, me.Key)
	must(t, err)
	caller := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	ask := func() (resumed bool, err error) {
		c, err := tls.Dial("tcp", addr, caller)
		if err != nil {
			return false, err
		}
		defer c.Close()
		_, err = c.Read(make([]byte, 1)) // and the session, which comes before it
		return c.ConnectionState().DidResume, err
	}
	for _, want := range []bool{false, true} {
		if resumed, err := ask(); err != nil || resumed != want {
			t.Fatalf("resumed %v, want %v: %v", resumed, want, err)
		}
	}
	a.Succeed()
	a.Issue("server", "127.0.0.1")
	if _, err := ask(); err != nil {
		t.Errorf("while both authorities are in the file: %v", err)
	}
	a.Retire()
	if resumed, err := ask(); err == nil {
		t.Errorf("the authority is gone, and its caller is let in; by its session: %v", resumed)
	}
}
