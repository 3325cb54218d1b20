package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// A store that takes connections and says nothing, or no more in the midst of an
// object, ends no call later than it may; one that is slow may be.
func TestAStoreThatHangs(t *testing.T) {
	const stall = 2 * time.Second // a busy machine does not look like a store that hangs
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		switch {
		case strings.HasSuffix(in.URL.Path, "/slow") && in.Method == http.MethodGet:
			out.Header().Set("Content-Length", "10")
			for range 10 {
				fmt.Fprint(out, "x")
				out.(http.Flusher).Flush()
				time.Sleep(stall / 4)
			}
			return
		case strings.HasSuffix(in.URL.Path, "/half"):
			out.Header().Set("Content-Length", "10")
			fmt.Fprint(out, "x")
			out.(http.Flusher).Flush()
		}
		<-done
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(done) })
	bucket, err := blob.OpenBucket(t.Context(), "s3://b?anonymous=true&response_checksum_validation=when_required&use_path_style=true&region=x&endpoint="+server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{bucket: bucket, stall: stall}
	t.Cleanup(func() { c.Close() })
	read := func(ctx context.Context, name string) (int, error) {
		r, _, err := c.Open(ctx, name, 0)
		if err != nil {
			return 0, err
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		return len(b), err
	}
	for _, op := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"list", func(ctx context.Context) error { return c.List(ctx, "", func(Object) error { return nil }) }},
		{"stat", func(ctx context.Context) error { _, err := c.Stat(ctx, "x"); return err }},
		{"remove", func(ctx context.Context) error { return c.Remove(ctx, "x") }},
		{"open", func(ctx context.Context) error { _, err := read(ctx, "x"); return err }},
		{"read", func(ctx context.Context) error { _, err := read(ctx, "half"); return err }},
		{"write", func(ctx context.Context) error { return c.Write(ctx, "x", strings.NewReader("y"), false) }},
		{"write much", func(ctx context.Context) error {
			return c.Write(ctx, "x", strings.NewReader(strings.Repeat("y", slowest)), false)
		}},
	} {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			if err := op.do(t.Context()); !errors.Is(err, errStalled) || time.Since(began) < stall {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), stall/10)
			defer cancel()
			if err := op.do(ctx); err == nil || errors.Is(err, errStalled) {
				t.Errorf("given up by who asked: %v", err)
			}
		})
	}
	t.Run("a slow object", func(t *testing.T) {
		t.Parallel()
		if n, err := read(t.Context(), "slow"); n != 10 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

// What is done with an object's bytes does not count as the store's time.
func TestAReaderThatRests(t *testing.T) { synctest.Test(t, testAReaderThatRests) }

func testAReaderThatRests(t *testing.T) {
	c := &cloud{bucket: memblob.OpenBucket(nil), stall: 50 * time.Millisecond}
	if err := c.Write(t.Context(), "x", &resting{3}, false); err != nil {
		t.Fatal(err)
	}
	r, _, err := c.Open(t.Context(), "x", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := make([]byte, 1)
	for i := range 3 {
		time.Sleep(120 * time.Millisecond)
		if _, err := io.ReadFull(r, b); err != nil {
			t.Errorf("byte %d: %v", i, err)
		}
	}
}

// resting reads so many bytes, and rests before each.
type resting struct{ n int }

func (r *resting) Read(b []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	time.Sleep(120 * time.Millisecond)
	r.n--
	return copy(b, "x"), nil
}
