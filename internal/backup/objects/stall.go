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
	// stallAfter is how long a store may send nothing.
	stallAfter = time.Minute
	// slowest is the lowest rate of an upload, in bytes a second. It extends the timeout,
	// because the library buffers what is written to it, and does not say how much of that
	// the store has taken.
	slowest = 16 << 10
	// inLibrary is the most bytes of an upload that the library has in its buffers.
	inLibrary = (partsAtOnce + 1) * partBytes
)

// errStalled is the cause with which a call is ended whose store sends nothing for too long.
var errStalled = errors.New("the object store took a connection and has said nothing for too long; see whether it hangs")

// watch is the context of a call. It ends when the store sends nothing for too long, between
// begin and end.
type watch struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	after  time.Duration // the timeout
}

// watch returns a watch whose timer does not run yet. The caller must close it.
func (c *cloud) watch(ctx context.Context) *watch {
	w := &watch{after: cmp.Or(c.stall, stallAfter)}
	w.Context, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(w.after, func() { w.cancel(errStalled) })
	w.timer.Stop()
	return w
}

// begin starts the timeout, which is longer if sent bytes may be on their way to the store.
func (w *watch) begin(sent int) {
	w.timer.Reset(w.after + time.Duration(sent)*time.Second/slowest)
}

// end stops the timeout: what follows does not wait for the store.
func (w *watch) end() { w.timer.Stop() }

func (w *watch) close() {
	w.end()
	w.cancel(nil)
}

// plain is the function plain. If the timeout ended the call, the error also is errStalled.
func (w *watch) plain(err error) error {
	if err != nil && context.Cause(w) == errStalled {
		return fmt.Errorf("%w: %w", errStalled, err)
	}
	return plain(err)
}

// watchedReader reads an object, and fails if no bytes come for too long.
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

// watchedWriter uploads an object, and fails if a write or the close takes too long.
type watchedWriter struct {
	to    io.WriteCloser
	watch *watch
	sent  int // bytes written, at most inLibrary
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
