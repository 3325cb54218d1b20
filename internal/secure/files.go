package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
)

// Files holds the certificate, the key and the authorities that a [TLS] names. Every
// handshake looks whether one of the files has changed, and then all are read again.
type Files struct {
	tls   TLS
	field string
	log   *slog.Logger

	serves atomic.Bool // the certificate is for a server: Server was called

	mu struct {
		sync.Mutex
		stamps []os.FileInfo // what os.Stat said of the files before they were last read with success
		good   *material     // what the files held then
		fault  error         // why the last reading failed, or why the other side would refuse good, which is used all the same; nil: neither
	}
}

// material is what the files held at one time.
type material struct {
	pool *x509.CertPool   // the authorities; nil: those that the machine trusts
	pair *tls.Certificate // the certificate with its key; nil: there is none
}

// Open reads the files. field is the key of the configuration that names them. A nil log
// is slog.Default(). A certificate that has expired, or is not valid yet, is a fault
// ([Faults]) and no error: its time may come, or another certificate may take its place.
// While [Check] is running, it is an error.
func Open(t TLS, field string, log *slog.Logger) (*Files, error) {
	if err := t.validate(field); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.Default()
	}
	f := &Files{tls: t, field: field, log: log}
	var err, gone error
	f.mu.stamps, gone = stampsOf(f.names())
	if f.mu.good, err = t.read(field); err != nil { // returned before gone, since it also has what is wrong with the other files
		return nil, err
	}
	switch f.mu.fault = f.unfit(f.mu.good); {
	case f.mu.fault == nil:
	case checking.Load():
		return nil, f.mu.fault
	default:
		log.Error("a certificate is of no use now", "field", field, "err", f.mu.fault)
	}
	watch(f)
	return f, gone
}

// checking says that Check is running.
var checking atomic.Bool

// Check calls do, which checks a configuration. Until do returns, Open refuses a
// certificate that the other side would refuse now, in the whole process.
func Check(do func()) {
	checking.Store(true)
	defer checking.Store(false)
	do()
}

// names returns the files that are to be read.
func (f *Files) names() (names []string) {
	for _, name := range []string{f.tls.CA, f.tls.Cert, f.tls.Key} {
		if name != "" && name != SystemCA {
			names = append(names, name)
		}
	}
	return names
}

// read reads the files as they are now, and reports every fault. field is the
// key of the configuration that names them.
func (t TLS) read(field string) (*material, error) {
	m := &material{}
	var errs []error
	wrong := func(key string, err error) {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field + "." + key, Detail: err.Error(), WayOut: "name a PEM file that this process can read"})
	}
	file := func(key, name string) []byte {
		pem, err := readFile(name)
		if err != nil {
			wrong(key, err)
		}
		return pem
	}
	if t.CA != "" && t.CA != SystemCA {
		m.pool = x509.NewCertPool()
		if text := file("ca", t.CA); text != nil {
			all, err := certificates(text)
			switch {
			case err != nil:
				wrong("ca", fmt.Errorf("%s: %w", t.CA, err))
			case !slices.ContainsFunc(all, authority):
				wrong("ca", fmt.Errorf("%s: none of its %d certificates is of an authority", t.CA, len(all)))
			}
			for _, c := range all {
				m.pool.AddCert(c)
			}
		}
	}
	if t.Cert != "" {
		if cert, key := file("cert", t.Cert), file("key", t.Key); cert != nil && key != nil {
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				wrong("cert", fmt.Errorf("%s with %s: %w", t.Cert, t.Key, err))
			} else if _, err := certificates(cert); err != nil { // X509KeyPair parses only the first of a chain
				wrong("cert", fmt.Errorf("%s: %w", t.Cert, err))
			}
			m.pair = &pair
		}
	}
	return m, errors.Join(errs...)
}

// certificates returns all certificates of a PEM file. It refuses a file with a block
// that is cut or malformed: the file may be half-written.
func certificates(text []byte) (all []*x509.Certificate, err error) {
	blocks, rest := 0, text
	for {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if blocks++; b.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(all)+1, err)
		}
		all = append(all, c)
	}
	switch {
	case bytes.Count(text, []byte("-----BEGIN")) != blocks || bytes.Contains(rest, []byte("-----")): // pem.Decode skips a block that is cut
		return nil, fmt.Errorf("it is cut, or malformed: %d blocks of it are whole", blocks)
	case len(all) == 0:
		return nil, errors.New("it holds no certificate")
	}
	return all, nil
}

// authority reports whether a certificate can be that of an authority, or has signed
// itself. Certificates before version 3 do not say whether they are an authority's; they
// count as such.
func authority(c *x509.Certificate) bool {
	return c.IsCA || c.Version < 3 || bytes.Equal(c.RawIssuer, c.RawSubject)
}

// current returns what the files hold now, or, if that cannot be used, what they held the
// last time it could. A certificate that the other side would refuse replaces the last good
// one only if the other side would refuse that one too.
func (f *Files) current() *material {
	f.mu.Lock()
	defer f.mu.Unlock()
	stamps, err := stampsOf(f.names())
	if err == nil && same(stamps, f.mu.stamps) {
		f.mu.fault = f.unfit(f.mu.good)
		return f.mu.good
	}
	var next *material
	if err == nil {
		next, err = f.tls.read(f.field)
	}
	var unfit error
	if err == nil {
		if unfit = f.unfit(next); f.unfit(f.mu.good) == nil {
			err = unfit
		}
	}
	was := textOf(f.mu.fault)
	if err != nil {
		if f.mu.fault = err; err.Error() != was {
			f.log.Error("certificates have changed and cannot be used; the last good ones stay", "field", f.field, "err", err)
		}
		return f.mu.good
	}
	f.mu.good, f.mu.stamps, f.mu.fault = next, stamps, unfit
	f.log.Info("certificates were read again", "field", f.field)
	return next
}

// unfit returns why the other side would refuse the certificate now; nil if it would not,
// or if there is none.
func (f *Files) unfit(m *material) error {
	if m.pair == nil {
		return nil
	}
	var why string
	switch c, now := m.pair.Leaf, time.Now(); {
	case now.After(c.NotAfter):
		why = "it ended on " + c.NotAfter.Format(time.RFC3339)
	case now.Before(c.NotBefore):
		why = "it begins on " + c.NotBefore.Format(time.RFC3339)
	case f.serves.Load() && len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny):
		why = "it is not for a server, by its extended key usage"
	default:
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: f.field + ".cert", Detail: fmt.Sprintf("%s: the other side would refuse it: %s", f.tls.Cert, why), WayOut: "put one there that is valid now"}
}

// look implements watched.
func (f *Files) look() (field, fault string) {
	f.current()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.field, textOf(f.mu.fault)
}

// stampsOf returns what os.Stat says of files. A later change of a file shows in it.
func stampsOf(names []string) ([]os.FileInfo, error) {
	stamps := make([]os.FileInfo, len(names))
	var err error
	for i, name := range names {
		if stamps[i], err = os.Stat(name); err != nil {
			return nil, err
		}
	}
	return stamps, nil
}

// same reports whether two stamps of the same names are of the same files, unchanged.
func same(a, b []os.FileInfo) bool {
	for i := range a {
		if !os.SameFile(a[i], b[i]) || a[i].Size() != b[i].Size() || !a[i].ModTime().Equal(b[i].ModTime()) {
			return false
		}
	}
	return true
}

// Client returns the configuration for one handshake as a client. Call it again for the
// next, since the files may change.
func (f *Files) Client() *tls.Config {
	m := f.current()
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: m.pool, ServerName: f.tls.ServerName}
	if m.pair != nil {
		// The client shows its certificate whatever authorities the other side
		// names. If the other side does not accept the certificate, its error
		// says so. Without a certificate, it would only say that it wants one.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return m.pair, nil }
	}
	return c
}

// Server returns the configuration of a server, which reads the files again when they
// change. auth says whether callers must show a certificate; such a certificate must be of
// the CA. Server fails if there is no certificate, or if the CA is [SystemCA].
func (f *Files) Server(auth tls.ClientAuthType) (*tls.Config, error) {
	if f.tls.Cert == "" || f.tls.CA == SystemCA {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: f.field, Detail: "a port needs a certificate, its key, and the CA of its callers", WayOut: "name cert, key and ca, PEM files each"}
	}
	f.serves.Store(true)
	config := func() *tls.Config {
		m := f.current()
		return &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*m.pair},
			ClientCAs: m.pool, ClientAuth: auth,
			NextProtos: []string{"h2", "http/1.1"},
		}
	}
	first := config()
	first.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return config(), nil }
	return first, nil
}

// dialTimeout bounds one try to connect, the handshake included.
const dialTimeout = 10 * time.Second

// Dial connects to an address, host:port, by TLS, with the handshake done.
func (f *Files) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return (&tls.Dialer{Config: f.Client()}).DialContext(ctx, network, addr)
}

// Dial connects to an address, host:port, in plain text, if Check allows that.
func (p Plain) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := p.Check(addr); err != nil {
		return nil, err
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, addr)
}

// refusals are errors of handshakes that an operator can mend, and how. They are
// recognized by their text, since gRPC and other libraries pass on nothing else of an error.
var refusals = []struct{ text, wayOut string }{
	{"certificate signed by unknown authority", "name the authority that signed the other side's certificate: ca"},
	{"certificate is valid for ", "ask by a name that is in the other side's certificate, or say which it has: server_name"},
	{"x509: cannot validate certificate for ", "ask by a name that is in the other side's certificate, or say which it has: server_name"},
	{"certificate is not valid for any names", "say the name that is in the other side's certificate: server_name"},
	{"certificate has expired or is not yet valid", "renew the other side's certificate, or set this machine's clock"},
	{"first record does not look like a TLS handshake", "the other side speaks plain text on this port: ask its port of TLS, or leave tls out"},
	{"remote error: tls: ", "show a certificate that the other side accepts: cert and key"},
}

// Refused returns what to do about an error of a TLS handshake; "" if err is of something
// else, or nil.
func Refused(err error) (wayOut string) {
	if err == nil {
		return ""
	}
	for _, r := range refusals {
		if strings.Contains(err.Error(), r.text) {
			return r.wayOut
		}
	}
	return ""
}
