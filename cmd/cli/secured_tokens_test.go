package cli

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/secure"
)

const (
	issuer   = "https://login.example"
	audience = "millrace"

	firstToken  = "the-first-of-two"
	secondToken = "the-second-of-two"
)

// signer signs tokens of callers, ES256, and keeps the set of its keys in a file.
type signer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	file string
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	s := &signer{t: t, file: filepath.Join(t.TempDir(), "keys.json")}
	s.renew()
	return s
}

func (s *signer) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// renew has the file hold another key alone.
func (s *signer) renew() {
	s.t.Helper()
	var err error
	s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	point, err := s.key.PublicKey.Bytes() // 4, x, y
	s.must(err)
	text, err := json.Marshal(map[string]any{"keys": []any{map[string]any{
		"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "one",
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
	s.must(err)
	s.must(os.WriteFile(s.file+".new", text, 0o600))
	s.must(os.Rename(s.file+".new", s.file))
}

// token is one of a subject, for an audience, until a time.
func (s *signer) token(of, to string, until time.Time) string {
	s.t.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		s.must(err)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]string{"alg": "ES256", "kid": "one"}) + "." + part(map[string]any{"iss": issuer, "sub": of, "aud": to, "exp": until.Unix()})
	sum := sha256.Sum256([]byte(text))
	x, y, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	s.must(err)
	return text + "." + base64.RawURLEncoding.EncodeToString(append(x.FillBytes(make([]byte, 32)), y.FillBytes(make([]byte, 32))...))
}

// byTokens asks the second broker as callers without a certificate do, by gRPC and
// by JSON: who has a token that it believes is answered, and nobody else, also when
// the files have changed.
func (e *estate) byTokens() {
	e.t.Helper()
	good := func(of string) string { return e.signer.token(of, audience, time.Now().Add(time.Hour)) }
	signed := good("home")
	for what, token := range map[string]string{"a token": firstToken, "a signed token": signed} {
		for by, err := range e.askBy(token) {
			if err != nil {
				e.t.Errorf("%s, %s: %v", what, by, err)
			}
		}
	}
	refused := map[string]string{
		"no token":                         "",
		"an unknown token":                 secondToken,
		"a signed token that has ended":    e.signer.token("home", audience, time.Now().Add(-time.Hour)),
		"a signed token for somebody else": e.signer.token("home", "other", time.Now().Add(time.Hour)),
		"a signed token of nobody here":    good("jobs"),
		"a token that somebody else signs": newSigner(e.t).token("home", audience, time.Now().Add(time.Hour)),
	}
	for what, token := range refused {
		for by, err := range e.askBy(token) {
			if err == nil || !strings.Contains(err.Error(), "authorization") {
				e.t.Errorf("%s, %s: %v", what, by, err)
			}
		}
	}
	e.signer.renew()
	if err := os.WriteFile(e.tokens, []byte("jobs "+secondToken+"\n"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	for token, served := range map[string]bool{firstToken: false, secondToken: true, signed: false, good("home"): true} {
		for by, err := range e.askBy(token) {
			if (err == nil) != served {
				e.t.Errorf("other keys and tokens, %.10s, %s: %v", token, by, err)
			}
		}
	}
}

// askBy asks the second broker by a token, without a certificate.
func (e *estate) askBy(token string) map[string]error {
	e.t.Helper()
	as := e.files(secure.TLS{}).Client()
	cl, err := client.Dial(e.at["broker-2"].grpc, grpc.WithTransportCredentials(credentials.NewTLS(as)))
	if err != nil {
		e.t.Fatal(err)
	}
	defer cl.Close()
	ctx := e.ctx
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, byGRPC := cl.GetFeed(ctx, oneRecord)
	return map[string]error{"by gRPC": byGRPC, "by JSON": e.askJSON(token)}
}

func (e *estate) askJSON(token string) error {
	e.t.Helper()
	body, err := protojson.Marshal(oneRecord)
	if err != nil {
		e.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(e.ctx, http.MethodPost, "https://"+e.at["broker-2"].http+"/v1/feed", bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("content-type", "application/json")
	if token != "" {
		req.Header.Set("authorization", "Bearer "+token)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: e.files(secure.TLS{}).Client(), DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}
