package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// stallAfter is how long a store may say nothing.
	stallAfter = time.Minute
	// slowest is how many bytes a second of one upload a store takes at least: of
	// what the library has taken over, nothing says how far it is.
	slowest = 16 << 10
	// inLibrary bounds what the library has taken over.
	inLibrary = (partsAtOnce + 1) * partBytes
)

// errStalled says that a store took too long.
var errStalled = errors.New("the object store took a connection and has said nothing for too long; see whether it hangs")

// watch is the context of a call, which ends when the store says nothing for too
// long.
type watch struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	after  time.Duration
}

func (c *cloud) watch(ctx context.Context) *watch {
	w := &watch{after: cmp.Or(c.stall, stallAfter)}
	w.Context, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(w.after, func() { w.cancel(errStalled) })
	w.timer.Stop()
	return w
}

// begin has the store's time run while so many bytes are on their way to it.
func (w *watch) begin(sent int) {
	w.timer.Reset(w.after + time.Duration(sent)*time.Second/slowest)
}

// end stops it: what follows is not the store's.
func (w *watch) end() { w.timer.Stop() }

func (w *watch) close() {
	w.end()
	w.cancel(nil)
}

// plain is plain, and says of a call that was given up why.
func (w *watch) plain(err error) error {
	if err != nil && context.Cause(w) == errStalled {
		return fmt.Errorf("%w: %w", errStalled, err)
	}
	return plain(err)
}

// watchedReader is an object of which some bytes come each minute.
type watchedReader struct {
	from  io.ReadCloser
	watch *watch
}

func (r *watchedReader) Read(b []byte) (int, error) {
	r.watch.begin(0)
	n, err := r.from.Read(b)
	r.watch.end()
	if err == io.EOF {
		return n, err
	}
	return n, r.watch.plain(err)
}

func (r *watchedReader) Close() error {
	defer r.watch.close()
	return r.from.Close()
}

// watchedWriter is an upload that goes on each minute.
type watchedWriter struct {
	to    io.WriteCloser
	watch *watch
	sent  int // at most inLibrary
}

func (w *watchedWriter) Write(b []byte) (int, error) {
	w.sent = min(w.sent+len(b), inLibrary)
	w.watch.begin(w.sent)
	defer w.watch.end()
	return w.to.Write(b)
}

func (w *watchedWriter) close() error {
	w.watch.begin(w.sent)
	defer w.watch.end()
	return w.to.Close()
}
