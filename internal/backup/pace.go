package backup

import (
	"context"
	"errors"
	"io"
	"time"
)

// Pace is called after work that took so long, and rests in proportion.
type Pace func(ctx context.Context, worked time.Duration)

func (p Pace) since(ctx context.Context, began time.Time) {
	if p != nil {
		p(ctx, time.Since(began))
	}
}

// yielding are the objects of a directory, each of whose operations holds a
// processor or waits for a disk in a system call, which does too. What waits for
// a network does not.
type yielding struct {
	objects
	pace Pace
}

func (p yielding) list(ctx context.Context, prefix string, each func(object) error) error {
	defer p.pace.since(ctx, time.Now())
	return p.objects.list(ctx, prefix, each)
}

func (p yielding) remove(ctx context.Context, name string) error {
	defer p.pace.since(ctx, time.Now())
	return p.objects.remove(ctx, name)
}

// write rests after each chunk, and for the sync at the end.
func (p yielding) write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	in := &pacedReader{ctx: ctx, from: r, pace: p.pace, last: time.Now()}
	err := p.objects.write(ctx, name, in, ifAbsent)
	p.pace.since(ctx, in.last)
	return err
}

// pacedReader rests before each chunk for what was done with the last.
type pacedReader struct {
	ctx  context.Context
	from io.Reader
	pace Pace
	last time.Time
}

func (r *pacedReader) Read(b []byte) (int, error) {
	r.pace.since(r.ctx, r.last)
	n, err := r.from.Read(b[:min(len(b), chunk)])
	r.last = time.Now()
	return n, err
}

// Seek goes back to the start, where the reader below can.
func (r *pacedReader) Seek(offset int64, whence int) (int64, error) {
	s, ok := r.from.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return s.Seek(offset, whence)
}
