package indexnode

import (
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/relevance"
)

// Who reads what the cache misses, for itself and for those who wait, may
// panic: all of them have an error, and nothing is held that the next needs.
func TestAPanicOfAReaderEndsQuestionsOnly(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 20, 3)
	long := members(t, n, h, 1, 2*maxCached) // older records are read apart
	newest := ofAll(long)
	newest.FromMs = int64(millrace.MaxTime) - 1
	if _, err := n.Query(t.Context(), newest); err != nil { // fills the cache
		t.Fatal(err)
	}
	known := n.schemas
	decoding, goroutine := func() { n.schemas = nil }, func() { close(n.readers) }
	const askers = 16
	for i, c := range []struct {
		what  string
		req   *nodev1.QueryRequest
		spoil func()
	}{
		{"who reads for others", ofAll(names), decoding},
		{"who reads older records for others", ofAll(long), decoding},
		{"who reads a partition", ofAll(names), goroutine},
	} {
		what, req := c.what, c.req
		c.spoil()
		var wg sync.WaitGroup
		for range askers {
			wg.Go(func() {
				_, err := n.Query(t.Context(), req)
				if status.Code(err) != codes.Internal || !strings.HasPrefix(status.Convert(err).Message(), "query panicked: ") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		wg.Wait()
		if n.schemas = known; len(n.readers) > 0 {
			t.Errorf("%s: %d read for ever", what, len(n.readers))
		}
		n.readers = make(chan struct{}, maxNodeReads)
		var m dto.Metric
		if err := n.counters.panics.Write(&m); err != nil || int(m.Counter.GetValue()) != (i+1)*askers {
			t.Errorf("%s: %v questions counted, %v; want %d", what, m.Counter.GetValue(), err, (i+1)*askers)
		}
		for p := range n.parts {
			if mu := &n.parts[p].mu; mu.TryLock() {
				mu.Unlock()
			} else {
				t.Errorf("%s: partition %d is locked", what, p)
			}
		}
		if resp, err := n.Query(t.Context(), req); err != nil || len(resp.Items) != 10 {
			t.Errorf("%s, after it: %v, %v", what, resp, err)
		}
		n.cache.Purge()
		if _, err := n.Query(t.Context(), newest); err != nil {
			t.Fatal(err)
		}
	}
}

// A pushed model that panics on live candidates is not the end of the node.
func TestAPanicOfATriedModelIsAnError(t *testing.T) {
	n := hostileNode(t)
	if _, err := n.Query(t.Context(), all(func(r *nodev1.QueryRequest) { r.Types = []string{"post"} })); err != nil {
		t.Fatal(err)
	}
	n.cache.Purge()
	known := n.schemas
	n.schemas = nil
	if _, _, err := n.uncovered(t.Context(), relevance.ID{Name: "recency"}); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("%v", err)
	}
	n.schemas = known
}
