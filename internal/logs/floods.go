package logs

import (
	"log/slog"
	"sync"
	"time"
)

// A place in the code may write maxLines lines in linesEvery. Without this bound, a line for
// each bad record that others send could fill a disk. DEBUG has no such bound, since somebody
// asked for it.
const (
	maxLines   = 100
	linesEvery = 10 * time.Second
)

// floods bounds the lines of each place in the code.
type floods struct{ places sync.Map } // by program counter, a uintptr: *place

// place counts the lines of one place in the code.
type place struct {
	mu      sync.Mutex
	since   time.Time // when the current linesEvery began
	lines   int       // since then
	leftOut int       // lines that were left out and that no written line has counted yet
}

// take reports whether a line is to be written. It adds to the line how many lines of the same
// place were left out before it.
func (f *floods) take(r *slog.Record) bool {
	if r.Level < slog.LevelInfo || r.PC == 0 {
		return true
	}
	at, _ := f.places.LoadOrStore(r.PC, &place{})
	p := at.(*place)
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Time.Sub(p.since) >= linesEvery {
		p.since, p.lines = r.Time, 0
	}
	if p.lines++; p.lines > maxLines {
		p.leftOut++
		return false
	}
	if p.leftOut > 0 {
		r.AddAttrs(slog.Int("left_out", p.leftOut))
		p.leftOut = 0
	}
	return true
}
