//go:build synctests

package simulation

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestHistories goes through histories of fixed seeds. MILLRACE_SIMULATE says for
// how long to go on with the seeds behind MILLRACE_SEED, or behind one by chance
// (10m), or how often to go through that one (20x).
func TestHistories(t *testing.T) {
	seeds := fixedSeeds
	if os.Getenv("MILLRACE_SIMULATE") != "" {
		seeds = []uint64{uint64(time.Now().UnixNano())}
	}
	if text := os.Getenv("MILLRACE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	text := os.Getenv("MILLRACE_SIMULATE")
	if times, ok := strings.CutSuffix(text, "x"); ok {
		again(t, seeds[0], times)
		return
	}
	for _, seed := range seeds {
		try(t, seed)
	}
	if text == "" {
		return
	}
	lasts, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	n, failed := len(seeds), 0
	began := time.Now()
	for seed := seeds[len(seeds)-1] + 1; time.Since(began) < lasts; seed++ {
		if n++; !try(t, seed) {
			failed++
		}
	}
	fmt.Printf("%d histories in %s, %d with a finding\n", n, time.Since(began).Round(time.Second), failed)
}

// fixedSeeds are of histories with most of what can happen.
var fixedSeeds = []uint64{1, 2, 3}

// again tells how often a seed finds something.
func again(t *testing.T, seed uint64, times string) {
	n, err := strconv.Atoi(times)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for range n {
		if !try(t, seed) {
			failed++
		}
	}
	fmt.Printf("SEED=%d finds something %d times of %d\n", seed, failed, n)
}

// hangs is how long a history may take by the real clock until it is told where
// it stands: a goroutine that waits for a mutex stops virtual time.
const hangs = 20 * time.Minute

// try goes through a history, and prints what it found.
func try(t *testing.T, seed uint64) bool {
	began := time.Now()
	hang := time.AfterFunc(hangs, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("SEED=%d: virtual time stands still", seed))
	})
	defer hang.Stop()
	h := live(t, seed)
	t.Logf("SEED=%d: %d inputs, %d answers, %d refusals, %s", seed, len(h.truth.inputs), len(h.asks.answers), len(h.asks.refused), time.Since(began).Round(time.Millisecond))
	if len(h.findings) == 0 {
		return true
	}
	t.Errorf("SEED=%d finds:\n  %s\nafter\n  %s\nmake simulate SEED=%[1]d DURATION=20x repeats it", seed, strings.Join(h.findings[:min(len(h.findings), 5)], "\n  "), strings.Join(h.told, "\n  "))
	return false
}
