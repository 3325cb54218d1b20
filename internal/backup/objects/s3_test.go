package objects

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// A store that answers without an end is given up, whether it lists or refuses; an object
// may be of any size.
func TestAStoreThatAnswersWithoutAnEnd(t *testing.T) {
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	const object = 3 * maxAnswerBytes
	var sent atomic.Int64 // of the last answer
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		piece, most := strings.Repeat("a", 1<<16), int64(100*maxAnswerBytes)
		switch {
		case strings.HasSuffix(in.URL.Path, "/object"):
			out.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
			most = object
		case strings.HasSuffix(in.URL.Path, "/refused"):
			out.WriteHeader(http.StatusBadRequest)
			fallthrough
		default:
			io.WriteString(out, "<?xml version=\"1.0\"?><ListBucketResult><Name>")
		}
		for sent.Store(0); sent.Load() < most; sent.Add(int64(len(piece))) {
			if _, err := io.WriteString(out, piece); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	u, err := url.Parse("s3://b?anonymous=true&response_checksum_validation=when_required&use_path_style=true&region=x&endpoint=" + server.URL)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := openBucket(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{bucket: bucket}
	defer c.Close()
	read := func(name string) (int64, error) {
		r, _, err := c.Open(t.Context(), name, 0)
		if err != nil {
			return 0, err
		}
		defer r.Close()
		return io.Copy(io.Discard, r)
	}
	for name, do := range map[string]func() error{
		"a listing": func() error {
			return c.List(context.WithoutCancel(t.Context()), "", func(Object) error { return nil })
		},
		"a refusal": func() error { _, err := read("refused"); return err },
	} {
		if err := do(); err == nil || sent.Load() > 4*maxAnswerBytes {
			t.Errorf("%s: %v after %d MiB", name, err, sent.Load()>>20)
		}
	}
	if n, err := read("object"); n != object || err != nil {
		t.Errorf("of an object %d bytes came, %v", n, err)
	}
}
