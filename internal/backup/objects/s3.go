package objects

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/millrace/millrace/internal/secure"
)

// openBucket opens the bucket that a URL names. Answers of an S3 server are bounded in size,
// since a URL may name any server as endpoint.
func openBucket(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	if u.Scheme != s3blob.Scheme {
		return blob.OpenBucket(ctx, u.String())
	}
	var opener s3blob.URLOpener
	unbounded, err := opener.OpenBucketURL(ctx, u)
	if err != nil {
		return nil, err
	}
	defer unbounded.Close()
	var client *s3.Client
	if !unbounded.As(&client) {
		return nil, errors.New("the library has another client of S3")
	}
	client = s3.New(client.Options(), func(o *s3.Options) { o.HTTPClient = bounded{o.HTTPClient} })
	return s3blob.OpenBucket(ctx, client, u.Host, &opener.Options)
}

// maxAnswerBytes bounds an answer of an S3 server. A page of a listing takes less: it has a
// thousand names of a kibibyte each.
const maxAnswerBytes = 8 << 20

var errLong = fmt.Errorf("the object store has answered with more than %d bytes", maxAnswerBytes)

// bounded is an S3 client whose answers fail after maxAnswerBytes. The bytes of objects are
// not bounded, since they are not held in memory.
type bounded struct{ s3.HTTPClient }

// Do implements [s3.HTTPClient].
func (b bounded) Do(r *http.Request) (*http.Response, error) {
	resp, err := b.HTTPClient.Do(r)
	if err != nil {
		return resp, err
	}
	if object := r.URL.Query().Get("x-id") == "GetObject" && resp.StatusCode/100 == 2; !object {
		resp.Body = secure.Bounded(resp.Body, maxAnswerBytes, errLong)
	}
	return resp, nil
}
