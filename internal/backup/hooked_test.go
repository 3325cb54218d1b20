package backup

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"github.com/millrace/millrace/internal/backup/objects"
)

// hooked are objects whose every operation is told before and after it, and
// fails if either says so.
type hooked struct {
	objects.Store
	before, after func(op, name string) error
	size          func(name string, size int64) int64 // what it claims
	bytes         func(name string, r io.Reader) io.Reader
}

func readerOf(b []byte) io.Reader { return bytes.NewReader(b) }

func (h *hooked) do(op, name string, do func() error) error {
	if h.before != nil {
		if err := h.before(op, name); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if h.after != nil {
		return h.after(op, name)
	}
	return nil
}

func (h *hooked) claim(o *objects.Object) {
	if h.size != nil {
		o.Size = h.size(o.Name, o.Size)
	}
}

func (h *hooked) List(ctx context.Context, prefix string, each func(objects.Object) error) error {
	return h.do("list", prefix, func() error {
		return h.Store.List(ctx, prefix, func(o objects.Object) error {
			h.claim(&o)
			return each(o)
		})
	})
}

func (h *hooked) Stat(ctx context.Context, name string) (o objects.Object, err error) {
	err = h.do("stat", name, func() error {
		o, err = h.Store.Stat(ctx, name)
		h.claim(&o)
		return err
	})
	return o, err
}

func (h *hooked) Open(ctx context.Context, name string, offset int64) (r io.ReadCloser, o objects.Object, err error) {
	err = h.do("open", name, func() error {
		r, o, err = h.Store.Open(ctx, name, offset)
		h.claim(&o)
		return err
	})
	if err == nil && h.bytes != nil {
		r = struct {
			io.Reader
			io.Closer
		}{h.bytes(name, r), r}
	}
	return r, o, err
}

func (h *hooked) Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	if h.bytes != nil {
		r = h.bytes(name, r)
	}
	return h.do("write", name, func() error { return h.Store.Write(ctx, name, r, ifAbsent) })
}

func (h *hooked) Remove(ctx context.Context, name string) error {
	return h.do("remove", name, func() error { return h.Store.Remove(ctx, name) })
}

// listen opens a port of loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
