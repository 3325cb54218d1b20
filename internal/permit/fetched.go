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

// fetched is the keys that an issuer publishes at a URL. The first token waits while they
// are fetched. Later tokens cause them to be fetched again in the background, and do not
// wait. A fetch that fails, or gives no key set, is logged, and the keys stay as they are.
// Before the first good fetch there are no keys, and no token is believed.
type fetched struct {
	url   string
	http  http.Client
	log   *slog.Logger
	first sync.Once                          // runs the first fetch
	good  atomic.Pointer[jose.JSONWebKeySet] // the keys of the last good fetch; at first none
	text  string                             // what good was parsed from. Only for fetch, which never runs twice at once

	mu struct {
		sync.Mutex
		ended time.Time // when the last fetch ended
		busy  bool      // a fetch is running, or the first one has not ended
		fault string    // of the last fetch; "" if it was good
	}
}

const (
	keysEvery    = 5 * time.Minute  // between two fetches
	keysAgain    = 30 * time.Second // between two fetches if a key is missing, or after a fault
	keysWithin   = 5 * time.Second  // the timeout of a fetch
	maxKeysBytes = 1 << 20          // of an answer
)

// keysAt returns the keys of a URL, before the first fetch. The URL must be https, or http on
// loopback.
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

// current implements signingKeys. The first call waits for the first fetch.
func (f *fetched) current() *jose.JSONWebKeySet {
	f.first.Do(f.fetch)
	f.again(keysEvery)
	return f.good.Load()
}

// lacks implements signingKeys. It fetches the keys again, but not more often than keysAgain.
func (f *fetched) lacks() { f.again(keysAgain) }

// away implements signingKeys.
func (f *fetched) away() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.good.Load().Keys) == 0 && f.mu.fault != ""
}

// again starts a fetch unless one is running. The last one must have ended at least the time
// every before, or keysAgain if it failed.
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

// fetch fetches the keys once, and notes the result.
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

// read returns the key set at the URL.
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
	if string(text) == f.text { // parseKeys would log the keys that it passes over again
		return f.good.Load(), nil
	}
	keys, err := parseKeys(string(text), f.log)
	if err == nil {
		f.text = string(text)
	}
	return keys, err
}
