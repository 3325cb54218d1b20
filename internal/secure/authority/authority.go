// Package authority issues certificates for tests, of an authority that nobody
// else trusts.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/secure"
)

// Authority signs certificates.
type Authority struct {
	t    testing.TB
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	CA   string // the PEM file of its own certificate
}

// New makes an authority whose files last as long as the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.CA = filepath.Join(a.dir, "ca.pem")
	a.begin()
	a.write(a.CA, "CERTIFICATE", a.cert.Raw)
	return a
}

// Succeed gives the authority another key and certificate, by which it issues from
// now on. Its file has the one of before, too, until Retire takes it out.
func (a *Authority) Succeed() {
	a.t.Helper()
	before := a.cert.Raw
	a.begin()
	a.write(a.CA, "CERTIFICATE", before, a.cert.Raw)
}

// Retire leaves in the file of the authority the certificate alone by which it issues.
func (a *Authority) Retire() {
	a.t.Helper()
	a.write(a.CA, "CERTIFICATE", a.cert.Raw)
}

func (a *Authority) begin() {
	a.t.Helper()
	a.key = a.newKey()
	c := &x509.Certificate{
		SerialNumber: a.serial(), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &a.key.PublicKey, a.key)
	a.must(err)
	a.cert, err = x509.ParseCertificate(der)
	a.must(err)
}

func (a *Authority) serial() *big.Int {
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	a.must(err)
	return n
}

// Issue writes a certificate of a name, and its key, and returns how both are
// named: NAME.pem and NAME.key, over what they were before. A host is a DNS
// name, an address, or a URI such as spiffe://example/broker.
func (a *Authority) Issue(name string, hosts ...string) secure.TLS {
	a.t.Helper()
	return a.IssueUntil(name, time.Now().Add(24*time.Hour), hosts...)
}

// IssueUntil is Issue with the time at which the certificate ends.
func (a *Authority) IssueUntil(name string, until time.Time, hosts ...string) secure.TLS {
	a.t.Helper()
	return a.IssueWith(name, func(c *x509.Certificate) { c.NotAfter = until }, hosts...)
}

// IssueWith is Issue with a change of the certificate before it is signed.
func (a *Authority) IssueWith(name string, change func(*x509.Certificate), hosts ...string) secure.TLS {
	a.t.Helper()
	c := &x509.Certificate{
		SerialNumber: a.serial(), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else if u, err := url.Parse(h); err == nil && u.Scheme != "" {
			c.URIs = append(c.URIs, u)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	change(c)
	key := a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	a.must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	a.must(err)
	t := secure.TLS{CA: a.CA, Cert: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key")}
	a.write(t.Cert, "CERTIFICATE", der)
	a.write(t.Key, "PRIVATE KEY", private)
	return t
}

// Server returns how a server with a certificate serves: mutual, those are
// served that show a certificate of the authority; otherwise all.
func (a *Authority) Server(of secure.TLS, mutual bool) *tls.Config {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(of.Cert, of.Key)
	a.must(err)
	c := &tls.Config{Certificates: []tls.Certificate{pair}}
	if mutual {
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		c.ClientCAs.AddCert(a.cert)
	}
	return c
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	return key
}

// write writes over a file, or moves there one of several certificates: where a part
// of it ends behind a whole one, nobody can tell that more is to come.
func (a *Authority) write(file, kind string, all ...[]byte) {
	a.t.Helper()
	var text []byte
	for _, der := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	if len(all) == 1 {
		a.must(os.WriteFile(file, text, 0o600))
		return
	}
	a.must(os.WriteFile(file+".new", text, 0o600))
	a.must(os.Rename(file+".new", file))
}

func (a *Authority) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}
