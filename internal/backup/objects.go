package backup

import (
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

// objects is what a bucket is made of: bytes by name. Names are of this package
// and hold nothing but letters, digits and -_./ between them.
type objects interface {
	// list calls each for every object whose name starts with prefix, in no
	// order.
	list(ctx context.Context, prefix string, each func(object) error) error
	// stat fails with fs.ErrNotExist where there is nothing.
	stat(ctx context.Context, name string) (object, error)
	// open reads from an offset to the end. The object is what stat says.
	open(ctx context.Context, name string, offset int64) (io.ReadCloser, object, error)
	// write makes the object whole or not at all. With ifAbsent it fails with
	// fs.ErrExist where there is one.
	write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error
	// remove is content where there is nothing.
	remove(ctx context.Context, name string) error
	close() error
}

// object is what is known of bytes without reading them.
type object struct {
	name     string
	size     int64
	modified time.Time // by the clock of the bucket
	odd      bool      // a link, a device: nothing that this package wrote
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
func isThere(err error) bool   { return errors.Is(err, fs.ErrExist) }

// patient tries again what may succeed later: a store that answers 503, or
// not at all. What is certain to fail again, it returns at once.
type patient struct {
	objects
	log   *slog.Logger
	pause time.Duration // before the second try; it doubles
}

// tries and firstPause make half a minute, within which a store that sheds
// load has recovered. What fails after that is a matter of the next backup.
const (
	tries      = 8
	firstPause = 250 * time.Millisecond
)

// final are errors that another try doesn't mend.
var final = []error{
	fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, errOdd, errChanged,
	syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.ENAMETOOLONG,
}

func isFinal(err error) bool {
	var damage *Damage
	if errors.As(err, &damage) {
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
func (p *patient) try(ctx context.Context, what, name string, do func() error) error {
	pause := p.pause
	for n := 1; ; n++ {
		err := do()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("backup: %s %s: %w", what, name, ctx.Err())
		case isFinal(err):
			return fmt.Errorf("backup: %s %s: %w", what, name, err)
		case n == tries:
			return fmt.Errorf("backup: %s %s: failed %d times, last: %w", what, name, n, err)
		}
		p.log.Warn("the bucket failed; trying again", "operation", what, "object", name, "try", n, "error", err)
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, 10*time.Second)
	}
}

func (p *patient) list(ctx context.Context, prefix string, each func(object) error) error {
	var all []object
	err := p.try(ctx, "list", prefix, func() error {
		all = all[:0]
		return p.objects.list(ctx, prefix, func(o object) error {
			if len(all) == maxObjects {
				return &Damage{Object: prefix, Kind: Extra, Detail: fmt.Sprintf("more than %d objects", maxObjects)}
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

func (p *patient) stat(ctx context.Context, name string) (o object, err error) {
	err = p.try(ctx, "look for", name, func() error {
		o, err = p.objects.stat(ctx, name)
		return err
	})
	return o, err
}

func (p *patient) open(ctx context.Context, name string, offset int64) (r io.ReadCloser, o object, err error) {
	err = p.try(ctx, "read", name, func() error {
		r, o, err = p.objects.open(ctx, name, offset)
		return err
	})
	return r, o, err
}

// write tries again only where r can go back to its start.
func (p *patient) write(ctx context.Context, name string, r io.Reader, ifAbsent bool) error {
	if seeker, ok := r.(io.Seeker); ok {
		return p.try(ctx, "write", name, func() error {
			if _, err := seeker.Seek(0, io.SeekStart); err != nil {
				return err
			}
			return p.objects.write(ctx, name, r, ifAbsent)
		})
	}
	return p.objects.write(ctx, name, r, ifAbsent)
}

func (p *patient) remove(ctx context.Context, name string) error {
	return p.try(ctx, "remove", name, func() error {
		if err := p.objects.remove(ctx, name); !isMissing(err) {
			return err
		}
		return nil
	})
}
