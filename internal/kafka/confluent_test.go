package kafka

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace"
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
	file := passwordFile(t, "one")
	good := RegistryAccess{TLS: a.Issue("me"), Login: secure.Login{Username: "me", PasswordFile: file}}
	look := func(as RegistryAccess) error {
		lookup, err := as.ConfluentRegistry(s.URL, nil)
		if err == nil {
			_, err = lookup(t.Context(), 7)
		}
		return err
	}
	lookup, err := good.ConfluentRegistry(s.URL, nil)
	must(t, err)
	for id, next := range []string{"two", "three"} {
		if _, err := lookup(t.Context(), uint32(id)); err != nil {
			t.Error(err)
		}
		password = next
		must(t, os.WriteFile(file, []byte(next), 0o600))
	}
	with := func(change func(*RegistryAccess)) RegistryAccess { x := good; change(&x); return x }
	for what, c := range map[string]struct {
		as   RegistryAccess
		want string
	}{
		"another password":         {with(func(x *RegistryAccess) { x.PasswordFile = passwordFile(t, "other") }), "connect.schema_registry.username"},
		"no user":                  {with(func(x *RegistryAccess) { x.Login = secure.Login{} }), "connect.schema_registry.username"},
		"no certificate":           {with(func(x *RegistryAccess) { x.TLS = secure.TLS{CA: a.CA} }), "connect.schema_registry.tls"},
		"another authority's":      {with(func(x *RegistryAccess) { x.TLS.CA = other.CA }), "connect.schema_registry.tls"},
		"whom the machine trusts":  {with(func(x *RegistryAccess) { x.TLS = secure.TLS{} }), "connect.schema_registry.tls"},
		"a user without password":  {with(func(x *RegistryAccess) { x.PasswordFile = "" }), "connect.schema_registry.password_file"},
		"another name than it has": {with(func(x *RegistryAccess) { x.TLS.ServerName = "registry.example" }), "connect.schema_registry.tls"},
	} {
		err := look(c.as)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != c.want || e.WayOut == "" {
			t.Errorf("%s: %v; want a fault of %s", what, err, c.want)
		}
	}
	for url, want := range map[string]string{"http://registry:8081": "insecure", "http://registry": "insecure", "registry:8081": "https://registry:8081", "ftp://x": "https://", "https://me:geheim@registry:8081": "password_file"} {
		if _, err := (RegistryAccess{}).ConfluentRegistry(url, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := good.ConfluentRegistry("http://127.0.0.1:1", nil); err == nil {
		t.Error("TLS at a URL of plain text")
	}
	if _, err := (RegistryAccess{Insecure: true}).ConfluentRegistry("http://registry:8081", nil); err != nil {
		t.Error(err)
	}
}
