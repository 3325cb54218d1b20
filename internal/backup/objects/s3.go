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

// openBucket opens what a URL names. The answers of S3 are bounded, since any server may be
// its endpoint.
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

// maxAnswerBytes is more than a page of a listing takes, a thousand names of a kibibyte each.
const maxAnswerBytes = 8 << 20

var errLong = fmt.Errorf("the object store has answered with more than %d bytes", maxAnswerBytes)

// bounded gives up answers that are too long, but objects, which are not kept.
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
