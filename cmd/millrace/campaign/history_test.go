//go:build linux

package campaign

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// history keeps what was done and what was found, a line of JSON each.
type history struct {
	t     *testing.T
	path  string
	began time.Time
	mu    struct {
		sync.Mutex
		file  *os.File
		found map[string]int
		shown map[string]int // of the chapter
	}
}

func newHistory(t *testing.T, path string, seed uint64) *history {
	t.Helper()
	h := &history{t: t, path: path, began: time.Now()}
	h.mu.found, h.mu.shown = map[string]int{}, map[string]int{}
	var err error
	if h.mu.file, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Logf("SEED=%d repeats this schedule; the history is in %s", seed, path)
	h.note("seed", fmt.Sprint(seed))
	return h
}

func (h *history) note(what, detail string) {
	line, err := json.Marshal(map[string]any{"seconds": time.Since(h.began).Seconds(), "what": what, "detail": detail})
	if err != nil {
		panic(err) // two strings and a number
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.file != nil {
		_, _ = h.mu.file.Write(append(line, '\n')) // a full disk is not what is tested
	}
}

// printed is how many violations of a kind a chapter prints; all are in the
// history.
const printed = 2

// chapter begins another part of the history.
func (h *history) chapter(what string) {
	h.note("chapter", what)
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.mu.shown)
}

func (h *history) violation(kind, detail string) {
	h.note(kind, detail)
	h.mu.Lock()
	h.mu.found[kind]++
	h.mu.shown[kind]++
	if h.mu.file != nil && h.mu.shown[kind] <= printed {
		h.t.Logf("%s (see %s): %s", kind, h.path, detail)
	}
	h.mu.Unlock()
}

func (h *history) found(kind string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.found[kind]
}

func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.file.Close()
	h.mu.file = nil
}
