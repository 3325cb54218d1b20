package permit

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/millrace/millrace"
)

// issuer publishes keys, or answers something else.
type issuer struct {
	mu     sync.Mutex
	answer http.HandlerFunc
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer(w, r)
}

func (i *issuer) answers(f http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = f
}

func (i *issuer) publishes(text []byte) {
	i.answers(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) })
}

// Keys of a URL are fetched again when a token names another, and in any case after
// some minutes. An issuer that is away, or answers something else, takes nothing
// from who is known; one that is away at the start keeps no process from starting.
func TestKeysOfAURL(t *testing.T) {
	first, second := newSigner(t, "1"), newSigner(t, "2")
	var i issuer
	i.answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	s := httptest.NewServer(&i)
	defer s.Close()
	var log bytes.Buffer
	p, err := Config{Identities: map[string][]Role{"jwt:ops": {Operator}}, JWT: JWT{JWKS: s.URL + "/keys.json", Issuer: "https://login", Audience: "millrace"}}.Open(slog.New(slog.NewTextHandler(&log, nil)))
	must(t, err)
	keys := p.jwt.keys.(*fetched)
	claims := jwt.Claims{Subject: "ops", Issuer: "https://login", Audience: jwt.Audience{"millrace"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	known := func(by signer) bool {
		who, err := p.Identify(nil, "Bearer "+by.sign(claims))
		return err == nil && who.Name == "jwt:ops"
	}
	// ago has the last fetch lie so far back, has a token come, and waits for the next one.
	ago := func(d time.Duration, by signer) {
		t.Helper()
		keys.mu.Lock()
		keys.mu.ended = time.Now().Add(-d)
		keys.mu.Unlock()
		known(by)
		for busy := true; busy; time.Sleep(time.Millisecond) {
			keys.mu.Lock()
			busy = keys.mu.busy
			keys.mu.Unlock()
		}
	}
	if known(first) || !strings.Contains(log.String(), "503") {
		t.Errorf("an issuer that is away at the start: known %t, told %s", known(first), &log)
	}
	var e *millrace.Error
	if _, err := p.Identify(nil, "Bearer "+first.sign(claims)); !errors.As(err, &e) || e.Reason != millrace.ReasonUnavailable || strings.Contains(err.Error(), "503") { // which only the log says: it names what is inside
		t.Errorf("nothing is known of a token then, and its caller is told %v", err)
	}
	i.publishes(keySet(t, first))
	if ago(keysAgain-time.Second, first); known(first) {
		t.Error("an issuer that is away is asked without a pause")
	}
	if ago(keysAgain, first); !known(first) || known(second) {
		t.Errorf("the issuer is back: %s", &log)
	}
	if _, err := p.Identify(nil, "Bearer "+second.sign(claims)); !errors.As(err, &e) || e.Reason != millrace.ReasonForbidden {
		t.Errorf("a token by another key is told %v", err)
	}
	i.publishes(keySet(t, first, second))
	if ago(keysAgain, first); known(second) {
		t.Error("keys are fetched without a need")
	}
	if ago(keysAgain, second); !known(second) || !known(first) {
		t.Error("a key that is new is not fetched")
	}
	i.publishes(keySet(t, second))
	if ago(keysEvery, second); known(first) || !known(second) {
		t.Error("a key that was withdrawn is believed")
	}
	for what, answer := range map[string]http.HandlerFunc{
		"no key set": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) },
		"nothing":    func(http.ResponseWriter, *http.Request) {},
		"too much": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte(" "), maxKeysBytes+1))
		},
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"a page":      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"its failure": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		log.Reset()
		i.answers(answer)
		if ago(keysEvery, second); !known(second) || log.Len() == 0 {
			t.Errorf("the issuer answers %s: known %t, told %s", what, known(second), &log)
		}
		i.publishes(keySet(t, second))
		if ago(keysAgain, second); !strings.Contains(log.String(), "were read") {
			t.Errorf("after %s: %s", what, &log)
		}
	}
	for _, bad := range []string{"http://issuer.example/keys", "ftp://127.0.0.1/keys", "https://", "https://me:secret@issuer.example/keys", "://"} {
		if _, err := keysAt(bad, slog.Default()); err == nil || !strings.Contains(err.Error(), "jwt.jwks") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
