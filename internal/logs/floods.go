package logs

import (
	"log/slog"
	"sync"
	"time"
)

// What a place in the code may write: what others send, record by record, must not fill a
// disk. DEBUG is asked for, and written whole.
const (
	maxLines   = 100
	linesEvery = 10 * time.Second
)

// floods holds each place in the code to its lines.
type floods struct{ places sync.Map } // by program counter: *place

// place is what one of them has written of late.
type place struct {
	mu      sync.Mutex
	since   time.Time
	lines   int
	leftOut int // that the next line tells
}

// take reports whether a line is written, and adds to it how many like it were not.
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
