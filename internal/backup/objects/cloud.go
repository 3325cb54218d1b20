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

// cloud are the objects of S3, GCS, Azure, and, in tests, of memory. The library
// waits for ever for a server that takes connections and says nothing, so each
// call has a deadline that moves with the bytes (stall.go).
type cloud struct {
	bucket *blob.Bucket
	stall  time.Duration // 0: stallAfter
}

// OpenCloud opens a prefix of an object store; the URL's scheme says which.
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
	// The library keeps the context for its search for credentials.
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

// completeS3 fills in what a server that is not Amazon's needs. Whoever downloads
// compares the SHA-256; the library's own checks cover no object of several
// parts, and say so on standard error each time.
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

// look asks for one object, and says what is wrong where it may not.
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

// unknownKey reports whether a store says that nobody has the access key. Some
// say so by 404, as of a bucket that isn't there.
func unknownKey(err error) bool {
	return strings.Contains(err.Error(), "UserNotFound") || strings.Contains(err.Error(), "InvalidAccessKeyId")
}

func (c *cloud) Close() error { return c.bucket.Close() }

// plain makes the library's errors those that this package tells apart.
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

// partBytes and partsAtOnce bound the memory of an upload, 16 MiB, and its
// size, 10,000 parts.
const (
	partBytes   = 8 << 20
	partsAtOnce = 2
)

func (c *cloud) Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	// Only a cancelled context ends an upload without making an object of what
	// was sent.
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
		_ = to.Close() // it says that the context is cancelled
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
