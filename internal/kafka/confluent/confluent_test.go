package confluent

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
	"github.com/millrace/millrace/schemas"
)

// A registry with TLS, client certificates and users answers whom it should, also
// after the password has changed; others are told by the key that is wrong.
func TestSecuredRegistry(t *testing.T) {
	a, other := authority.New(t), authority.New(t)
	password := "one"
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, got, _ := r.BasicAuth(); user != "me" || got != password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		json.NewEncoder(w).Encode(map[string]string{"schema": schemas.Note().JSON()})
	}))
	s.TLS = a.Server(a.Issue("registry", "127.0.0.1"), true)
	s.StartTLS()
	defer s.Close()
	passwordFile := func(password string) string {
		file := filepath.Join(t.TempDir(), "password")
		kafkatest.Must(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
		return file
	}
	file := passwordFile("one")
	good := Access{TLS: a.Issue("me"), Login: secure.Login{Username: "me", PasswordFile: file}}
	look := func(as Access) error {
		lookup, err := as.Registry(s.URL, nil)
		if err == nil {
			_, err = lookup(t.Context(), 7)
		}
		return err
	}
	lookup, err := good.Registry(s.URL, nil)
	kafkatest.Must(t, err)
	for id, next := range []string{"two", "three"} {
		if _, err := lookup(t.Context(), uint32(id)); err != nil {
			t.Error(err)
		}
		password = next
		kafkatest.Must(t, os.WriteFile(file, []byte(next), 0o600))
	}
	with := func(change func(*Access)) Access { x := good; change(&x); return x }
	for what, c := range map[string]struct {
		as   Access
		want string
	}{
		"another password":         {with(func(x *Access) { x.PasswordFile = passwordFile("other") }), "connect.schema_registry.username"},
		"no user":                  {with(func(x *Access) { x.Login = secure.Login{} }), "connect.schema_registry.username"},
		"no certificate":           {with(func(x *Access) { x.TLS = secure.TLS{CA: a.CA} }), "connect.schema_registry.tls"},
		"another authority's":      {with(func(x *Access) { x.TLS.CA = other.CA }), "connect.schema_registry.tls"},
		"whom the machine trusts":  {with(func(x *Access) { x.TLS = secure.TLS{} }), "connect.schema_registry.tls"},
		"a user without password":  {with(func(x *Access) { x.PasswordFile = "" }), "connect.schema_registry.password_file"},
		"another name than it has": {with(func(x *Access) { x.TLS.ServerName = "registry.example" }), "connect.schema_registry.tls"},
	} {
		err := look(c.as)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != c.want || e.WayOut == "" {
			t.Errorf("%s: %v; want a fault of %s", what, err, c.want)
		}
	}
	for url, want := range map[string]string{"http://registry:8081": "insecure", "http://registry": "insecure", "registry:8081": "https://registry:8081", "ftp://x": "https://", "https://me:geheim@registry:8081": "password_file"} {
		if _, err := (Access{}).Registry(url, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := good.Registry("http://127.0.0.1:1", nil); err == nil {
		t.Error("TLS at a URL of plain text")
	}
	if _, err := (Access{Insecure: true}).Registry("http://registry:8081", nil); err != nil {
		t.Error(err)
	}
}

// A schema that cannot be read as one of Millrace's is refused as one that is not
// there: the registry has answered, and asking again does not help.
func TestSchemasThatMillraceDoesNotTake(t *testing.T) {
	answer := map[string]any{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { json.NewEncoder(w).Encode(answer) }))
	defer s.Close()
	lookup, err := Access{}.Registry(s.URL, nil)
	kafkatest.Must(t, err)
	for what, c := range map[string]struct {
		answer map[string]any
		want   string
	}{
		"no roles":     {map[string]any{"schema": `{"type":"record","name":"Plain","fields":[{"name":"id","type":"string"}]}`}, "millrace"},
		"no record":    {map[string]any{"schema": `"string"`}, "records"},
		"far too long": {map[string]any{"schema": strings.Repeat("x", maxAnswerBytes)}, "the answer has more than"},
		"too large":    {map[string]any{"schema": `{"type":"record","name":"Long","doc":"` + strings.Repeat("x", 100<<10) + `","fields":[]}`}, "bytes"},
		"no Avro":      {map[string]any{"schema": `{`}, "JSON"},
		"of Protobuf":  {map[string]any{"schema": `syntax = "proto3";`, "schemaType": "PROTOBUF"}, "self-contained"},
	} {
		answer = c.answer
		_, err := lookup(t.Context(), 7)
		if e, ok := errors.AsType[*schemas.Error](err); !ok || e.Reason != schemas.UnknownSchema || !strings.Contains(e.Detail, "id 7: ") || !strings.Contains(e.Detail, c.want) {
			t.Errorf("%s: %v; want it refused, with %q", what, err, c.want)
		}
	}
}

// A registry that sends elsewhere is not followed: the password is for it alone.
func TestARegistryThatSendsElsewhere(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		t.Errorf("it was asked, with the password %q", password)
	}))
	defer elsewhere.Close()
	s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer s.Close()
	lookup, err := Access{Login: secure.Login{Username: "millrace", Password: "secret"}}.Registry(s.URL, nil)
	kafkatest.Must(t, err)
	if _, err := lookup(t.Context(), 7); err == nil {
		t.Error("it was followed")
	}
}

// A registry is named by a URL of HTTP without a user; plain text stays on loopback.
func TestURLsOfRegistries(t *testing.T) {
	for at, field := range map[string]string{
		"http://127.0.0.1:1": "", "http://127.0.0.1": "", "https://127.0.0.1:1/x": "", "https://registry": "",
		"": "schema_registry", "registry:8081": "schema_registry", "http://": "schema_registry", "http:///x": "schema_registry", "ftp://127.0.0.1": "schema_registry", "//127.0.0.1": "schema_registry",
		"http://[::1": "schema_registry", "https://a b": "schema_registry", "https://me:secret@127.0.0.1": "schema_registry", "http://me@127.0.0.1": "schema_registry", "http://registry:8081": "connect.schema_registry", "http://registry": "connect.schema_registry",
	} {
		_, err := Access{}.Registry(at, nil)
		if e, ok := errors.AsType[*millrace.Error](err); ok != (field != "") || ok && (!strings.HasPrefix(e.Field, field) || e.WayOut == "" || strings.Contains(err.Error(), "secret")) || !ok && err != nil {
			t.Errorf("%q: %v, want a fault of %q", at, err, field)
		}
	}
	if _, err := (Access{Insecure: true}).Registry("http://registry:8081", nil); err != nil {
		t.Errorf("where other means guard the network: %v", err)
	}
	if _, err := (Access{TLS: secure.TLS{CA: secure.SystemCA}}).Registry("http://127.0.0.1:1", nil); err == nil {
		t.Error("plain text has TLS")
	}
	lookup, err := Access{}.Registry("http://127.0.0.1:1", nil)
	kafkatest.Must(t, err)
	for id, unknown := range map[uint32]bool{math.MaxInt32: false, math.MaxInt32 + 1: true} { // nobody answers
		_, err := lookup(t.Context(), id)
		if e, ok := errors.AsType[*schemas.Error](err); err == nil || ok != unknown || ok && e.Reason != schemas.UnknownSchema {
			t.Errorf("id %d: %v", id, err)
		}
	}
}
