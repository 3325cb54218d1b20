// Package objects stores objects, bytes by name, in a directory or in a bucket of S3, GCS or
// Azure. It alone uses the library for these, and knows nothing of backups.
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

// Store holds objects: bytes by name. Package backup makes the names, of letters, digits and
// -_./ between them.
type Store interface {
	// List calls each for every object whose name starts with prefix, in no
	// order. An error of each ends it and is returned.
	List(ctx context.Context, prefix string, each func(Object) error) error
	// Stat fails with fs.ErrNotExist if there is no such object.
	Stat(ctx context.Context, name string) (Object, error)
	// Open reads from an offset in bytes to the end. The Object is that of Stat: Size is
	// that of the whole.
	Open(ctx context.Context, name string, offset int64) (io.ReadCloser, Object, error)
	// Write makes the object whole or not at all. With ifAbsent it fails with
	// fs.ErrExist if there is one of that name.
	Write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error
	// Remove may fail with fs.ErrNotExist if there is no such object.
	Remove(ctx context.Context, name string) error
	Close() error
}

// Object is what is known of bytes without reading them.
type Object struct {
	Name     string
	Size     int64
	Modified time.Time // by the clock of the store
	Odd      bool      // it is a link or a device, or too deep in the directory: Millrace did not write it
}

// Chunk is how many bytes are copied at a time. A limit of a transfer's rate counts and waits
// once for each chunk.
const Chunk = 256 << 10

// ErrChanged is the error of a reader given to Write that finds other bytes than the
// object's name, which has their hash, promises. Then nothing is written.
var ErrChanged = errors.New("the file changed while it was uploaded")

// IsMissing reports whether an error says that there is no such object.
func IsMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// IsThere reports whether an error says that there is such an object already.
func IsThere(err error) bool { return errors.Is(err, fs.ErrExist) }

// Patient is a Store that tries an operation again if it may succeed later, as when the
// store answers 503, or not at all. An error that is certain to come again is returned at
// once.
type Patient struct {
	Store
	Log     *slog.Logger
	Pause   time.Duration                       // before the second try; it doubles, up to 10 s. 0: a quarter of a second
	TooMany func(prefix string, most int) error // returns the error of a list of more than most objects
}

// Tries and firstPause give a store that sheds load between 13 and 26 seconds to recover.
// After that the operation fails, and the next backup tries again.
const (
	Tries      = 8
	firstPause = 250 * time.Millisecond
)

// final is the errors that another try would meet again.
var final = []error{
	fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, ErrOdd, ErrChanged,
	syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.ENAMETOOLONG,
}

// certain marks an error as one that another try would meet again.
type certain struct{ error }

func (c certain) Unwrap() error { return c.error }

// IsFinal reports whether another try would fail with the same error.
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

// try calls do until it succeeds, fails with a final error, or has failed Tries times. It
// rests between half the pause and the whole pause. what and name are for the error.
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

// List is that of the Store, tried again. It holds the whole list, at most maxObjects, before
// it calls each.
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

// maxObjects bounds a list, and so its memory. It suffices for 720 partitions of a thousand
// files each, over many backups.
const maxObjects = 8 << 20

// Stat is that of the Store, tried again.
func (p *Patient) Stat(ctx context.Context, name string) (o Object, err error) {
	err = p.try(ctx, "look for", name, func() error {
		o, err = p.Store.Stat(ctx, name)
		return err
	})
	return o, err
}

// Open is that of the Store, tried again. An error of the reader that it returns is not.
func (p *Patient) Open(ctx context.Context, name string, offset int64) (r io.ReadCloser, o Object, err error) {
	err = p.try(ctx, "read", name, func() error {
		r, o, err = p.Store.Open(ctx, name, offset)
		return err
	})
	return r, o, err
}

// Write is that of the Store, tried again if r is an [io.Seeker], which can go back to its
// start.
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

// Remove is that of the Store, tried again. It returns nil if there is no such object.
func (p *Patient) Remove(ctx context.Context, name string) error {
	return p.try(ctx, "remove", name, func() error {
		if err := p.Store.Remove(ctx, name); !IsMissing(err) {
			return err
		}
		return nil
	})
}
