// Package authority has a certificate authority for tests, which nobody else trusts.
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
	CA   string // the path of the PEM file with its own certificate
}

// New returns an authority whose files last as long as the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.CA = filepath.Join(a.dir, "ca.pem")
	a.begin()
	a.write(a.CA, "CERTIFICATE", a.cert.Raw)
	return a
}

// Succeed gives the authority a new key and certificate, by which it issues from now on. Its
// file CA also has the old certificate, until Retire removes that.
func (a *Authority) Succeed() {
	a.t.Helper()
	before := a.cert.Raw
	a.begin()
	a.write(a.CA, "CERTIFICATE", before, a.cert.Raw)
}

// Retire removes from the file CA all certificates but the one by which the authority issues
// now.
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

// Issue writes a certificate with name as its common name, and its key, to the files NAME.pem
// and NAME.key, which it overwrites. It returns their paths, with that of CA. A host is a DNS
// name, an IP address, or a URI such as spiffe://example/broker. The certificate is valid for a
// day.
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

// Server returns the TLS configuration of a server with a certificate. If mutual is true, it
// serves only clients that show a certificate of the authority.
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

// write writes PEM blocks to a file. Several blocks are written to another file that is then
// renamed. Otherwise a reader could find the first certificate alone, and could not tell that
// more are to come.
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
