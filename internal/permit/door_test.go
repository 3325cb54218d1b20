package permit

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// pipes is a listener of connections in memory, and counts them.
type pipes struct {
	of   chan net.Conn
	done chan struct{}
	once *sync.Once
	ends *int // that the other side has seen, under mu
	mu   *sync.Mutex
}

func newPipes() pipes {
	return pipes{make(chan net.Conn), make(chan struct{}), new(sync.Once), new(int), new(sync.Mutex)}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.of:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial() net.Conn { return p.dialFrom(1) }

// dialFrom dials from another address.
func (p pipes) dialFrom(i int) net.Conn {
	ours, theirs := net.Pipe()
	p.of <- at{theirs, byte(i)}
	return &ending{Conn: ours, of: p}
}

func (p pipes) ended() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *p.ends
}

// at is a connection from an address.
type at struct {
	net.Conn
	last byte
}

func (a at) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, a.last), Port: 7} }

// ending counts that the other side ended it.
type ending struct {
	net.Conn
	of   pipes
	once sync.Once
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if err == io.EOF {
		e.once.Do(func() {
			e.of.mu.Lock()
			*e.of.ends++
			e.of.mu.Unlock()
		})
	}
	return n, err
}

// A connection stays if a call of it was let in, and by gRPC if its certificate is
// of a role that the port is for; one that has only been refused ends, and what
// was refused is counted with its reason.
func TestOnlyWhoIsLetInStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := authority.New(t)
		how := a.Server(a.Issue("server", "10.0.0.9"), true)
		how.ClientAuth, how.NextProtos = tls.VerifyClientCertIfGiven, []string{"h2", "http/1.1"}
		all := prometheus.NewRegistry()
		refusals := door.NewRefusals(slog.New(slog.DiscardHandler), all)
		counted := func() string {
			families, err := all.Gather()
			must(t, err)
			var text []string
			for _, m := range families[0].Metric {
				if m.Counter.GetValue() > 0 {
					text = append(text, m.Label[0].GetValue()+" "+m.Label[1].GetValue())
				}
			}
			return strings.Join(text, ", ")
		}
		through := func(p pipes, port string) net.Listener {
			return door.New(p, door.Config{Port: port, TLS: how, Told: refusals})
		}
		tokens := filepath.Join(t.TempDir(), "tokens")
		must(t, os.WriteFile(tokens, nil, 0o600))
		policy := opened(t, Config{Identities: everybody.Identities, Tokens: tokens, Probes: true})
		server := grpc.NewServer(append(policy.ServerOptions(nil, Caller), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			return s.SendMsg(&emptypb.Empty{})
		}))...)
		rpc, web := newPipes(), newPipes()
		go func() { _ = server.Serve(through(rpc, "grpc")) }()
		defer server.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = admin.ServeBy(ctx, through(web, "http"), &http.Server{Handler: policy.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), Caller)}, 0)
		}()
		defer func() { cancel(); <-served }()
		as := func(name string) *tls.Config {
			of := secure.TLS{CA: a.CA}
			if name != "" {
				of = a.Issue(name)
			}
			files, err := secure.Open(of, "tls", nil)
			must(t, err)
			c := files.Client()
			c.ServerName = "10.0.0.9"
			return c
		}
		for _, c := range []struct {
			name, token string
			path        string
			http2       bool
			rpcs, webs  int // that have ended
			counted     string
		}{
			{"app", "", "/v1/feed", false, 0, 0, ""},
			{"app", "", "/v1/feed", true, 0, 0, ""},
			{"node", "", "/v1/feed", false, 1, 1, "grpc forbidden, http forbidden"},
			{"", "", "/v1/feed", true, 2, 2, "grpc unknown, http unknown"},
			{"app", "Bearer not-a-token-at-all", "/v1/feed", false, 2, 3, ""},
			{"", "", "/livez", true, 3, 4, ""}, // which is for anybody, and no work of the port
		} {
			conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(credentials.NewTLS(as(c.name))), grpc.WithIdleTimeout(0),
				grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return rpc.dial(), nil }))
			must(t, err)
			transport := &http.Transport{TLSClientConfig: as(c.name), ForceAttemptHTTP2: c.http2, DialContext: func(context.Context, string, string) (net.Conn, error) { return web.dial(), nil }}
			ask := func() {
				ctx := t.Context()
				req, _ := http.NewRequest("GET", "https://x"+c.path, nil)
				if c.token != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.token)
					req.Header.Set("authorization", c.token)
				}
				_ = conn.Invoke(ctx, "/millrace.feed.v1.FeedService/GetFeed", &emptypb.Empty{}, &emptypb.Empty{})
				resp, err := transport.RoundTrip(req)
				must(t, err)
				if (resp.ProtoMajor == 2) != c.http2 {
					t.Errorf("it is HTTP/%d", resp.ProtoMajor)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			before := rpc.ended()
			ask()
			time.Sleep(door.Within / 2)
			ask()
			time.Sleep(door.Within)
			if rpc.ended() != before { // a token may yet come
				t.Errorf("%q %q: by gRPC it has ended already", c.name, c.token)
			}
			time.Sleep(door.Patience)
			if rpc.ended() != c.rpcs || web.ended() != c.webs {
				t.Errorf("%q %q: %d and %d have ended, not %d and %d", c.name, c.token, rpc.ended(), web.ended(), c.rpcs, c.webs)
			}
			for want := range strings.SplitSeq(c.counted, ", ") {
				if !strings.Contains(counted(), want) {
					t.Errorf("%q: %s are counted, not %s", c.name, counted(), want)
				}
			}
			_ = conn.Close()
			transport.CloseIdleConnections()
		}
		// Who shows a certificate of another authority is told, too.
		other := authority.New(t)
		stranger, err := secure.Open(other.Issue("app"), "tls", nil)
		must(t, err)
		config := stranger.Client()
		config.InsecureSkipVerify = true
		for _, p := range []pipes{rpc, web} {
			c := tls.Client(p.dial(), config)
			_, err = c.Read(make([]byte, 100))
			for err == nil {
				_, err = c.Read(make([]byte, 100))
			}
			_ = c.Close()
		}
		synctest.Wait()
		if got := counted(); !strings.Contains(got, "grpc handshake") || !strings.Contains(got, "http handshake") {
			t.Errorf("of a stranger's certificate: %s", got)
		}
		time.Sleep(time.Minute)
	})
}

// Who has its share of a port's connections, by its certificate, is told so by
// gRPC and by HTTP, and others are answered beside it; one that has left makes
// room for another.
func TestAnIdentityHasItsShare(t *testing.T) {
	const share = 64 // of a port of 128
	synctest.Test(t, func(t *testing.T) {
		a := authority.New(t)
		how := a.Server(a.Issue("server", "10.0.0.9"), true)
		all := prometheus.NewRegistry()
		refusals := door.NewRefusals(slog.New(slog.DiscardHandler), all)
		counted := func(port string) (n float64) {
			families, err := all.Gather()
			must(t, err)
			for _, m := range families[0].Metric {
				if m.Label[0].GetValue() == port && m.Label[1].GetValue() == string(door.Identity) {
					n += m.Counter.GetValue()
				}
			}
			return n
		}
		policy := opened(t, everybody)
		through := func(p pipes, port, protocol string) net.Listener {
			c := how.Clone()
			c.NextProtos = []string{protocol}
			return door.New(p, door.Config{Port: port, Conns: 2 * share, TLS: c, Told: refusals})
		}
		server := grpc.NewServer(append(policy.ServerOptions(nil, Caller), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			return s.SendMsg(&emptypb.Empty{})
		}))...)
		rpc, web := newPipes(), newPipes()
		go func() { _ = server.Serve(through(rpc, "grpc", "h2")) }()
		defer server.Stop()
		site := &http.Server{
			Handler:     policy.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})),
			ConnContext: func(ctx context.Context, c net.Conn) context.Context { return door.With(ctx, door.Of(c)) },
		}
		go func() { _ = site.Serve(through(web, "http", "http/1.1")) }()
		defer site.Close()
		as := map[string]*tls.Config{}
		for _, name := range []string{"app", "ops"} {
			files, err := secure.Open(a.Issue(name), "tls", nil)
			must(t, err)
			as[name] = files.Client()
			as[name].ServerName = "10.0.0.9"
		}
		from := 0
		byRPC := func(name string) (ask func() string, end func() error) {
			from++
			i := from
			conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(credentials.NewTLS(as[name])), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return rpc.dialFrom(i), nil }))
			must(t, err)
			return func() string {
				err := conn.Invoke(t.Context(), "/millrace.feed.v1.FeedService/GetFeed", &emptypb.Empty{}, &emptypb.Empty{})
				if err == nil {
					return "answered"
				}
				return err.Error()
			}, conn.Close
		}
		byHTTP := func(name string) (ask func() string, end func() error) {
			from++
			i := from
			transport := &http.Transport{TLSClientConfig: as[name], DialContext: func(context.Context, string, string) (net.Conn, error) { return web.dialFrom(i), nil }}
			return func() string {
				req, _ := http.NewRequest("GET", "https://x/v1/feed", nil)
				resp, err := transport.RoundTrip(req)
				must(t, err)
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				must(t, err)
				if resp.StatusCode == http.StatusOK {
					return "answered"
				}
				if !resp.Close {
					t.Error("HTTP: who is refused is not told that the connection ends")
				}
				return resp.Status + " " + string(text)
			}, func() error { transport.CloseIdleConnections(); return nil }
		}
		for port, by := range map[string]func(string) (func() string, func() error){"grpc": byRPC, "http": byHTTP} {
			var ends []func() error
			for range share {
				ask, end := by("app")
				if got := ask(); got != "answered" {
					t.Fatalf("%s: one within its share is told %s", port, got)
				}
				ends = append(ends, end)
			}
			late, end := by("app")
			if got := late(); !strings.Contains(got, "app has 64 connections to this port") || counted(port) != 1 {
				t.Errorf("%s: one that has its share is told %s, and %v are counted", port, got, counted(port))
			}
			other, endOther := by("ops")
			if got := other(); got != "answered" {
				t.Errorf("%s: another is told %s", port, got)
			}
			time.Sleep(2 * time.Second) // much less than a stranger's connection lasts
			synctest.Wait()
			if port == "grpc" && rpc.ended() != 1 {
				t.Errorf("%d connections have ended, want the one that was told", rpc.ended())
			}
			must(t, ends[0]())
			synctest.Wait()
			if got := late(); got != "answered" {
				t.Errorf("%s: one has left, and it is told %s", port, got)
			}
			for _, end := range append(ends[1:], end, endOther) {
				must(t, end())
			}
		}
		server.Stop()
		must(t, site.Close())
		time.Sleep(time.Minute)
	})
}

// What a browser sends for a page of another site is refused, with whatever
// certificate, and where nobody needs one; to follow a link is not.
func TestBrowsersSendNothingForOthers(t *testing.T) {
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, p := range map[string]*Policy{"with a policy": opened(t, everybody), "without": nil} {
		h := p.Handler(served)
		for _, c := range []struct {
			method, headers string
			refused         bool
		}{
			{"POST", "", false},
			{"POST", "Sec-Fetch-Site: cross-site", true},
			{"POST", "Sec-Fetch-Site: same-site", true},
			{"POST", "Sec-Fetch-Site: same-origin", false},
			{"POST", "Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: document", true},
			{"POST", "Origin: https://evil.example", true},
			{"POST", "Origin: null", true},
			{"POST", "Origin: http://admin:6060", false},
			{"GET", "", false},
			{"GET", "Sec-Fetch-Site: none", false},
			{"GET", "Sec-Fetch-Site: cross-site", true},
			{"GET", "Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: iframe", true},
			{"GET", "Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: document", false},
			{"GET", "Origin: https://evil.example", true},
		} {
			r := httptest.NewRequest(c.method, "http://admin:6060/readyz", nil)
			for header := range strings.SplitSeq(c.headers, ", ") {
				if key, value, ok := strings.Cut(header, ": "); ok {
					r.Header.Set(key, value)
				}
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if refused := w.Code == http.StatusForbidden; refused != c.refused || refused && !strings.Contains(w.Body.String(), "way_out") {
				t.Errorf("%s: %s with %s is answered %d %s", name, c.method, c.headers, w.Code, w.Body)
			}
		}
	}
}
