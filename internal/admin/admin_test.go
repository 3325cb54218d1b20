package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
		if !permit.Listed(path[strings.Index(path, "/"):]) {
			t.Errorf("nothing says who may ask for %s", path)
		}
	}
	if len(all) < 9 {
		t.Errorf("%d paths", len(all))
	}
}
