package permit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// fetched is the keys that an issuer publishes under a URL. They are fetched when the
// first token comes, which waits for them, and anew while others come, beside them.
// What cannot be fetched, or is no key set, changes nothing, and is told; where nothing
// was fetched yet nobody is known.
type fetched struct {
	url   string
	http  http.Client
	log   *slog.Logger
	first sync.Once // the first fetch
	good  atomic.Pointer[jose.JSONWebKeySet]
	text  string // of good. Of fetch alone, of which one goes on at a time

	mu struct {
		sync.Mutex
		ended time.Time // the last fetch
		busy  bool      // it goes on
		fault string    // of the last one; "" if it was good
	}
}

const (
	keysEvery    = 5 * time.Minute
	keysAgain    = 30 * time.Second // for a key that is not among them, or after a fault
	keysWithin   = 5 * time.Second
	maxKeysBytes = 1 << 20
)

// keysAt returns the keys of a URL, of which none is fetched yet.
func keysAt(at string, log *slog.Logger) (*fetched, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return nil, invalid("jwt.jwks", fmt.Sprintf("%.200q is no https URL of a host", at), "give one such as https://issuer.example/keys.json, without a user and a password; plain http is for loopback alone")
	}
	f := &fetched{url: at, log: log}
	f.http = http.Client{Timeout: keysWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	f.good.Store(new(jose.JSONWebKeySet))
	f.mu.busy = true
	return f, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (f *fetched) current() *jose.JSONWebKeySet {
	f.first.Do(f.fetch)
	f.again(keysEvery)
	return f.good.Load()
}

func (f *fetched) lacks() { f.again(keysAgain) }

func (f *fetched) away() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.good.Load().Keys) == 0 && f.mu.fault != ""
}

// again fetches the keys if the last time is so long ago.
func (f *fetched) again(every time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.fault != "" {
		every = keysAgain
	}
	if f.mu.busy || time.Since(f.mu.ended) < every {
		return
	}
	f.mu.busy = true
	go f.fetch()
}

func (f *fetched) fetch() {
	keys, err := f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.ended, f.mu.busy = time.Now(), false
	was := f.mu.fault
	f.mu.fault = ""
	switch {
	case err == nil:
		f.good.Store(keys)
		if was != "" {
			f.log.Info("the keys that sign tokens were read", "field", field+".jwt.jwks", "url", f.url, "keys", len(keys.Keys))
		}
	default:
		if f.mu.fault = err.Error(); f.mu.fault != was {
			f.log.Warn("the keys that sign tokens cannot be read; those that were read before stay", "field", field+".jwt.jwks", "url", f.url, "keys", len(f.good.Load().Keys), "err", err)
		}
	}
}

func (f *fetched) read() (*jose.JSONWebKeySet, error) {
	ctx, cancel := context.WithTimeout(context.Background(), keysWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := f.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it is answered by %s, and redirections are not followed", resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxKeysBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) == 0:
		return nil, errors.New("the answer is empty")
	case len(text) > maxKeysBytes:
		return nil, fmt.Errorf("it has more than %d bytes", maxKeysBytes)
	}
	if string(text) == f.text { // what is passed over is told once
		return f.good.Load(), nil
	}
	keys, err := parseKeys(string(text), f.log)
	if err == nil {
		f.text = string(text)
	}
	return keys, err
}
