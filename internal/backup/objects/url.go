package objects

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace"
)

// openTimeout bounds the first look at a bucket: the search for credentials on
// a machine that has none takes a while.
const openTimeout = 30 * time.Second

// Open opens the directory or the prefix of an object store that a URL names. It
// looks there once, so that a wrong name is refused here.
func Open(ctx context.Context, to string) (Store, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, Refuse(fmt.Sprintf("%.100q is no URL", to), wantURL)
	}
	if err := CheckURL(to); err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "file":
		return openURLDir(u)
	case "s3", "gs", "azblob":
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		return OpenCloud(ctx, u)
	}
	return nil, Refuse(fmt.Sprintf("unknown scheme %.20q", u.Scheme), wantURL)
}

// CheckURL refuses a URL that holds credentials: it is shown to whoever looks at a
// configuration or a log.
func CheckURL(to string) error {
	u, err := url.Parse(to)
	if err != nil {
		return Refuse("it is no URL", wantURL)
	}
	found := u.User != nil
	for name := range u.Query() {
		name = strings.ToLower(name)
		found = found || strings.Contains(name, "secret") || strings.Contains(name, "password") || strings.Contains(name, "token") || strings.Contains(name, "access_key") || name == "sig"
	}
	if found {
		return Refuse("it holds credentials, which would be shown with it", "leave them to the environment of the process, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or to the machine's identity")
	}
	return nil
}

const wantURL = "use file:///dir, s3://bucket/prefix, gs://bucket/prefix or azblob://container/prefix"

// Refuse is an error about the configured place of backups.
func Refuse(detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup.to", Detail: detail, WayOut: wayOut}
}

func openURLDir(u *url.URL) (Store, error) {
	switch {
	case u.Host != "":
		return nil, Refuse(fmt.Sprintf("the file URL names the host %.100q", u.Host), "write three slashes and an absolute path: file:///dir")
	case !filepath.IsAbs(u.Path):
		return nil, Refuse(fmt.Sprintf("the path %.100q is not absolute", u.Path+u.Opaque), "write three slashes and an absolute path: file:///dir")
	case u.RawQuery != "":
		return nil, Refuse(fmt.Sprintf("a file URL takes no parameters, and this has %.100q", u.RawQuery), "leave out what follows the question mark")
	}
	return openDir(filepath.Clean(u.Path))
}
