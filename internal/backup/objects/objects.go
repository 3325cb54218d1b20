// Package objects is what a bucket is made of: bytes by name, in a directory or
// an object store. It is the home of the library that reaches S3, GCS and Azure,
// and knows nothing of backups.
package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"time"
)

// Store is what a bucket is made of: bytes by name. Names are of package
// backup, and hold nothing but letters, digits and -_./ between them.
type Store interface {
	// List calls each for every object whose name starts with prefix, in no
	// order.
	List(ctx context.Context, prefix string, each func(Object) error) error
	// Stat fails with fs.ErrNotExist where there is nothing.
	Stat(ctx context.Context, name string) (Object, error)
	// Open reads from an offset to the end. The object is what stat says.
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, Object, error)
	// Write makes the object whole or not at all. With ifAbsent it fails with
	// fs.ErrExist where there is one.
	Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error
	// Remove is content where there is nothing.
	Remove(ctx context.Context, name string) error
	Close() error
}

// Object is what is known of bytes without reading them.
type Object struct {
	Name     string
	Size     int64
	Modified time.Time // by the clock of the bucket
	Odd      bool      // a link, a device: nothing that Millrace wrote
}

// Chunk is how much is read, counted and held back at a time.
const Chunk = 256 << 10

// ErrChanged is the error of a reader that finds other bytes than the object's
// name promises; nothing is written then.
var ErrChanged = errors.New("the file changed while it was uploaded")

// IsMissing reports whether an error says that there is no such object.
func IsMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// IsThere reports whether an error says that there is such an object already.
func IsThere(err error) bool { return errors.Is(err, fs.ErrExist) }

// Patient tries again what may succeed later: a store that answers 503, or
// not at all. What is certain to fail again, it returns at once.
type Patient struct {
	Store
	Log     *slog.Logger
	Pause   time.Duration                       // before the second try; it doubles. 0 is a quarter of a second
	TooMany func(prefix string, most int) error // what a list of more than most objects fails with
}

// Tries and firstPause make half a minute, within which a store that sheds
// load has recovered. What fails after that is a matter of the next backup.
const (
	Tries      = 8
	firstPause = 250 * time.Millisecond
)

// final are errors that another try doesn't mend.
var final = []error{
	fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, ErrOdd, ErrChanged,
	syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.ENAMETOOLONG,
}

// certain is an error that another try certainly meets again.
type certain struct{ error }

func (c certain) Unwrap() error { return c.error }

// IsFinal reports whether another try is in vain.
func IsFinal(err error) bool {
	var sure certain
	if errors.As(err, &sure) {
		return true
	}
	for _, f := range final {
		if errors.Is(err, f) {
			return true
		}
	}
	// Of the answers of an HTTP server, only these may differ next time.
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) {
		code := answer.HTTPStatusCode()
		return code >= 400 && code < 500 && code != 408 && code != 409 && code != 429
	}
	return false
}

// try calls do until it succeeds, fails for good, or has failed tries times.
func (p *Patient) try(ctx context.Context, what, name string, do func() error) error {
	pause := cmp.Or(p.Pause, firstPause)
	for n := 1; ; n++ {
		err := do()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("backup: %s %s: %w", what, name, ctx.Err())
		case IsFinal(err):
			return fmt.Errorf("backup: %s %s: %w", what, name, err)
		case n == Tries:
			return fmt.Errorf("backup: %s %s: failed %d times, last: %w", what, name, n, err)
		}
		p.Log.Warn("the bucket failed; trying again", "operation", what, "object", name, "try", n, "error", err)
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// List calls each only when the whole list is there.
func (p *Patient) List(ctx context.Context, prefix string, each func(Object) error) error {
	var all []Object
	err := p.try(ctx, "list", prefix, func() error {
		all = all[:0]
		return p.Store.List(ctx, prefix, func(o Object) error {
			if len(all) == maxObjects {
				return certain{p.TooMany(prefix, maxObjects)}
			}
			all = append(all, o)
			return nil
		})
	})
	if err != nil {
		return err
	}
	for _, o := range all {
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

// maxObjects bounds a list, and with it the memory that one takes: 720
// partitions of a thousand files, over many backups.
const maxObjects = 8 << 20

// Stat is that of the Store, tried again.
func (p *Patient) Stat(ctx context.Context, name string) (o Object, err error) {
	err = p.try(ctx, "look for", name, func() error {
		o, err = p.Store.Stat(ctx, name)
		return err
	})
	return o, err
}

// Open is that of the Store, tried again; what breaks later is the reader's.
func (p *Patient) Open(ctx context.Context, name string, offset int64) (r io.ReadCloser, o Object, err error) {
	err = p.try(ctx, "read", name, func() error {
		r, o, err = p.Store.Open(ctx, name, offset)
		return err
	})
	return r, o, err
}

// Write tries again only where r can go back to its start.
func (p *Patient) Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	if seeker, ok := r.(io.Seeker); ok {
		return p.try(ctx, "write", name, func() error {
			if _, err := seeker.Seek(0, io.SeekStart); err != nil {
				return err
			}
			return p.Store.Write(ctx, name, r, ifAbsent)
		})
	}
	return p.Store.Write(ctx, name, r, ifAbsent)
}

// Remove is that of the Store, tried again.
func (p *Patient) Remove(ctx context.Context, name string) error {
	return p.try(ctx, "remove", name, func() error {
		if err := p.Store.Remove(ctx, name); !IsMissing(err) {
			return err
		}
		return nil
	})
}
