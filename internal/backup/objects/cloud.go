package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/gcsblob"   // gs://
	"gocloud.dev/gcerrors"
)

// cloud is a store in S3, GCS or Azure, or in tests in memory. The library (package blob of
// gocloud.dev) waits for ever for a server that accepts a connection and then sends nothing.
// So each call has a timeout that starts anew whenever bytes come (stall.go).
type cloud struct {
	bucket *blob.Bucket
	stall  time.Duration // 0: stallAfter
}

// OpenCloud opens a prefix of a bucket. The scheme of the URL says of which kind of store,
// its host is the bucket, and its path the prefix. It looks into the bucket once; the error
// is a [millrace.Error] that says what is wrong.
func OpenCloud(ctx context.Context, u *url.URL) (Store, error) {
	if u.Host == "" {
		return nil, Refuse(fmt.Sprintf("%.100q names no bucket", u.Redacted()), wantURL)
	}
	prefix := strings.Trim(u.Path, "/")
	if !fs.ValidPath(prefix) && prefix != "" {
		return nil, Refuse(fmt.Sprintf("the prefix %.100q has an empty part, . or ..", prefix), "use names with one slash between them")
	}
	plain := *u
	plain.Path = ""
	if u.Scheme == "s3" {
		if err := completeS3(&plain); err != nil {
			return nil, err
		}
	}
	// The library keeps the context, to look for credentials later, so it must not end.
	bucket, err := openBucket(context.WithoutCancel(ctx), &plain)
	if err != nil {
		return nil, Refuse(fmt.Sprintf("the bucket %s can't be opened: %v", u.Host, err), "check the URL's parameters, and the credentials in the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, or AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY")
	}
	if prefix != "" {
		bucket = blob.PrefixedBucket(bucket, prefix+"/")
	}
	if err := look(ctx, bucket, u); err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	return &cloud{bucket: bucket}, nil
}

// completeS3 adds parameters to the URL. With an endpoint, a server that is not Amazon's, it
// adds a region and path-style addresses, unless the URL has them. It also turns off the
// library's own checksums of downloads: they do not cover objects of several parts, and
// say so on standard error each time. The downloader compares SHA-256 sums instead.
func completeS3(u *url.URL) error {
	q := u.Query()
	if !q.Has("response_checksum_validation") {
		q.Set("response_checksum_validation", "when_required")
		u.RawQuery = q.Encode()
	}
	endpoint := q.Get("endpoint")
	if endpoint == "" {
		return nil
	}
	if e, err := url.Parse(endpoint); err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" {
		return Refuse(fmt.Sprintf("the endpoint %.100q is no address of a server", endpoint), "write endpoint=https://host:port")
	}
	if !q.Has("region") {
		q.Set("region", "us-east-1")
	}
	if !q.Has("use_path_style") && !q.Has("s3ForcePathStyle") {
		q.Set("use_path_style", "true")
	}
	u.RawQuery = q.Encode()
	return nil
}

// look lists one object. If that fails, the error says what is wrong and what to do.
func look(ctx context.Context, bucket *blob.Bucket, u *url.URL) error {
	_, _, err := bucket.ListPage(ctx, blob.FirstPageToken, 1, nil)
	switch {
	case err == nil:
		return nil
	case unknownKey(err):
		return Refuse(fmt.Sprintf("the store of %s doesn't know the access key of these credentials: %v", u.Host, err), "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case gcerrors.Code(err) == gcerrors.NotFound:
		return Refuse(fmt.Sprintf("there is no bucket %q", u.Host), "create it, or correct the name, the region and the endpoint")
	case strings.Contains(err.Error(), "get credentials"), strings.Contains(err.Error(), "default credentials"):
		return Refuse(fmt.Sprintf("there are no credentials for %s: %v", u.Host, err), "set them in the environment, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case gcerrors.Code(err) == gcerrors.PermissionDenied, strings.Contains(err.Error(), "StatusCode: 403"):
		return Refuse(fmt.Sprintf("the bucket %s refuses these credentials: %v", u.Host, err), "allow them to list, read, write and delete there")
	case strings.Contains(err.Error(), "region"):
		return Refuse(fmt.Sprintf("the region of %s isn't known: %v", u.Host, err), "add ?region=... to the URL")
	}
	return Refuse(fmt.Sprintf("the bucket %s doesn't answer: %v", u.Host, err), "check the address, and whether the store is up")
}

// unknownKey reports whether a store says that the access key does not exist. Some stores say
// so with status 404, as they do for a bucket that does not exist.
func unknownKey(err error) bool {
	return strings.Contains(err.Error(), "UserNotFound") || strings.Contains(err.Error(), "InvalidAccessKeyId")
}

func (c *cloud) Close() error { return c.bucket.Close() }

// plain wraps an error of the library in fs.ErrNotExist, fs.ErrExist or fs.ErrPermission,
// if it means that.
func plain(err error) error {
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case gcerrors.FailedPrecondition, gcerrors.AlreadyExists:
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	case gcerrors.PermissionDenied:
		return fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	return err
}

func (c *cloud) List(ctx context.Context, prefix string, each func(Object) error) error {
	w := c.watch(ctx)
	defer w.close()
	all := c.bucket.List(&blob.ListOptions{Prefix: prefix})
	for {
		w.begin(0)
		o, err := all.Next(w)
		w.end()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return w.plain(err)
		}
		if err := each(Object{Name: o.Key, Size: o.Size, Modified: o.ModTime}); err != nil {
			return err
		}
	}
}

func (c *cloud) Stat(ctx context.Context, name string) (Object, error) {
	w := c.watch(ctx)
	defer w.close()
	w.begin(0)
	a, err := c.bucket.Attributes(w, name)
	if err != nil {
		return Object{}, w.plain(err)
	}
	return Object{Name: name, Size: a.Size, Modified: a.ModTime}, nil
}

func (c *cloud) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, Object, error) {
	w := c.watch(ctx)
	w.begin(0)
	r, err := c.bucket.NewRangeReader(w, name, offset, -1, nil)
	w.end()
	if err != nil {
		defer w.close()
		return nil, Object{}, w.plain(err)
	}
	return &watchedReader{r, w}, Object{Name: name, Size: r.Size(), Modified: r.ModTime()}, nil
}

// partBytes and partsAtOnce bound the memory of an upload (see inLibrary). partBytes bounds
// its size as well, since S3 takes 10,000 parts.
const (
	partBytes   = 8 << 20 // of one part
	partsAtOnce = 2       // that are sent at the same time
)

func (c *cloud) Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	// To end an upload without making an object of what was sent, the context must be
	// cancelled before the writer is closed.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := c.watch(ctx)
	defer w.close()
	to, err := c.bucket.NewWriter(w, name, &blob.WriterOptions{
		ContentType: "application/octet-stream", BufferSize: partBytes, MaxConcurrency: partsAtOnce, IfNotExist: ifAbsent,
	})
	if err != nil {
		return w.plain(err)
	}
	sent := &watchedWriter{to: to, watch: w}
	if _, err := io.CopyBuffer(sent, struct{ io.Reader }{r}, make([]byte, Chunk)); err != nil {
		err = w.plain(err)
		cancel()
		_ = to.Close() // its error only says that the context is cancelled
		return err
	}
	return w.plain(sent.close())
}

func (c *cloud) Remove(ctx context.Context, name string) error {
	w := c.watch(ctx)
	defer w.close()
	w.begin(0)
	return w.plain(c.bucket.Delete(w, name))
}
