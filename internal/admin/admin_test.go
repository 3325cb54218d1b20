package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace/internal/permit"
)

func TestHandler(t *testing.T) {
	reg := prometheus.NewRegistry()
	n := prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_test_total", Help: "A counter."})
	reg.MustRegister(n)
	n.Add(3)
	notReady := errors.New("3 of 720 partitions are behind")
	ready := notReady
	s := httptest.NewServer(Handler(reg, func() error { return ready }, http.NotFoundHandler()))
	defer s.Close()

	get := func(path string, status int, want string) {
		t.Helper()
		r, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != status || !strings.Contains(string(body), want) {
			t.Errorf("GET %s = %d %q, want %d %q", path, r.StatusCode, body, status, want)
		}
	}
	get("/livez", 200, "ok")
	get("/readyz", 503, notReady.Error())
	ready = nil
	get("/readyz", 200, "ok")
	get("/metrics", 200, "millrace_test_total 3")
	get("/debug/pprof/goroutine?debug=1", 200, "goroutine profile")
	// What the handler of symbols answers from memory is bounded.
	r, err := http.Post(s.URL+"/debug/pprof/symbol", "", strings.NewReader(strings.Repeat("0x44e3b1+", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if n, _ := io.Copy(io.Discard, r.Body); n > 16*maxBodyBytes {
		t.Errorf("%d bytes are answered", n)
	}
}

// What is under way when a server is to stop is answered whole, and only then does
// serving end; what takes longer than it may is cut off.
func TestRequestsUnderWayFinish(t *testing.T) {
	for name, c := range map[string]struct {
		finish time.Duration
		whole  bool
	}{"in time": {time.Minute, true}, "too late": {time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			asked, answer, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(asked)
				<-answer
				_, _ = io.WriteString(w, "whole")
			})
			go func() { ended <- ServeBy(ctx, l, &http.Server{Handler: h}, c.finish) }()
			got := make(chan string, 1)
			go func() {
				var body []byte
				if r, err := http.Get("http://" + l.Addr().String()); err == nil {
					body, _ = io.ReadAll(r.Body)
					_ = r.Body.Close()
				}
				got <- string(body)
			}()
			<-asked
			stop()
			if c.whole {
				select {
				case <-ended:
					t.Error("serving ends before what is under way is answered")
					ended <- nil
				case <-time.After(100 * time.Millisecond):
				}
				close(answer)
			} else {
				defer close(answer)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if body := <-got; (body == "whole") != c.whole {
				t.Errorf("the answer is %q", body)
			}
		})
	}
}

// Whatever is served, the table says who may ask for it.
func TestEveryPathIsInTheTable(t *testing.T) {
	all := routes(prometheus.NewRegistry(), nil, http.NotFoundHandler())
	for path := range all {
		if permit.RolesFor(path[strings.Index(path, "/"):]) == nil {
			t.Errorf("nothing says who may ask for %s", path)
		}
	}
	if len(all) < 9 {
		t.Errorf("%d paths", len(all))
	}
}

// gathering is metrics that are gathered until they are let go.
type gathering struct{ begun, done chan struct{} }

func (g gathering) Gather() ([]*dto.MetricFamily, error) {
	g.begun <- struct{}{}
	<-g.done
	return nil, nil
}

// Metrics are gathered for a few at a time, and others wait for their turn. One address reads
// them a few times at once, so that it cannot keep others from them.
func TestFewGatherMetricsAtATime(t *testing.T) {
	g := gathering{make(chan struct{}), make(chan struct{})}
	h := Handler(g, func() error { return nil }, http.NotFoundHandler())
	codes := make(chan int, maxScrapes)
	scrape := func(from string) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil)
		r.RemoteAddr = from
		h.ServeHTTP(w, r)
		codes <- w.Code
	}
	for i := range maxGathered {
		go scrape(fmt.Sprintf("10.0.0.9:%d", 1000+i)) // one address, as many as it may
		<-g.begun
	}
	if scrape("10.0.0.9:2000"); <-codes != http.StatusServiceUnavailable {
		t.Error("one more of the address is let in")
	}
	go scrape("10.0.0.8:1000")
	select {
	case <-g.begun:
		t.Errorf("more than %d gather metrics", maxGathered)
	case code := <-codes:
		t.Errorf("another address is told %d", code)
	case <-time.After(20 * time.Millisecond):
	}
	g.done <- struct{}{}
	<-g.begun // it is the other's turn
	close(g.done)
	for range maxGathered + 1 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("one is told %d", code)
		}
	}
}

// Who has asked for metrics and does not read them keeps nobody else of another address from
// them.
func TestUnreadMetricsHoldNobodyUp(t *testing.T) {
	s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) }))
	scrape := func(from string, w http.ResponseWriter) {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.RemoteAddr = from
		s.ServeHTTP(w, r)
	}
	stuck := stuckWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	var all sync.WaitGroup
	defer all.Wait()
	defer close(stuck.read)
	for i := range maxOfOne {
		all.Go(func() { scrape(fmt.Sprintf("[2001:db8::%d]:1", i), stuck) }) // one network
		<-stuck.begun
	}
	for from, want := range map[string]int{"[2001:db8::ffff]:1": http.StatusServiceUnavailable, "[2001:db8:1::1]:1": http.StatusOK, "10.0.0.9:1": http.StatusOK} {
		w := httptest.NewRecorder()
		if scrape(from, w); w.Code != want {
			t.Errorf("%s is told %d, want %d", from, w.Code, want)
		}
	}
}

// stuckWriter is an answer that is not read until its channel is closed.
type stuckWriter struct {
	*httptest.ResponseRecorder
	begun, read chan struct{}
}

func (w stuckWriter) Header() http.Header { return http.Header{} }
func (w stuckWriter) WriteHeader(int)     {}
func (w stuckWriter) Write(b []byte) (int, error) {
	w.begun <- struct{}{}
	<-w.read
	return len(b), nil
}

// A client that does not read its answer is cut off, one that asks for a profile only
// behind that, and what came before on a connection does not count.
func TestAnswersAreReadInTime(t *testing.T) {
	const within = 2 * time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	s := server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/long":
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					failed <- err
					return
				}
			}
		case "/debug/pprof/profile":
			time.Sleep(2 * within)
		}
		_, _ = io.WriteString(w, "whole")
	}), within)
	if s.HTTP2 == nil || s.HTTP2.MaxConcurrentStreams != maxStreams {
		t.Errorf("HTTP/2 has %+v", s.HTTP2)
	}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	for _, path := range []string{"/short", "/debug/pprof/profile?seconds=5", "/short"} { // on one connection
		r, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(r.Body); err != nil || string(text) != "whole" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
		r.Body.Close()
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /long HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("an answer that nobody reads is written on and on")
	}
	for url, want := range map[string]time.Duration{
		"/metrics?seconds=9": 0, "/debug/pprof/profile": 30 * time.Second, "/debug/pprof/heap?seconds=90": 90 * time.Second,
		"/debug/pprof/trace?seconds=0.5": time.Second / 2, "/debug/pprof/trace?seconds=NaN": 30 * time.Second, "/debug/pprof/trace?seconds=1e300": maxProfile,
	} {
		if got := profileTime(httptest.NewRequest("GET", url, nil)); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}
