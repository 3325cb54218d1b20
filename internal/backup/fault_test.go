package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/backup/objects"
)

var errKilled = fmt.Errorf("killed: %w", os.ErrPermission) // final, so that nothing is tried again

// killed dies at an operation: before it has an effect or after. From then on
// nothing works.
func killed(o objects.Store, at int64, early bool, wrote func(name string)) *hooked {
	var n atomic.Int64
	return &hooked{
		Store: o,
		before: func(op, name string) error {
			if i := n.Add(1); i > at || i == at && early {
				return errKilled
			}
			return nil
		},
		after: func(op, name string) error {
			if op == "write" {
				wrote(name)
			}
			if n.Load() >= at {
				return errKilled
			}
			return nil
		},
	}
}

// A process that is killed at any operation of a backup or an expiry leaves
// nothing that counts and isn't whole; the next one uploads no file again, and
// one expiry later there is nothing that nobody names.
func TestKilledAtEveryOperation(t *testing.T) {
	for _, early := range []bool{true, false} {
		for at, ended := int64(1), false; !ended; at++ {
			o := newMapped()
			claimed(t, o)
			uploads := map[string]int{}
			wrote := func(name string) {
				if parse(name).kind == isFile {
					uploads[name]++
				}
			}
			run := func(o objects.Store, dead bool) error {
				b := impatient(o)
				if dead {
					b = impatient(aged{o, time.Hour, true})
				}
				for _, files := range [][]string{{"shared", "first"}, {"shared", "second"}} {
					if _, err := back(t.Context(), b, 7, []byte(files[0]), []byte(files[1])); err != nil {
						return err
					}
				}
				later := impatient(aged{o, 2 * time.Hour, false})
				_, err := later.Expire(t.Context(), ExpireOptions{Keep: 1})
				return err
			}
			err := run(killed(o, at, early, wrote), false)
			if ended = err == nil; !ended && !errors.Is(err, errKilled) {
				t.Fatalf("killed at %d: %v", at, err)
			}
			b := impatient(o)
			if _, err := b.Verify(t.Context(), DepthOpen, func(d *Damage) {
				if d.Kind != Extra {
					t.Errorf("killed at %d, early %v: %v", at, early, d)
				}
			}); err != nil {
				t.Fatal(err)
			}
			survived := all(t, o)
			second := &hooked{Store: o, after: func(op, name string) error {
				if op == "write" {
					wrote(name)
				}
				return nil
			}}
			if err := run(second, true); err != nil {
				t.Fatalf("after a kill at %d: %v", at, err)
			}
			for name, n := range uploads {
				if _, there := survived[name]; there && n > 1 {
					t.Errorf("killed at %d: %s was there and was uploaded %d times", at, name, n)
				}
			}
			later := impatient(aged{o, 2 * time.Hour, false})
			if _, err := later.Expire(t.Context(), ExpireOptions{Keep: 1}); err != nil {
				t.Fatal(err)
			}
			_, err = b.Verify(t.Context(), DepthOpen, func(d *Damage) { t.Errorf("killed at %d, at the end: %v", at, d) })
			if err != nil {
				t.Fatal(err)
			}
			for name := range all(t, o) {
				if parse(name).kind == isHold {
					t.Errorf("killed at %d: %s is left", at, name)
				}
			}
		}
	}
}

// A cut that is killed counts as a whole or not at all; the same name is free for
// another try, and what it left goes with an expiry.
func TestCutKilledAtAnyOperation(t *testing.T) {
	base := full(t, ours, true)
	for name := range all(t, base) {
		if k := parse(name).kind; k == isCut || k == isCutPart {
			delete(base.mu.at, name)
		}
	}
	rng := rand.New(rand.NewPCG(*seed, 0))
	whole := &hooked{Store: base.clone()}
	var operations, at int64
	whole.before = func(string, string) error { atomic.AddInt64(&operations, 1); return nil }
	if _, err := cut(t.Context(), impatient(whole), "nightly", []byte("tail")); err != nil {
		t.Fatal(err)
	}
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	for i := range rounds {
		// The last operations are those that make it count.
		if at = 1 + rng.Int64N(operations); i%2 == 0 {
			at = operations - int64(i/2)
		}
		o := base.clone()
		_, failed := cut(t.Context(), impatient(killed(o, at, i%4 < 2, func(string) {})), "nightly", []byte("tail"))
		check := func(when string) (cuts int) {
			r, err := impatient(o).Verify(t.Context(), DepthMeta, func(d *Damage) {
				if d.Kind != Extra {
					t.Errorf("killed at %d of %d, %s: %v", at, operations, when, d)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			return len(r.Cuts)
		}
		counted := check("then")
		// How many operations there are varies: a hold is renewed as time goes by.
		if failed == nil && counted == 0 {
			t.Errorf("killed at %d of %d: no error, and no cut", at, operations)
		}
		_, err := cut(t.Context(), impatient(o), "nightly", []byte("other tail"))
		if (err != nil) != (counted == 1) {
			t.Errorf("killed at %d of %d, %d cuts: the next try: %v", at, operations, counted, err)
		}
		if check("after another try") != 1 {
			t.Errorf("killed at %d of %d: no cut after another try", at, operations)
		}
		if err := impatient(o).RemoveCut(t.Context(), "nightly"); err != nil {
			t.Error(err)
		}
		if _, err := impatient(aged{o, 2 * time.Hour, true}).Expire(t.Context(), ExpireOptions{Keep: 2}); err != nil {
			t.Error(err)
		}
		for name := range all(t, o) {
			if k := parse(name).kind; k == isCut || k == isCutPart || k == isHold || k == isCondemned {
				t.Errorf("killed at %d of %d: %s is left", at, operations, name)
			}
		}
	}
}

// What a crash left in the directory's scratch goes with an expiry.
func TestExpiryRemovesTornWrites(t *testing.T) {
	root := t.TempDir()
	o := directory(t, root)
	defer o.Close()
	b := claimed(t, o)
	torn := filepath.Join(root, objects.Scratch, "torn")
	if err := os.WriteFile(torn, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, age := range []time.Duration{0, 2 * time.Hour} {
		when := time.Now().Add(-age)
		if err := os.Chtimes(torn, when, when); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Expire(t.Context(), ExpireOptions{Keep: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(torn); os.IsNotExist(err) != (age > time.Hour) {
			t.Errorf("aged %v: %v", age, err)
		}
	}
}

var errBusy = errors.New("503 Slow Down")

func TestBusyBucketIsTriedAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	o := newMapped()
	busy := func(string, string) error {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(10) == 0 {
			return errBusy
		}
		return nil
	}
	b := claimed(t, &hooked{Store: o, before: busy, after: busy})
	for i := range 100 {
		if _, err := back(t.Context(), b, 1, []byte("shared"), []byte(fmt.Sprint(i))); err != nil {
			t.Fatalf("backup %d: %v", i, err)
		}
	}
	r, err := b.Verify(t.Context(), DepthOpen, func(d *Damage) { t.Error(d) })
	if err != nil || len(r.Backups[1]) != 100 {
		t.Errorf("%d backups, %v", len(r.Backups[1]), err)
	}
}

// One that is always busy is given up, and says what failed last.
func TestBusyBucketIsGivenUp(t *testing.T) {
	n := 0
	o := newMapped()
	claimed(t, o)
	b := impatient(&hooked{Store: o, before: func(string, string) error { n++; return errBusy }})
	if _, err := b.AllIDs(t.Context()); !errors.Is(err, errBusy) || n != objects.Tries {
		t.Errorf("%v after %d tries", err, n)
	}
}

// A full bucket fails at once, and the last good backup stays.
func TestFullBucketFailsLoudly(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, fmt.Errorf("403: %w", os.ErrPermission)} {
		o := newMapped()
		good, err := back(t.Context(), claimed(t, o), 1, []byte("good"))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		b := impatient(&hooked{Store: o, before: func(op, name string) error {
			if op == "write" {
				n++
				return full
			}
			return nil
		}})
		if _, err := back(t.Context(), b, 1, []byte("more")); !errors.Is(err, full) || n != 1 {
			t.Errorf("%v after %d writes, want %v after 1", err, n, full)
		}
		newest, err := b.Newest(t.Context(), func(d *Damage) { t.Error(d) })
		if err != nil || newest[1].ID != good.ID {
			t.Errorf("newest %v, %v", newest[1], err)
		}
	}
}

// A bucket that lies about a length is told, whichever way it lies, and nothing
// comes to count.
func TestLyingBucketIsTold(t *testing.T) {
	for _, by := range []int64{-1, 1, 1 << 40} {
		o := newMapped()
		m, err := back(t.Context(), claimed(t, o), 1, []byte("good"))
		if err != nil {
			t.Fatal(err)
		}
		b := impatient(&hooked{Store: o, size: func(name string, size int64) int64 {
			if parse(name).kind == isFile {
				size += by
			}
			return size
		}})
		if _, _, err := b.Put(t.Context(), []byte("more"), nil); !isKind(err, WrongSize) {
			t.Errorf("put by %d: %v", by, err)
		}
		if err := b.GetFile(t.Context(), m.Files[0].Ref, filepath.Join(t.TempDir(), "x")); !isKind(err, WrongSize) {
			t.Errorf("get by %d: %v", by, err)
		}
		var missing MissingFiles
		if err := b.WriteManifest(t.Context(), m); !errors.As(err, &missing) {
			t.Errorf("manifest by %d: %v", by, err)
		}
	}
}

// breaking ends a download after so many bytes, with an error or as if whole.
type breaking struct {
	r    io.Reader
	left int
	err  error
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.err
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func TestDownloadGoesOnWhereItBroke(t *testing.T) {
	data := randomBytes(1 << 20)
	o := newMapped()
	r, _, err := claimed(t, o).Put(t.Context(), data, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened := 0
	o.mu.read = 0
	b := impatient(&hooked{Store: o, bytes: func(_ string, r io.Reader) io.Reader {
		opened++
		return &breaking{r, 300_000, io.ErrUnexpectedEOF}
	}})
	to := filepath.Join(t.TempDir(), "x")
	if err := b.GetFile(t.Context(), r, to); err != nil || !bytes.Equal(must(os.ReadFile(to)), data) || opened != 4 {
		t.Errorf("%v in %d pieces", err, opened)
	}
	if o.mu.read > 1<<20+1 {
		t.Errorf("%d bytes were read", o.mu.read)
	}
	// A broken run leaves what it has, and the next goes on there.
	to = filepath.Join(t.TempDir(), "y")
	b = impatient(&hooked{Store: o, bytes: func(_ string, r io.Reader) io.Reader { return &breaking{r, 300_000, errKilled} }})
	if err := b.GetFile(t.Context(), r, to); !errors.Is(err, errKilled) {
		t.Errorf("killed: %v", err)
	}
	o.mu.read = 0
	if err := impatient(o).GetFile(t.Context(), r, to); err != nil || o.mu.read > 1<<20-300_000+1 {
		t.Errorf("%v, %d bytes were read again", err, o.mu.read)
	}
	// One that ends early and says it was whole is damage.
	b = impatient(&hooked{Store: o, bytes: func(_ string, r io.Reader) io.Reader { return &breaking{r, 300_000, io.EOF} }})
	if err := b.GetFile(t.Context(), r, filepath.Join(t.TempDir(), "z")); !isKind(err, WrongSize) {
		t.Errorf("cut short: %v", err)
	}
}

// slow lets a MiB pass a second.
type slow struct{ r io.Reader }

func (s slow) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	time.Sleep(time.Duration(n) * time.Second / (1 << 20))
	return n, err
}

func TestSlowBucketIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := claimed(t, &hooked{Store: newMapped(), bytes: func(_ string, r io.Reader) io.Reader { return slow{r} }})
		p := NewProgress(0)
		p.Expect(64 << 20)
		done := make(chan error, 1)
		began := time.Now()
		go func() {
			_, _, err := b.Counted(p).Put(t.Context(), make([]byte, 64<<20), nil)
			done <- err
		}()
		time.Sleep(32 * time.Second)
		if s := p.Now(); s.Done < 30<<20 || s.Done > 34<<20 || s.BytesPerSecond < 0.9*(1<<20) || s.BytesPerSecond > 1.1*(1<<20) || s.Left < 28*time.Second || s.Left > 36*time.Second {
			t.Errorf("after half of it: %+v", s)
		}
		if err := <-done; err != nil || time.Since(began) < 63*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began = time.Now()
		if _, _, err := b.Put(ctx, make([]byte, 65<<20), nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 11*time.Second {
			t.Errorf("given up: %v after %v", err, time.Since(began))
		}
	})
}

// A real server behind a proxy that answers 503 one time in ten.
func TestS3AnswersBusy(t *testing.T) {
	to := s3URL(t)
	server := must(url.Parse("http://" + os.Getenv("MILLRACE_S3")))
	var n, refused atomic.Int64
	pass := httputil.NewSingleHostReverseProxy(server)
	proxy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%10 == 0 {
			refused.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		pass.ServeHTTP(w, r)
	})}
	listener := listen(t)
	go proxy.Serve(listener)
	defer proxy.Close()
	b, err := Open(t.Context(), strings.Replace(to, server.Host, listener.Addr().String(), 1), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Claim(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	big := randomBytes(20 << 20) // in parts
	for i := range 4 {
		if _, err := back(t.Context(), b, 1, big, []byte(fmt.Sprint(i))); err != nil {
			t.Fatalf("backup %d: %v", i, err)
		}
	}
	r, err := b.Verify(t.Context(), DepthOpen, func(d *Damage) { t.Error(d) })
	if err != nil || len(r.Backups[1]) != 4 || refused.Load() < 5 {
		t.Errorf("%d backups, %v; %d refusals", len(r.Backups[1]), err, refused.Load())
	}
}
