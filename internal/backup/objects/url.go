package objects

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
)

// openTimeout bounds the first look at a bucket. It is long because the search for
// credentials takes a while on a machine that has none.
const openTimeout = 30 * time.Second

// Open opens the directory, or the prefix of an object store, that a URL names. It looks
// there once, so that a wrong name is an error here. insecure is that of [CheckURL]. The
// error is a [millrace.Error] for the field backup.to.
func Open(ctx context.Context, to string, insecure bool) (Store, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, Refuse(fmt.Sprintf("%.100q is no URL", to), wantURL)
	}
	if err := CheckURL(to, insecure); err != nil {
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

// CheckURL refuses a URL that contains credentials, because anybody who reads a configuration
// or a log would see them. It also refuses a store beyond loopback that is spoken to in
// plain text, unless insecure allows that.
func CheckURL(to string, insecure bool) error {
	u, err := url.Parse(to)
	if err != nil {
		return Refuse("it is no URL", wantURL)
	}
	found := u.User != nil || strings.Contains(u.Query().Get("endpoint"), "@")
	for name := range u.Query() {
		name = strings.ToLower(name)
		found = found || strings.Contains(name, "secret") || strings.Contains(name, "password") || strings.Contains(name, "token") || strings.Contains(name, "access_key") || name == "sig"
	}
	if found {
		return Refuse("it holds credentials, which would be shown with it", "leave them to the environment of the process, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or to the machine's identity")
	}
	addr := plainAt(u)
	if addr == "" || (secure.Plain{Insecure: insecure}).Check(addr) == nil {
		return nil
	}
	return Refuse(addr+" is beyond loopback, where plain text can be read and changed by others", "ask it by https, or say backup.insecure: true (a command: --from-insecure) if the network is guarded by other means")
}

// plainAt returns the host:port of a store if it is spoken to in plain text, by the URL or by
// the environment variables of the store's own tools; else "".
func plainAt(u *url.URL) string {
	q := u.Query()
	switch u.Scheme {
	case "s3":
		endpoint := cmp.Or(q.Get("endpoint"), os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
		e, err := url.Parse(endpoint)
		if off, _ := strconv.ParseBool(q.Get("disable_https")); err == nil && (off || strings.EqualFold(e.Scheme, "http")) {
			return withPort(cmp.Or(e.Host, u.Host+".s3.amazonaws.com"))
		}
	case "azblob":
		domain := cmp.Or(q.Get("domain"), os.Getenv("AZURE_STORAGE_DOMAIN"), "blob.core.windows.net")
		if strings.EqualFold(cmp.Or(q.Get("protocol"), os.Getenv("AZURE_STORAGE_PROTOCOL")), "http") {
			return withPort(domain)
		}
	}
	return ""
}

// withPort returns a host with its port: 80 if it names none.
func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err != nil {
		return net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return host
}

// wantURL is the advice for a URL that names no store.
const wantURL = "use file:///dir, s3://bucket/prefix, gs://bucket/prefix or azblob://container/prefix"

// Refuse returns the error that refuses the configured place of backups, backup.to.
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
