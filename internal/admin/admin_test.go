package admin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
