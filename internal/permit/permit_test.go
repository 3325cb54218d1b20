package permit

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

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

// want is who may call what: - c n b p m o for anybody with a name and no role, a
// caller, a node, a broker, a partitioner, a monitor and an operator; * for who has no
// name, where probes need none.
var want = map[string]string{
	"/millrace.feed.v1.FeedService/GetFeed":                          "co",
	"/millrace.feed.v1.FeedService/Why":                              "co",
	"/millrace.node.v1.NodeService/Query":                            "bo",
	"/millrace.node.v1.NodeService/GetSchema":                        "bo",
	"/millrace.node.v1.NodeService/Hot":                              "no",
	"/millrace.node.v1.NodeService/ReadPartition":                    "no",
	"/millrace.node.v1.NodeService/Digests":                          "o",
	"/millrace.node.v1.NodeService/CheckPartition":                   "o",
	"/millrace.node.v1.NodeService/WitnessPartition":                 "o",
	"/millrace.node.v1.NodeService/CondemnPartition":                 "o",
	"/millrace.node.v1.AdminService/ReadTimeline":                    "o",
	"/millrace.node.v1.AdminService/ReadHistory":                     "o",
	"/millrace.node.v1.AdminService/FindRecords":                     "o",
	"/millrace.node.v1.AdminService/DeleteRecords":                   "o",
	"/millrace.node.v1.AdminService/DropCache":                       "o",
	"/millrace.node.v1.AdminService/PauseIngest":                     "o",
	"/millrace.node.v1.AdminService/ResumeIngest":                    "o",
	"/millrace.node.v1.AdminService/ReplayDeadLetters":               "o",
	"/millrace.node.v1.AdminService/QuarantinePartition":             "o",
	"/millrace.node.v1.AdminService/ReleasePartition":                "o",
	"/millrace.node.v1.AdminService/ReadState":                       "o",
	"/millrace.node.v1.AdminService/CountDeadLetters":                "o",
	"/grpc.health.v1.Health/Check":                                   "cnbpmo",
	"/grpc.health.v1.Health/List":                                    "cnbpmo",
	"/grpc.health.v1.Health/Watch":                                   "cnbpmo",
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      "co",
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "co",
	"/nobody.knows/It":                                               "o",
	"/v1/feed":                                                       "co",
	"/v1/why":                                                        "co",
	"/v1/openapi.json":                                               "cnbpmo",
	"/v2/whatever":                                                   "o",
	"/livez":                                                         "*-cnbpmo",
	"/readyz":                                                        "*-cnbpmo",
	"/metrics":                                                       "mo",
	"/log":                                                           "o",
	"/debug/pprof/":                                                  "o",
	"/debug/pprof/heap":                                              "o",
	"/debug/pprof/cmdline":                                           "o",
	"/debug/pprof/profile":                                           "o",
	"/debug/pprof/symbol":                                            "o",
	"/debug/pprof/trace":                                             "o",
}

var letters = map[string]string{"nobody": "-", "app": "c", "node": "n", "spiffe://example/broker": "b", "partitioner": "p", "prometheus": "m", "ops": "o"}

var everybody = Config{Identities: map[string][]Role{"app": {Caller}, "node": {Node}, "spiffe://example/broker": {Broker}, "partitioner": {Partitioner}, "prometheus": {Monitor}, "ops": {Operator}}}

func opened(t *testing.T, c Config) *Policy {
	t.Helper()
	p, err := c.Open(nil)
	must(t, err)
	return p
}

// Every role calls every method and path, by a certificate, over the wire; who has
// none asks what probes ask, where that is allowed.
func TestEveryRoleAtEveryDoor(t *testing.T) {
	for _, probes := range []bool{true, false} {
		t.Run(fmt.Sprintf("probes=%v", probes), func(t *testing.T) { everyRoleAtEveryDoor(t, probes) })
	}
}

func everyRoleAtEveryDoor(t *testing.T, probes bool) {
	for call := range table {
		if want[call] == "" {
			t.Errorf("nothing is expected of %s", call)
		}
	}
	a := authority.New(t)
	c := everybody
	c.Probes = probes
	p := opened(t, c)
	certificate := a.Issue("server", "127.0.0.1")
	how := a.Server(certificate, true)
	how.ClientAuth, how.NextProtos = tls.VerifyClientCertIfGiven, []string{"h2", "http/1.1"}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(append(p.ServerOptions(nil), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		return s.SendMsg(&emptypb.Empty{})
	}))...)
	go server.Serve(wrapped{tls.NewListener(l, how)})
	defer server.Stop()
	web := httptest.NewUnstartedServer(p.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})))
	web.TLS = how
	web.StartTLS()
	defer web.Close()

	callers := map[string]*tls.Config{"*": {RootCAs: nil}}
	for name, letter := range letters {
		var hosts []string
		if strings.HasPrefix(name, "spiffe:") {
			hosts = []string{name}
		}
		files, err := secure.Open(a.Issue(strings.ReplaceAll(name, "/", "-"), hosts...), "tls", nil)
		must(t, err)
		callers[letter] = files.Client()
	}
	files, err := secure.Open(secure.TLS{CA: a.CA}, "tls", nil)
	must(t, err)
	callers["*"] = files.Client()
	for letter, as := range callers {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(as)))
		must(t, err)
		defer conn.Close()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: as}}
		for call, may := range want {
			switch {
			case !probes:
				may = strings.TrimPrefix(may, "*")
			case slices.Contains(probed, call):
				may = "*-cnbpmo"
			}
			var served bool
			if strings.Count(call, "/") == 2 && strings.Contains(call, ".") && !strings.HasPrefix(call, "/v1/") {
				err := conn.Invoke(t.Context(), call, &emptypb.Empty{}, &emptypb.Empty{})
				if served = err == nil; !served && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "authorization")) {
					t.Errorf("%s at %s: %v", letter, call, err)
				}
			} else {
				resp, err := client.Get(web.URL + call)
				must(t, err)
				resp.Body.Close()
				if served = resp.StatusCode == http.StatusOK; !served && resp.StatusCode != http.StatusForbidden {
					t.Errorf("%s at %s: %s", letter, call, resp.Status)
				}
			}
			if served != strings.Contains(may, letter) {
				t.Errorf("%s at %s is served: %v; served should be %s", letter, call, served, may)
			}
		}
	}
}

// Probes are for who shows a certificate, of whatever name, or a token, and metrics, which
// tell how many records a private feed drops, for monitors, unless the configuration says
// that they are for anybody; by plain text nobody could show any.
func TestProbesNeedACertificate(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(tokens, []byte("app 0123456789abcdef\n"), 0o600))
	c := Config{Identities: map[string][]Role{"token:app": {Caller}}, Tokens: tokens}
	closed := opened(t, c)
	c.Probes = true
	nothing := &tls.ConnectionState{}
	shown := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}, VerifiedChains: [][]*x509.Certificate{{}}}
	for what, a := range map[string]struct {
		policy *Policy
		conn   *tls.ConnectionState
		token  string
		want   int
	}{
		"nothing":                    {closed, nothing, "", http.StatusForbidden},
		"a certificate":              {closed, shown, "", http.StatusOK},
		"a token":                    {closed, nothing, "Bearer 0123456789abcdef", http.StatusOK},
		"another token":              {closed, nothing, "Bearer 0123456789abcdeF", http.StatusForbidden},
		"nothing, by plain text":     {closed, nil, "", http.StatusOK},
		"nothing, and probes are on": {opened(t, c), nothing, "", http.StatusOK},
	} {
		for _, path := range []string{"/livez", "/readyz", "/metrics"} {
			r := httptest.NewRequest("GET", path, nil)
			r.TLS = a.conn
			if r.Header.Set("authorization", a.token); a.token == "" {
				r.Header.Del("authorization")
			}
			w := httptest.NewRecorder()
			a.policy.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			want := a.want
			if path == "/metrics" && a.policy == closed && a.conn != nil {
				want = http.StatusForbidden
			}
			if w.Code != want || a.want != http.StatusOK && path != "/metrics" && a.token == "" && !strings.Contains(w.Body.String(), "authorization.probes") {
				t.Errorf("%s at %s is answered %d %s, want %d", what, path, w.Code, w.Body, want)
			}
		}
	}
}

// A certificate of several names is nobody's: a role that one of them has would be given
// to whoever an authority lets add the other.
func TestACertificateOfSeveralNamesIsNobodys(t *testing.T) {
	uri := func(s string) *url.URL { u, err := url.Parse(s); must(t, err); return u }
	cn := func(names ...string) (n pkix.Name) {
		for _, name := range names {
			n.Names = append(n.Names, pkix.AttributeTypeAndValue{Type: commonName, Value: name})
			n.CommonName = name
		}
		return n
	}
	node, ops := uri("spiffe://example/node"), uri("spiffe://example/ops")
	for want, cert := range map[string]*x509.Certificate{
		"spiffe://example/node": {URIs: []*url.URL{uri("https://example"), node}, Subject: cn("ops")},
		"ops":                   {URIs: []*url.URL{uri("https://example")}, Subject: cn("ops")},
		"":                      {},
	} {
		if got := shownBy(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{}}}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, cert := range []*x509.Certificate{{URIs: []*url.URL{node, ops}}, {URIs: []*url.URL{node, node}, Subject: cn("ops")}, {Subject: cn("node", "ops")}, {Subject: cn("token:ops")}} {
		if got := shownBy(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{}}}); got != "" {
			t.Errorf("%v, %v is %q", cert.URIs, cert.Subject, got)
		}
	}
}

// wrapped is a listener whose connections hide that they have TLS, as those of a
// broker do.
type wrapped struct{ net.Listener }

func (w wrapped) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	return below{c}, err
}

type below struct{ net.Conn }

func (b below) NetConn() net.Conn { return b.Conn }

// signer signs tokens.
type signer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
	id  string
}

func newSigner(t *testing.T, id string) signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return signer{t, key, id}
}

func (s signer) sign(c jwt.Claims) string {
	s.t.Helper()
	signing, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil)
	must(s.t, err)
	token, err := jwt.Signed(signing).Claims(c).Serialize()
	must(s.t, err)
	return token
}

func keySet(t *testing.T, of ...signer) []byte {
	t.Helper()
	var keys jose.JSONWebKeySet
	for _, s := range of {
		keys.Keys = append(keys.Keys, jose.JSONWebKey{Key: &s.key.PublicKey, KeyID: s.id})
	}
	text, err := json.Marshal(keys)
	must(t, err)
	return text
}

// Tokens of the file and signed ones name who calls; all others are refused,
// whatever certificate is beside them, and so is a token whose time is over, of
// another issuer, for another audience, without an end, or signed by nobody.
func TestTokens(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, text, 0o600))
		return file
	}
	first, second := newSigner(t, "1"), newSigner(t, "2")
	var log bytes.Buffer
	c := Config{Identities: map[string][]Role{"token:app": {Caller}, "jwt:ops": {Operator}}}
	c.Tokens = write("tokens", []byte("# mine\napp 0123456789abcdef\n"))
	c.JWT = JWT{JWKS: write("keys", keySet(t, first)), Issuer: "https://login", Audience: "millrace"}
	p, err := c.Open(slog.New(slog.NewTextHandler(&log, nil)))
	must(t, err)
	claims := jwt.Claims{Subject: "ops", Issuer: "https://login", Audience: jwt.Audience{"other", "millrace"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	with := func(change func(*jwt.Claims)) jwt.Claims { x := claims; change(&x); return x }
	is := func(header, want string) {
		t.Helper()
		who, err := p.Identify(nil, header)
		if e := (*millrace.Error)(nil); who.Name != want || (err == nil) != (want != "") || err != nil && (!errors.As(err, &e) || e.Reason != millrace.ReasonForbidden || e.WayOut == "") {
			t.Errorf("%.40s is %q, %v; want %q", header, who.Name, err, want)
		}
	}
	is("Bearer 0123456789abcdef", "token:app")
	is("bearer  0123456789abcdef", "token:app")
	is("Bearer 0123456789abcdeF", "")
	is("Basic 0123456789abcdef", "")
	is("Bearer ", "")
	good := "Bearer " + first.sign(claims)
	is(good, "jwt:ops")
	is(good[:len(good)-4]+"AAAA", "")
	is("Bearer "+second.sign(claims), "")
	is("Bearer "+signer{t, second.key, "1"}.sign(claims), "")
	is("Bearer "+strings.Repeat("x", 9000), "")
	for _, bad := range []jwt.Claims{
		with(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)) }),
		with(func(c *jwt.Claims) { c.Expiry = nil }),
		with(func(c *jwt.Claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Hour)) }),
		with(func(c *jwt.Claims) { c.Issuer = "https://elsewhere" }),
		with(func(c *jwt.Claims) { c.Audience = jwt.Audience{"other"} }),
		with(func(c *jwt.Claims) { c.Audience = nil }),
		with(func(c *jwt.Claims) { c.Subject = "" }),
	} {
		is("Bearer "+first.sign(bad), "")
	}
	for ago, want := range map[time.Duration]string{50 * time.Second: "jwt:ops", 70 * time.Second: ""} { // docs/secured.md: a minute
		is("Bearer "+first.sign(with(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-ago)) })), want)
	}
	none := "eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + "." // alg none
	is("Bearer "+none, "")

	// Keys and tokens are read again; what is no key set changes nothing.
	write("keys", keySet(t, first, second))
	is("Bearer "+second.sign(claims), "jwt:ops")
	write("keys", []byte("{"))
	is("Bearer "+second.sign(claims), "jwt:ops")
	if !strings.Contains(log.String(), "jwt.jwks") {
		t.Errorf("it is not told: %s", &log)
	}
	write("keys", keySet(t, second))
	is(good, "")
	write("tokens", []byte("app 0123456789abcdef\nops fedcba9876543210fedc\n"))
	is("Bearer fedcba9876543210fedc", "token:ops")
	write("tokens", []byte("ops fedcba9876543210fedc\n"))
	is("Bearer 0123456789abcdef", "")
	is("Bearer fedcba9876543210fedc", "token:ops")

	write("tokens", []byte("\ufeffops fedcba9876543210fedc\n")) // as some editors begin a file
	is("Bearer fedcba9876543210fedc", "token:ops")

	// There may be many.
	many := []byte("ops fedcba9876543210fedc\n")
	for i := range 2000 {
		many = fmt.Appendf(many, "app-%d %040d\n", i, i)
	}
	write("tokens", many)
	is(fmt.Sprintf("Bearer %040d", 1999), "token:app-1999")
	for len(many) <= 1<<20 {
		many = append(many, "# more\n"...)
	}
	write("tokens", append(many, "late 0123456789abcdef\n"...))
	is("Bearer 0123456789abcdef", "")
	is("Bearer fedcba9876543210fedc", "token:ops")

	// What is malformed or gone changes nothing, and is told until it is mended; what
	// is empty is nobody's.
	fault := func(key string) string {
		if f := secure.Faults()["authorization."+key]; strings.Contains(f, dir) { // other tests leave some
			return f
		}
		return ""
	}
	for _, spoil := range []func(){
		func() { write("tokens", []byte("ops")) },
		func() { must(t, os.Remove(c.Tokens)) },
	} {
		spoil()
		is("Bearer fedcba9876543210fedc", "token:ops")
		is("Bearer fedcba9876543210fedc", "token:ops")
		if fault("tokens") == "" {
			t.Error("a file of tokens that cannot be used is no fault")
		}
	}
	for _, empty := range []string{"", "\n", "# nobody\n"} {
		write("tokens", []byte("ops fedcba9876543210fedc\n"))
		is("Bearer fedcba9876543210fedc", "token:ops")
		write("tokens", []byte(empty))
		is("Bearer fedcba9876543210fedc", "")
		if f := fault("tokens"); f != "" {
			t.Errorf("an empty file of tokens is a fault: %s", f)
		}
	}
	for _, empty := range []string{"", `{"keys":[]}`} {
		write("keys", keySet(t, second))
		is("Bearer "+second.sign(claims), "jwt:ops")
		for _, bad := range []string{"{}", `{"keys":`, "[]"} {
			write("keys", []byte(bad))
			is("Bearer "+second.sign(claims), "jwt:ops")
			if fault("jwt.jwks") == "" {
				t.Errorf("%s is no fault", bad)
			}
		}
		write("keys", []byte(empty))
		is("Bearer "+second.sign(claims), "")
		if f := fault("jwt.jwks"); f != "" {
			t.Errorf("an empty key set is a fault: %s", f)
		}
	}

	// Keys that are not known are passed over, and told, once; of several with one
	// name each is tried. What is left over nothing, or is secret, changes nothing.
	const (
		unknownKind  = `{"kty":"PQC","kid":"1","use":"sig"}`
		unknownCurve = `{"kty":"EC","crv":"secp256k1","kid":"1","x":"AA","y":"AA"}`
		agreement    = `{"kty":"OKP","crv":"X25519","kid":"1","x":"AA"}`
		encrypts     = `{"kty":"RSA","use":"enc","kid":"1","n":"AA","e":"AQAB"}`
		secret       = `{"kty":"PQC","kid":"1","d":"AA"}`
		shared       = `{"kty":"oct","kid":"1","k":"AAAA"}`
	)
	set := func(keys ...string) []byte { return fmt.Appendf(nil, `{"keys":[%s]}`, strings.Join(keys, ",")) }
	keyOf := func(s signer) string {
		return strings.TrimSuffix(strings.TrimPrefix(string(keySet(t, s)), `{"keys":[`), "]}")
	}
	namesake := newSigner(t, "1")
	huge := fmt.Sprintf(`{"kty":"RSA","kid":"1","e":"AQAB","n":%q}`, base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 1025))) // 8,200 bits
	if _, over, err := parseKey(json.RawMessage(huge)); err != nil || !strings.Contains(over, "8200 bits") {
		t.Errorf("a key of 8,200 bits is passed over for %q, %v", over, err)
	}
	write("keys", set(huge, unknownKind, unknownCurve, agreement, encrypts, keyOf(signer{t, first.key, ""}), keyOf(first), keyOf(namesake)))
	is(good, "jwt:ops")
	is("Bearer "+namesake.sign(claims), "jwt:ops")
	is("Bearer "+second.sign(claims), "")
	is("Bearer "+signer{t, second.key, "1"}.sign(claims), "")
	is("Bearer "+signer{t, first.key, ""}.sign(claims), "jwt:ops") // it names none: each is tried
	if f, n := fault("jwt.jwks"), strings.Count(log.String(), "passed over"); f != "" || n != 1 {
		t.Errorf("fault %q, told %d times: %s", f, n, &log)
	}
	rsaKey := func(n, e string) string {
		return fmt.Sprintf(`{"kty":"RSA","kid":"1","n":%q,"e":%q}`, n, e)
	}
	long := base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 256))
	for _, bad := range [][]byte{
		set(unknownKind), set(keyOf(second), secret), set(keyOf(second), shared), set(keyOf(second), `{"kid":"1"}`),
		set(keyOf(second), rsaKey("", "AQAB")), set(keyOf(second), rsaKey(long, "AQ")), set(keyOf(second), rsaKey(long, "Ag")), set(keyOf(second), rsaKey("_w", "AQAB")),
		fmt.Appendf(nil, `{"keys":[%s],"keys":[]}`, keyOf(second)),
	} {
		write("keys", bad)
		is("Bearer "+namesake.sign(claims), "jwt:ops")
		if fault("jwt.jwks") == "" {
			t.Errorf("%s is no fault", bad)
		}
	}
	write("keys", keySet(t, second))
	is("Bearer "+second.sign(claims), "jwt:ops")
	if n := strings.Count(log.String(), "nobody is known by it"); n < 3 {
		t.Errorf("it is told %d times that nobody is known: %s", n, &log)
	}
	if p, err := c.Open(slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a role does not start with empty files: %v, %v", p, err)
	}
}

// A key needs no name, and a token need not name one: each is tried that may be
// meant, up to a number. One of another algorithm or for another use is not.
func TestKeysWithoutNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	ours, other := newSigner(t, ""), newSigner(t, "2")
	claims := jwt.Claims{Subject: "ops", Issuer: "https://login", Audience: jwt.Audience{"millrace"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	named := signer{t, ours.key, "1"}
	with := func(s signer, more string) string {
		return strings.Replace(strings.TrimSuffix(strings.TrimPrefix(string(keySet(t, s)), `{"keys":[`), "]}"), "{", "{"+more, 1)
	}
	var many []string
	for range maxTries {
		many = append(many, with(newSigner(t, ""), ""))
	}
	for what, c := range map[string]struct {
		keys  []string
		token signer
		taken bool
		fault string
	}{
		"neither has a name":                    {[]string{with(ours, "")}, ours, true, ""},
		"among others":                          {[]string{with(other, ""), with(newSigner(t, ""), ""), with(ours, "")}, ours, true, ""},
		"the key has no name":                   {[]string{with(ours, "")}, named, true, ""},
		"the token names none":                  {[]string{with(other, ""), with(named, "")}, ours, true, ""},
		"of another name":                       {[]string{with(other, "")}, named, false, ""},
		"the key is of another name":            {[]string{with(signer{t, ours.key, "2"}, "")}, named, false, ""},
		"signed by another":                     {[]string{with(ours, "")}, newSigner(t, ""), false, ""},
		"too many could be it":                  {append(many, with(ours, "")), ours, false, ""},
		"of its algorithm":                      {[]string{with(named, `"alg":"ES256",`)}, named, true, ""},
		"of another algorithm":                  {[]string{with(named, `"alg":"ES384",`)}, named, false, ""},
		"to verify":                             {[]string{with(named, `"use":"sig","key_ops":["verify"],`)}, named, true, ""},
		"of an algorithm for encryption":        {[]string{with(named, `"alg":"ECDH-ES",`)}, named, false, "ECDH-ES"},
		"of an algorithm of shared keys":        {[]string{with(named, `"alg":"HS256",`)}, named, false, "HS256"},
		"for encryption":                        {[]string{with(named, `"key_ops":["encrypt","wrapKey"],`)}, named, false, "encrypt"},
		"for a use that is not known":           {[]string{with(named, `"use":"other",`)}, named, false, "other"},
		"for encryption, beside one that is it": {[]string{with(other, `"key_ops":["encrypt"],`), with(named, "")}, named, true, ""},
	} {
		must(t, os.WriteFile(file, fmt.Appendf(nil, `{"keys":[%s]}`, strings.Join(c.keys, ",")), 0o600))
		p, err := Config{Identities: map[string][]Role{"jwt:ops": {Operator}}, JWT: JWT{JWKS: file, Issuer: "https://login", Audience: "millrace"}}.Open(slog.New(slog.DiscardHandler))
		if c.fault != "" || err != nil {
			if c.fault == "" || err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: the set has the fault %v, want one of %q", what, err, c.fault)
			}
			continue
		}
		if who, err := p.Identify(nil, "Bearer "+c.token.sign(claims)); (err == nil) != c.taken {
			t.Errorf("%s: %q, %v", what, who.Name, err)
		}
	}
}

// A name is of one kind: neither a token nor the subject of one is who has a
// certificate of the same name, and no certificate is either of them, or has a
// SPIFFE id by its common name.
func TestNamesAreOfOneKind(t *testing.T) {
	file := func(text []byte) string {
		name := filepath.Join(t.TempDir(), "file")
		must(t, os.WriteFile(name, text, 0o600))
		return name
	}
	s := newSigner(t, "1")
	p := opened(t, Config{
		Identities: map[string][]Role{"sre": {Operator}, "token:sre": {Caller}, "jwt:sre": {}, "spiffe://example/sre": {Node}},
		Tokens:     file([]byte("sre 0123456789abcdef\n")),
		JWT:        JWT{file(keySet(t, s)), "i", "a"},
	})
	signed := "Bearer " + s.sign(jwt.Claims{Subject: "sre", Issuer: "i", Audience: jwt.Audience{"a"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))})
	shown := func(name string, ids ...string) *tls.ConnectionState {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		for _, id := range ids {
			u, err := url.Parse(id)
			must(t, err)
			c.URIs = append(c.URIs, u)
		}
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	}
	for _, c := range []struct {
		by     *tls.ConnectionState
		header string
		want   string
		roles  []Role
	}{
		{shown("sre"), "", "sre", []Role{Operator}},
		{nil, "Bearer 0123456789abcdef", "token:sre", []Role{Caller}},
		{nil, signed, "jwt:sre", []Role{}},
		{shown("x", "spiffe://example/sre"), "", "spiffe://example/sre", []Role{Node}},
		{shown("spiffe://example/sre"), "", "", nil},
		{shown("token:sre"), "", "", nil},
		{shown("jwt:sre"), "", "", nil},
		{shown("sre", "https://example/sre"), "", "sre", []Role{Operator}},
	} {
		who, err := p.Identify(c.by, c.header)
		if err != nil || who.Name != c.want || !slices.Equal(who.Roles, c.roles) {
			t.Errorf("%v %.20q is %q with %v, %v; want %q with %v", c.by, c.header, who.Name, who.Roles, err, c.want, c.roles)
		}
	}
}

// A token goes before the certificate, over the wire, too; one that is not known
// is not helped by it.
func TestATokenGoesBeforeTheCertificate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(file, []byte("app 0123456789abcdef\n"), 0o600))
	who := maps.Clone(everybody.Identities)
	delete(who, "app")
	who["token:app"] = []Role{Caller}
	p := opened(t, Config{Identities: who, Tokens: file})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	a := authority.New(t)
	server := grpc.NewServer(append(p.ServerOptions(nil), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		return status.Error(codes.OK, "")
	}))...)
	how := a.Server(a.Issue("server", "127.0.0.1"), true)
	how.NextProtos = []string{"h2"}
	go server.Serve(tls.NewListener(l, how))
	defer server.Stop()
	files, err := secure.Open(a.Issue("ops"), "tls", nil)
	must(t, err)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(files.Client())))
	must(t, err)
	defer conn.Close()
	for header, denied := range map[string]bool{"": false, "Bearer 0123456789abcdef": true, "Bearer x": true} {
		ctx := t.Context()
		if header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
		}
		err := conn.Invoke(ctx, "/millrace.node.v1.NodeService/CondemnPartition", &emptypb.Empty{}, &emptypb.Empty{})
		if (status.Code(err) == codes.PermissionDenied) != denied {
			t.Errorf("%q: %v", header, err)
		}
	}
}

// What the reference says that a role and a right may be is what is taken.
func TestChoicesAreAll(t *testing.T) {
	choices := func(of any, name string) string {
		f, _ := reflect.TypeOf(of).FieldByName(name)
		return "[" + strings.ReplaceAll(f.Tag.Get("choices"), ",", "") + "]"
	}
	if got, want := choices(Config{}, "Identities"), fmt.Sprint(roles); got != want {
		t.Errorf("roles are %s, and the reference says %s", want, got)
	}
	if got, want := choices(Rights{}, "May"), fmt.Sprint(allRights); got != want {
		t.Errorf("rights are %s, and the reference says %s", want, got)
	}
}

// Every fault is told at once, and no token with them.
func TestFaultsAreToldAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(file, []byte("0123456789abcdef-token app\n"), 0o600))
	_, err := Config{Identities: map[string][]Role{"a": {"king"}, "b": {"queen"}}, Callers: map[string]Rights{"c": {May: []Right{"all"}}}, Tokens: file, JWT: JWT{JWKS: file}}.Open(nil)
	for _, want := range []string{"identities.a: ", "identities.b: ", "callers.c: ", "callers.c.may: ", "tokens: ", "jwt.issuer: "} {
		if err == nil || !strings.Contains(err.Error(), "authorization."+want) {
			t.Errorf("%v\ndoes not tell of %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "abcdef") {
		t.Errorf("a token is told: %v", err)
	}
}

func TestConfigurationsAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		file := filepath.Join(dir, rand.Text())
		must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	some := everybody.Identities
	signs := map[string][]Role{"jwt:x": {Caller}}
	s := newSigner(t, "1")
	secret, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key, KeyID: "1"}}})
	must(t, err)
	keys := write(string(keySet(t, s)))
	for what, c := range map[string]struct {
		of    Config
		field string
	}{
		"a name of nobody":        {Config{Identities: map[string][]Role{"": {Operator}}}, "authorization.identities"},
		"a name of everybody":     {Config{Identities: map[string][]Role{"*": {Operator}}}, "authorization.identities"},
		"a token of no name":      {Config{Identities: map[string][]Role{"token:": {Caller}}, Tokens: write("")}, "authorization.identities"},
		"a subject of nobody":     {Config{Identities: map[string][]Role{"jwt:": {Caller}}, JWT: JWT{keys, "i", "a"}}, "authorization.identities"},
		"a token, and no file":    {Config{Identities: map[string][]Role{"token:x": {Caller}}}, "authorization.identities.token:x"},
		"a subject, and no keys":  {Config{Identities: map[string][]Role{"jwt:x": {Caller}}}, "authorization.identities"},
		"no subject that may":     {Config{Identities: some, JWT: JWT{keys, "i", "a"}}, "authorization.identities"},
		"a token like a name":     {Config{Identities: some, Tokens: write("app 0123456789abcdef")}, "authorization.identities.app"},
		"an unknown role":         {Config{Identities: map[string][]Role{"x": {"king"}}}, "authorization.identities.x"},
		"rights without roles":    {Config{Callers: map[string]Rights{"app": {}}}, "authorization.identities"},
		"tokens without roles":    {Config{Tokens: write("x 0123456789abcdef")}, "authorization.identities"},
		"rights of no caller":     {Config{Identities: some, Callers: map[string]Rights{"nobody": {}}}, "authorization.callers.nobody"},
		"an unknown right":        {Config{Identities: everybody.Identities, Callers: map[string]Rights{"app": {May: []Right{"all"}}}}, "authorization.callers.app.may"},
		"a caller without rights": {Config{Identities: map[string][]Role{"a": {Caller}, "b": {Caller}}, Callers: map[string]Rights{"a": {}}}, "authorization.identities.b"},
		"no file of tokens":       {Config{Identities: some, Tokens: dir + "/none"}, "authorization.tokens"},
		"a token that is short":   {Config{Identities: some, Tokens: write("x short")}, "authorization.tokens"},
		"a token without a name":  {Config{Identities: some, Tokens: write("0123456789abcdef")}, "authorization.tokens"},
		"two of the same token":   {Config{Identities: some, Tokens: write("a 0123456789abcdef\nb 0123456789abcdef")}, "authorization.tokens"},
		"no key set":              {Config{Identities: signs, JWT: JWT{Issuer: "i", Audience: "a"}}, "authorization.jwt.jwks"},
		"no issuer":               {Config{Identities: signs, JWT: JWT{JWKS: keys, Audience: "a"}}, "authorization.jwt.issuer"},
		"no audience":             {Config{Identities: signs, JWT: JWT{JWKS: keys, Issuer: "i"}}, "authorization.jwt.audience"},
		"what is no key set":      {Config{Identities: signs, JWT: JWT{write("{"), "i", "a"}}, "authorization.jwt.jwks"},
		"no keys and no list":     {Config{Identities: signs, JWT: JWT{write("{}"), "i", "a"}}, "authorization.jwt.jwks"},
		"a key set that can sign": {Config{Identities: signs, JWT: JWT{write(string(secret)), "i", "a"}}, "authorization.jwt.jwks"},
	} {
		_, err := c.of.Open(nil)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != c.field || e.WayOut == "" {
			t.Errorf("%s: %v, want a fault of %s", what, err, c.field)
		}
	}
	if p, err := (Config{}).Open(nil); p != nil || err != nil || p.Allow(Identity{}, "/whatever") != nil {
		t.Errorf("no policy: %v, %v", p, err)
	}
	if got := Who(With(context.Background(), Identity{Name: "a"})); got.Name != "a" {
		t.Errorf("who calls is %v", got)
	}
	if names := slices.Sorted(maps.Keys(table)); len(names) < 20 {
		t.Errorf("the table has %v", names)
	}
}

// A caller has the rights of its name, or else those of all others; operators
// have all, and so has everybody where there are none.
func TestRightsOfCallers(t *testing.T) {
	c := Config{Identities: map[string][]Role{"a": {Caller}, "b": {Caller}, "ops": {Operator, Caller}}}
	all := opened(t, c)
	c.Callers = map[string]Rights{"a": {Feeds: []string{"jobs"}, May: []Right{Why}}, "*": {May: []Right{Recent}}}
	bounded := opened(t, c)
	for _, w := range []struct {
		of                *Policy
		name              string
		jobs, home, built bool
		may               []Right
	}{
		{all, "a", true, true, true, allRights},
		{bounded, "a", true, false, false, []Right{Why}},
		{bounded, "b", true, true, true, []Right{Recent}},
		{bounded, "ops", true, true, true, allRights},
	} {
		i := Identity{w.name, c.Identities[w.name], w.of.rights(w.name, c.Identities[w.name])}
		if i.Feed("jobs", false) == nil != w.jobs || i.Feed("home", false) == nil != w.home || i.Feed("recent", true) == nil != w.built {
			t.Errorf("%s: %v, %v, %v", w.name, i.Feed("jobs", false), i.Feed("home", false), i.Feed("recent", true))
		}
		for _, r := range allRights {
			if got := i.Right(r, "field") == nil; got != slices.Contains(w.may, r) {
				t.Errorf("%s may %s: %v", w.name, r, got)
			}
		}
	}
}
