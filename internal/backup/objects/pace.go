package objects

import (
	"context"
	"errors"
	"io"
	"time"
)

// Pace is called after work that took so long, and rests in proportion.
type Pace func(ctx context.Context, worked time.Duration)

// Since rests for the work that began then.
func (p Pace) Since(ctx context.Context, began time.Time) {
	if p != nil {
		p(ctx, time.Since(began))
	}
}

// Paced returns the objects of a directory with rests, and others as they are:
// who waits for a network holds no processor.
func Paced(o Store, p Pace) Store {
	if _, is := o.(*dir); is {
		return yielding{o, p}
	}
	return o
}

// yielding are the objects of a directory, each of whose operations holds a
// processor or waits for a disk in a system call, which does too.
type yielding struct {
	Store
	pace Pace
}

func (p yielding) List(ctx context.Context, prefix string, each func(Object) error) error {
	defer p.pace.Since(ctx, time.Now())
	return p.Store.List(ctx, prefix, each)
}

func (p yielding) Remove(ctx context.Context, name string) error {
	defer p.pace.Since(ctx, time.Now())
	return p.Store.Remove(ctx, name)
}

// Write rests after each chunk, and for the sync at the end.
func (p yielding) Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	in := &pacedReader{ctx: ctx, from: r, pace: p.pace, last: time.Now()}
	err := p.Store.Write(ctx, name, in, ifAbsent)
	p.pace.Since(ctx, in.last)
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
	r.pace.Since(r.ctx, r.last)
	n, err := r.from.Read(b[:min(len(b), Chunk)])
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
