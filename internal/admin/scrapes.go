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
	// maxGathered is how many gather metrics at a time.
	maxGathered = 4
	// maxScrapes is how many read them at a time, each of which has all in memory until
	// they are read, and maxOfOne those of one address.
	maxScrapes = 64
	maxOfOne   = 4
)

// scrapes gives metrics to few at a time, and to fewer of one address: whoever does not read
// what it has asked for holds a place that Prometheus needs.
type scrapes struct {
	metrics   http.Handler
	gathering chan struct{}

	mu      sync.Mutex
	reading map[string]int // by address
	all     int
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
		return // nobody waits for it
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

// gather returns the metrics as they are now, when it is r's turn.
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

// gathered is an answer in memory.
type gathered struct {
	bytes.Buffer
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (g *gathered) Header() http.Header { return g.header }

// WriteHeader implements http.ResponseWriter.
func (g *gathered) WriteHeader(code int) { g.code = code }
