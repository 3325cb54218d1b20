package backup

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	_ "gocloud.dev/blob/memblob" // mem://

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

var ours = Identity{Name: "test", ID: "11111111"}

// body opens the objects of a test; s3 is there when MILLRACE_S3 names a server
// that `make s3` started.
type body struct {
	name string
	open func(t *testing.T) objects.Store
}

func bodies() []body {
	all := []body{
		{"file", func(t *testing.T) objects.Store { return directory(t, t.TempDir()) }},
		{"memory", func(t *testing.T) objects.Store { return memory(t) }},
	}
	if os.Getenv("MILLRACE_S3") != "" {
		all = append(all, body{"s3", func(t *testing.T) objects.Store { return must(openURL(t, s3URL(t))) }})
	}
	return all
}

func directory(t testing.TB, name string) objects.Store {
	return must(objects.Open(t.Context(), "file://"+name, false))
}

func memory(t testing.TB) objects.Store { return must(openURL(t, "mem://test")) }

func openURL(t testing.TB, to string) (objects.Store, error) {
	return objects.OpenCloud(t.Context(), must(url.Parse(to)))
}

// s3URL is a prefix of its own on the server of the tests.
func s3URL(t testing.TB) string {
	t.Helper()
	server := os.Getenv("MILLRACE_S3")
	if server == "" {
		t.Skip("MILLRACE_S3 names no server; make s3 starts one")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "millrace")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "millrace-secret")
	return fmt.Sprintf("s3://millrace/%s?endpoint=http://%s", strings.ToLower(rand.Text()), server)
}

// onEach runs a test on every body.
func onEach(t *testing.T, test func(t *testing.T, o objects.Store)) {
	for _, b := range bodies() {
		t.Run(b.name, func(t *testing.T) {
			o := b.open(t)
			defer o.Close()
			test(t, o)
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// claimed is a bucket of the test's cluster, that waits for nothing long.
func claimed(t testing.TB, o objects.Store) *Bucket {
	t.Helper()
	b := impatient(o)
	if err := b.Claim(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	return b
}

func impatient(o objects.Store) *Bucket {
	b := newBucket(o, Options{})
	b.objects.(*objects.Patient).Pause = time.Millisecond
	b.poll = time.Millisecond
	return b
}

func isKind(err error, want DamageKind) bool {
	var d *Damage
	return errors.As(err, &d) && d.Kind == want
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func writeFile(t testing.TB, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// back makes a backup of a partition whose files have these bytes.
func back(ctx context.Context, b *Bucket, p millrace.Partition, files ...[]byte) (*Manifest, error) {
	m := &Manifest{Partition: p, Time: millrace.TimeOf(time.Now()), Node: "node-1", Log: "log", Applied: Offsets{10, 20}, Digest: Digest{1 << 63, 7}}
	var err error
	if m.Schemas, _, err = b.Put(ctx, []byte("schemas"), nil); err != nil {
		return nil, err
	}
	for i, data := range files {
		r, _, err := b.Put(ctx, data, nil)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, File{Name: fmt.Sprintf("%06d.sst", i), Ref: r, Bottom: i == 0})
	}
	return m, b.WriteManifest(ctx, m)
}

func TestOpenNamesTheFaultAndTheWayOut(t *testing.T) {
	plain := writeFile(t, nil)
	for to, want := range map[string]string{
		"":                                      "unknown scheme",
		"ftp://x":                               "unknown scheme",
		"/dir":                                  "unknown scheme",
		"file://dir":                            "three slashes",
		"file:dir":                              "not absolute",
		"file:///no/such":                       "there is no directory",
		"file://" + plain:                       "not a directory",
		"file:///tmp?x=1":                       "no parameters",
		"s3:///prefix":                          "names no bucket",
		"s3://b/../c":                           "prefix",
		"s3://b?endpoint=host:1":                "endpoint",
		"s3://b?nonsense=1":                     "nonsense",
		"s3://KEY:hush@b/p":                     "it holds credentials",
		"s3://b?Secret_Access_Key=hush":         "it holds credentials",
		"azblob://b?sig=hush":                   "it holds credentials",
		"s3://b?endpoint=https://KEY:hush@host": "it holds credentials",
		"s3://b?endpoint=http://minio.other:9000":                                   "minio.other:9000 is beyond loopback",
		"s3://b?endpoint=HTTP://10.0.0.1":                                           "10.0.0.1:80 is beyond loopback",
		"s3://b?disable_https=true":                                                 "is beyond loopback",
		"azblob://b?protocol=http":                                                  "blob.core.windows.net:80 is beyond loopback",
		"s3://b?endpoint=http://127.0.0.1:1&anonymous=true&rate_limiter_capacity=x": "capacity",
	} {
		_, err := Open(t.Context(), to, Options{})
		var refusal *millrace.Error
		if !errors.As(err, &refusal) || refusal.Field != "backup.to" || refusal.WayOut == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want backup.to, %q and a way out", to, err, want)
		}
		if strings.Contains(fmt.Sprint(err), "hush") {
			t.Errorf("%q: the credentials are told: %v", to, err)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://minio.other:9000")
	if _, err := Open(t.Context(), "s3://b", Options{}); err == nil || !strings.Contains(err.Error(), "is beyond loopback") {
		t.Errorf("the environment names a server of plain text: %v", err)
	}
	for to, insecure := range map[string]bool{"s3://b?endpoint=http://minio.other:9000": true, "s3://b?endpoint=http://127.0.0.1:9000": false, "s3://b?endpoint=http://[::1]": false, "s3://b?endpoint=https://minio.other": false} {
		if err := objects.CheckURL(to, insecure); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	if _, err := Open(t.Context(), "file:///tmp", Options{BytesPerSecond: -1}); err == nil {
		t.Error("a negative bound was taken")
	}
}

// No credentials in the environment, and no machine of a cloud to ask for them.
func TestOpenWithoutCredentials(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY"} {
		t.Setenv(name, "")
	}
	for to, want := range map[string]string{
		"s3://x?endpoint=http://127.0.0.1:1": "no credentials",
		"azblob://x":                         "AZURE_STORAGE_KEY",
	} {
		_, err := Open(t.Context(), to, Options{})
		var refusal *millrace.Error
		if !errors.As(err, &refusal) || refusal.Field != "backup.to" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", to, err, want)
		}
	}
}

func TestOpenS3(t *testing.T) {
	to := s3URL(t)
	b, err := Open(t.Context(), to, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Claim(t.Context(), ours); err != nil {
		t.Error(err)
	}
	_, err = Open(t.Context(), strings.Replace(to, "s3://millrace/", "s3://nobucket/", 1), Options{})
	if err == nil || !strings.Contains(err.Error(), `there is no bucket "nobucket"`) {
		t.Errorf("no such bucket: %v", err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	if _, err = Open(t.Context(), to, Options{}); err == nil || !strings.Contains(err.Error(), "refuses these credentials") {
		t.Errorf("wrong credentials: %v", err)
	}
}

func TestClaimRefusesAnotherCluster(t *testing.T) {
	for name, good := range map[string]bool{strings.Repeat("x", 255): true, strings.Repeat("x", 256): false, "": false, "a\nb": false, "a\x00b": false} {
		for _, who := range []Identity{{Name: name, ID: "1"}, {Name: "a", ID: name}} {
			if err := impatient(newMapped()).Claim(t.Context(), who); (err == nil) != good {
				t.Errorf("%.10q of %d bytes: %v", name, len(name), err)
			}
		}
	}
	onEach(t, func(t *testing.T, o objects.Store) {
		b := impatient(o)
		if _, err := b.Identity(t.Context()); !errors.Is(err, ErrUnclaimed) {
			t.Errorf("a new bucket: %v", err)
		}
		for range 2 {
			if err := b.Claim(t.Context(), ours); err != nil {
				t.Fatal(err)
			}
		}
		theirs := Identity{Name: "theirs", ID: "2222"}
		err := impatient(o).Claim(t.Context(), theirs)
		var refusal *millrace.Error
		if !errors.As(err, &refusal) || refusal.Field != "backup.to" || !strings.Contains(err.Error(), ours.ID) || !strings.Contains(err.Error(), theirs.ID) {
			t.Errorf("another cluster: %v", err)
		}
		if got, err := impatient(o).Identity(t.Context()); got != ours || err != nil {
			t.Errorf("identity %v, %v", got, err)
		}
	})
}

func TestFilesAreUploadedOnceAndComeBack(t *testing.T) {
	onEach(t, func(t *testing.T, o objects.Store) {
		b := claimed(t, o)
		for _, size := range []int{0, 1, objects.Chunk, 20 << 20} {
			data := randomBytes(size)
			from := writeFile(t, data)
			p := NewProgress(0)
			r, uploaded, err := b.Counted(p).PutFile(t.Context(), from, nil, nil)
			if err != nil || !uploaded || r.Size != int64(size) {
				t.Fatalf("%d bytes: %+v, uploaded %v, %v", size, r, uploaded, err)
			}
			if _, uploaded, err = b.PutFile(t.Context(), from, nil, nil); err != nil || uploaded {
				t.Errorf("%d bytes a second time: uploaded %v, %v", size, uploaded, err)
			}
			to := filepath.Join(t.TempDir(), "back")
			// The half of it is there from an earlier run.
			if err := os.WriteFile(to+".part", data[:size/2], 0o600); err != nil {
				t.Fatal(err)
			}
			if err := b.Counted(p).GetFile(t.Context(), r, to); err != nil {
				t.Fatal(err)
			}
			if got := must(os.ReadFile(to)); !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back as %d others", size, len(got))
			}
			if s := p.Now(); s.Done != 2*int64(size) {
				t.Errorf("%d bytes: progress counted %d, want them up and down", size, s.Done)
			}
		}
	})
}

// A part of other bytes, of another file or of too many, is given up.
func TestGetFileForgetsAWrongPart(t *testing.T) {
	b := claimed(t, directory(t, t.TempDir()))
	data := randomBytes(1000)
	r, _, err := b.Put(t.Context(), data, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{randomBytes(10), randomBytes(1000), randomBytes(2000), data} {
		to := filepath.Join(t.TempDir(), "back")
		if err := os.WriteFile(to+".part", part, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.GetFile(t.Context(), r, to); err != nil {
			t.Errorf("a part of %d bytes: %v", len(part), err)
		} else if !bytes.Equal(must(os.ReadFile(to)), data) {
			t.Errorf("a part of %d bytes made other bytes", len(part))
		}
	}
}

// refusesEnd is a store that refuses what begins behind an object's last byte, as
// S3 does, and breaks off once when all bytes are read.
type refusesEnd struct {
	objects.Store
	size   int64
	broken bool
	opened int
}

func (s *refusesEnd) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, objects.Object, error) {
	if offset >= s.size {
		return nil, objects.Object{}, fmt.Errorf("the range is not satisfiable: %w", fs.ErrInvalid)
	}
	s.opened++
	r, o, err := s.Store.Open(ctx, name, offset)
	if err != nil || s.broken {
		return r, o, err
	}
	s.broken = true
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(r, iotest.ErrReader(io.ErrUnexpectedEOF)), r}, o, nil
}

// A download that has all bytes already, from an earlier try or since its connection
// broke behind them, is whole, or begins anew: there is nothing to go on with.
func TestGetFileOfAWholePart(t *testing.T) {
	o := memory(t)
	data := randomBytes(1000)
	r, _, err := claimed(t, o).Put(t.Context(), data, nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		part   []byte
		broken bool // already
		opened int
	}{
		"whole":          {data, true, 0},
		"of other bytes": {randomBytes(1000), true, 1},
		"broken off":     {nil, false, 1},
	} {
		s := &refusesEnd{Store: o, size: r.Size, broken: c.broken}
		to, p := filepath.Join(t.TempDir(), "back"), NewProgress(0)
		if err := os.WriteFile(to+PartSuffix, c.part, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := impatient(s).Counted(p).GetFile(t.Context(), r, to); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if !bytes.Equal(must(os.ReadFile(to)), data) || s.opened != c.opened || p.Now().Done != r.Size {
			t.Errorf("%s: opened %d times, want %d; progress counted %d; or other bytes", what, s.opened, c.opened, p.Now().Done)
		}
	}
}

func TestBoundOnBytesHolds(t *testing.T) {
	b := claimed(t, memory(t))
	const rate = 8 << 20
	bound := newBucket(b.objects.(*objects.Patient).Store, Options{BytesPerSecond: rate})
	data := randomBytes(2 * rate)
	began := time.Now()
	r, _, err := bound.Put(t.Context(), data, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A quarter of a second's bytes pass at once.
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("%d bytes took %v at %d bytes a second", len(data), took, rate)
	}
	if _, err := bound.Get(t.Context(), r, r.Size/2); !isKind(err, WrongSize) {
		t.Errorf("more than is asked for was read: %v", err)
	}
	if _, err := bound.Unlimited().Get(t.Context(), r, r.Size); err != nil {
		t.Error(err)
	}
}
