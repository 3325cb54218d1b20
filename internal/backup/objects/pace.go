package objects

import (
	"context"
	"errors"
	"io"
	"time"
)

// Pace is called after work that took worked, and sleeps in proportion, so that backups leave
// processors and disks to requests. nil: no rests.
type Pace func(ctx context.Context, worked time.Duration)

// Since rests for work that began at began and ends now.
func (p Pace) Since(ctx context.Context, began time.Time) {
	if p != nil {
		p(ctx, time.Since(began))
	}
}

// Paced returns a store that rests after each operation if o is a directory. Any other store
// it returns as it is: waiting for the network holds no processor.
func Paced(o Store, p Pace) Store {
	if _, is := o.(*dir); is {
		return yielding{o, p}
	}
	return o
}

// yielding is the store of a directory with rests. Its operations hold a processor even while
// they wait for the disk, because they wait in a system call.
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

// Write implements Store. It rests after each chunk, and after the sync at the end.
func (p yielding) Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	in := &pacedReader{ctx: ctx, from: r, pace: p.pace, last: time.Now()}
	err := p.Store.Write(ctx, name, in, ifAbsent)
	p.pace.Since(ctx, in.last)
	return err
}

// pacedReader rests before each read, for the time since the last read: the work of its
// caller with the last chunk.
type pacedReader struct {
	ctx  context.Context
	from io.Reader
	pace Pace
	last time.Time // when the last chunk was read
}

func (r *pacedReader) Read(b []byte) (int, error) {
	r.pace.Since(r.ctx, r.last)
	n, err := r.from.Read(b[:min(len(b), Chunk)])
	r.last = time.Now()
	return n, err
}

// Seek implements [io.Seeker], if from does; else it fails.
func (r *pacedReader) Seek(offset int64, whence int) (int64, error) {
	s, ok := r.from.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return s.Seek(offset, whence)
}
