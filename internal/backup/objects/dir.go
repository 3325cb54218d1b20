package objects

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// dir is a store whose objects are the files of a directory. A write is synced, and then
// renamed into place, so that after a power cut an object is whole or absent. Links below
// the root are never followed.
type dir struct{ root *os.Root }

// Scratch is the directory in which files are written before they get their names. Expiry
// removes what a crash left there.
const Scratch = ".tmp"

// ErrOdd is the error for a link or a device: Millrace did not write it, and does not open it.
var ErrOdd = errors.New("it is a link or a device, which Millrace never writes; remove it")

func openDir(name string) (Store, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, Refuse(fmt.Sprintf("there is no directory %.200q", name), "create it, or mount it")
	case err != nil:
		return nil, Refuse(fmt.Sprintf("the directory %.200q can't be used: %v", name, err), "give the process access to it")
	case !info.IsDir():
		return nil, Refuse(fmt.Sprintf("%.200q is not a directory", name), "name a directory")
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, Refuse(fmt.Sprintf("the directory %.200q can't be used: %v", name, err), "give the process access to it")
	}
	return &dir{root}, nil
}

func (d *dir) Close() error { return d.root.Close() }

// lstat returns the info of a regular file. It gives [ErrOdd] if the file, or a directory on
// the way to it, is a link or a device, and fs.ErrNotExist for a directory.
func (d *dir) lstat(name string) (info fs.FileInfo, err error) {
	for i, c := range name + "/" {
		if c != '/' {
			continue
		}
		if info, err = d.root.Lstat(name[:i]); err != nil {
			if errors.Is(err, syscall.ENOTDIR) {
				err = fs.ErrNotExist
			}
			return nil, err
		}
		if i < len(name) && !info.IsDir() || i == len(name) && !info.Mode().IsRegular() {
			if i == len(name) && info.IsDir() {
				return nil, fs.ErrNotExist
			}
			return nil, ErrOdd
		}
	}
	return info, nil
}

func (d *dir) Stat(_ context.Context, name string) (Object, error) {
	info, err := d.lstat(name)
	if err != nil {
		return Object{}, err
	}
	return Object{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil
}

func (d *dir) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, Object, error) {
	o, err := d.Stat(ctx, name)
	if err != nil {
		return nil, o, err
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, o, err
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, o, errors.Join(err, f.Close())
	}
	return f, o, nil
}

// List implements Store. It walks the whole directory that the prefix ends in.
func (d *dir) List(ctx context.Context, prefix string, each func(Object) error) error {
	top := strings.TrimSuffix(prefix[:strings.LastIndexByte(prefix, '/')+1], "/")
	if top == "" {
		top = "."
	}
	return d.walk(ctx, top, func(o Object) error {
		if !strings.HasPrefix(o.Name, prefix) {
			return nil
		}
		return each(o)
	})
}

func (d *dir) walk(ctx context.Context, name string, each func(Object) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if strings.Count(name, "/") > maxDepth {
		return each(Object{Name: name, Odd: true})
	}
	entries, err := fs.ReadDir(d.root.FS(), name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written here yet, or it was removed meanwhile
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		below := path.Join(name, e.Name())
		if e.IsDir() {
			if err := d.walk(ctx, below, each); err != nil {
				return err
			}
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		o := Object{Name: below, Size: info.Size(), Modified: info.ModTime(), Odd: !info.Mode().IsRegular()}
		if err := each(o); err != nil {
			return err
		}
	}
	return nil
}

// maxDepth is how many directories deep a walk goes. Backups are three deep.
const maxDepth = 8

func (d *dir) Write(_ context.Context, name string, r io.Reader, ifAbsent bool) (err error) {
	if ifAbsent {
		if _, err := d.lstat(name); !IsMissing(err) {
			return errors.Join(fs.ErrExist, err)
		}
	}
	if err := d.mkdir(Scratch); err != nil {
		return err
	}
	temporary := path.Join(Scratch, rand.Text())
	f, err := d.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r}, make([]byte, Chunk))
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = d.place(temporary, name, ifAbsent)
	}
	if err != nil {
		_ = d.root.Remove(temporary) // the first error is the one to return
	}
	return err
}

// place moves a complete file to its name, and syncs the directory. With ifAbsent it fails
// with fs.ErrExist if the name is taken.
func (d *dir) place(temporary, name string, ifAbsent bool) error {
	parent := path.Dir(name)
	if err := d.mkdir(parent); err != nil {
		return err
	}
	if _, err := d.lstat(name); errors.Is(err, ErrOdd) {
		return err
	}
	if !ifAbsent {
		if err := d.root.Rename(temporary, name); err != nil {
			return err
		}
		return d.sync(parent)
	}
	// A link fails if the name is taken; a rename would replace the file.
	switch err := d.root.Link(temporary, name); {
	case err == nil:
	case errors.Is(err, syscall.EPERM), errors.Is(err, errors.ErrUnsupported):
		// The file system has no hard links. A rename might replace a file, but two
		// processes write the same name only by mistake.
		if err := d.root.Rename(temporary, name); err != nil {
			return err
		}
		return d.sync(parent)
	default:
		return err
	}
	return errors.Join(d.root.Remove(temporary), d.sync(parent))
}

// mkdir makes a directory and those above it, and syncs them to disk. If one of them is no
// directory, it gives [ErrOdd].
func (d *dir) mkdir(name string) error {
	for i, c := range name + "/" {
		if c != '/' || name == "." {
			continue
		}
		part := name[:i]
		err := d.root.Mkdir(part, 0o700)
		switch {
		case err == nil:
			if err := d.sync(path.Dir(part)); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		default:
			if info, err := d.root.Lstat(part); err != nil || !info.IsDir() {
				return errors.Join(ErrOdd, err)
			}
		}
	}
	return nil
}

func (d *dir) sync(name string) error {
	f, err := d.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *dir) Remove(_ context.Context, name string) error {
	if _, err := d.lstat(name); err != nil {
		return err
	}
	if err := d.root.Remove(name); err != nil {
		return err
	}
	return d.sync(path.Dir(name))
}
