package backup

import (
	"fmt"
	"sync"
	"time"
)

// Progress counts how far something that takes long has come, in bytes. To count in a nil
// Progress does nothing, but Now needs a Progress that is not nil.
type Progress struct {
	mu struct {
		sync.Mutex
		done, total int64
		began       time.Time
		marks       [marks]mark // a ring; one mark a second, at most
		at          int         // the newest mark
	}
}

// marks is how many marks there are. So the rate is measured over that many seconds, if
// bytes move in each of them.
const marks = 16

// mark is how many bytes were done at a time.
type mark struct {
	at   time.Time
	done int64
}

// Sample is a Progress at one moment.
type Sample struct {
	Done, Total    int64         // bytes; Total is 0 while it is not known
	BytesPerSecond float64       // over the last seconds
	Elapsed        time.Duration // since NewProgress
	Left           time.Duration // an estimate; -1 if there is none
}

// NewProgress begins to count towards a total of bytes; 0 if it is not known yet.
func NewProgress(total int64) *Progress {
	p := &Progress{}
	p.mu.total = total
	p.mu.began = time.Now()
	p.mu.marks[0] = mark{at: p.mu.began}
	return p
}

// Expect adds bytes to the total. If nothing was expected or done before, the rate is
// measured from this call on. It does nothing if p is nil.
func (p *Progress) Expect(bytes int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.total == 0 && p.mu.done == 0 {
		p.mu.marks[0].at = time.Now()
	}
	p.mu.total += bytes
}

// add counts bytes as done; fewer than 0 for those that must be done again.
func (p *Progress) add(bytes int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.done += bytes
	now := time.Now()
	if now.Sub(p.mu.marks[p.mu.at].at) >= time.Second {
		p.mu.at = (p.mu.at + 1) % marks
		p.mu.marks[p.mu.at] = mark{now, p.mu.done}
	}
}

// Now returns how far it has come. p must not be nil.
func (p *Progress) Now() Sample {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	s := Sample{Done: p.mu.done, Total: p.mu.total, Elapsed: now.Sub(p.mu.began), Left: -1}
	oldest := p.mu.marks[(p.mu.at+1)%marks]
	if oldest.at.IsZero() {
		oldest = p.mu.marks[0]
	}
	if d := now.Sub(oldest.at).Seconds(); d > 0 {
		s.BytesPerSecond = max(0, float64(s.Done-oldest.done)/d)
	}
	if s.Total >= s.Done && s.Total > 0 && s.BytesPerSecond > 0 {
		s.Left = time.Duration(float64(s.Total-s.Done) / s.BytesPerSecond * float64(time.Second))
	}
	return s
}

// String returns the sample as people read it: "1.2 of 3.4 GiB, 118 MiB/s,
// 19s left".
func (s Sample) String() string {
	line := Bytes(s.Done)
	if s.Total > 0 {
		line += " of " + Bytes(s.Total)
	}
	if s.BytesPerSecond > 0 {
		line += ", " + Bytes(int64(s.BytesPerSecond)) + "/s"
	}
	if s.Left >= 0 && s.Done < s.Total {
		line += ", " + s.Left.Round(time.Second).String() + " left"
	}
	return line
}

// Bytes returns a count of bytes as people read it, such as "1.2 GiB".
func Bytes(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	for v >= 1024 && unit < 3 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[unit])
}
