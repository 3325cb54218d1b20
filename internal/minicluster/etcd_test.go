package minicluster

import (
	"net/http"
	"strings"
	"testing"
)

// Who closes etcd to see what follows, and then fails, closes it again.
func TestEtcdClosesTwice(t *testing.T) {
	e, err := StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	e.Close()
}

// A page of a browser cannot write to it: it takes no JSON, and answers no other
// site.
func TestEtcdTakesNothingOfPages(t *testing.T) {
	e, err := StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	resp, err := http.Post("http://"+e.Addr()+"/v3/kv/put", "text/plain", strings.NewReader(`{"key": "a2V5", "value": "dmFsdWU="}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
}
