package admin

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"sync"

	"github.com/millrace/millrace/internal/door"
)

const (
	// maxGathered is how many requests gather metrics at a time.
	maxGathered = 4
	// maxScrapes is how many requests for metrics are in flight at a time: each keeps its
	// whole answer in memory until it is read. maxOfOne is how many of one address.
	maxScrapes = 64
	maxOfOne   = 4
)

// scrapes serves metrics to few clients at a time, and to fewer of one address. A client
// that does not read its answer holds a place that Prometheus may need.
type scrapes struct {
	metrics   http.Handler
	gathering chan struct{}

	mu      sync.Mutex
	reading map[string]int // by address: requests in flight
	all     int            // requests in flight
}

func newScrapes(metrics http.Handler) *scrapes {
	return &scrapes{metrics: metrics, gathering: make(chan struct{}, maxGathered), reading: map[string]int{}}
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := door.Counted(r.RemoteAddr)
	if !s.enter(from) {
		http.Error(w, "too many read metrics at a time, or too many of this address; end requests that are not read", http.StatusServiceUnavailable)
		return
	}
	defer s.leave(from)
	text, ok := s.gather(r.Context(), r)
	if !ok {
		return // the client has gone
	}
	maps.Copy(w.Header(), text.header)
	w.WriteHeader(max(text.code, http.StatusOK))
	_, _ = w.Write(text.Bytes())
}

func (s *scrapes) enter(from string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxScrapes || s.reading[from] >= maxOfOne {
		return false
	}
	s.all++
	s.reading[from]++
	return true
}

func (s *scrapes) leave(from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.reading[from]--; s.reading[from] == 0 {
		delete(s.reading, from)
	}
}

// gather waits for r's turn, and returns the metrics as they are then; false if r ended
// first.
func (s *scrapes) gather(ctx context.Context, r *http.Request) (*gathered, bool) {
	select {
	case s.gathering <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	defer func() { <-s.gathering }()
	text := &gathered{header: http.Header{}}
	s.metrics.ServeHTTP(text, r)
	return text, true
}

// gathered is an [http.ResponseWriter] that keeps the answer in memory.
type gathered struct {
	bytes.Buffer
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (g *gathered) Header() http.Header { return g.header }

// WriteHeader implements http.ResponseWriter.
func (g *gathered) WriteHeader(code int) { g.code = code }
