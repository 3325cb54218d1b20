package backup

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/backup/objects"
)

// mapped are objects in a map, so that a bucket is copied and mutated at little
// cost.
type mapped struct {
	mu struct {
		sync.Mutex
		at   map[string]entry
		read int64 // bytes
	}
}

type entry struct {
	data     []byte
	modified time.Time
	odd      bool
	claim    int64 // added to the size that is told
}

func (e entry) object(name string) objects.Object {
	return objects.Object{Name: name, Size: int64(len(e.data)) + e.claim, Modified: e.modified, Odd: e.odd}
}

func newMapped() *mapped {
	m := &mapped{}
	m.mu.at = map[string]entry{}
	return m
}

func (m *mapped) clone() *mapped {
	c := &mapped{}
	c.mu.at = maps.Clone(m.mu.at)
	return c
}

func (m *mapped) get(name string) (entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.mu.at[name]
	if !ok {
		return e, fs.ErrNotExist
	}
	return e, nil
}

func (m *mapped) List(_ context.Context, prefix string, each func(objects.Object) error) error {
	m.mu.Lock()
	at := maps.Clone(m.mu.at)
	m.mu.Unlock()
	for name, e := range at {
		if strings.HasPrefix(name, prefix) {
			if err := each(e.object(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *mapped) Stat(_ context.Context, name string) (objects.Object, error) {
	e, err := m.get(name)
	if err == nil && e.odd {
		err = objects.ErrOdd
	}
	return e.object(name), err
}

func (m *mapped) Open(ctx context.Context, name string, offset int64) (io.ReadCloser, objects.Object, error) {
	o, err := m.Stat(ctx, name)
	if err != nil {
		return nil, o, err
	}
	e, _ := m.get(name)
	return io.NopCloser(&counted{m, bytes.NewReader(e.data[min(offset, int64(len(e.data))):])}), o, nil
}

// counted counts what is read of all objects.
type counted struct {
	m *mapped
	r io.Reader
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.mu.read += int64(n)
	return n, err
}

func (m *mapped) Write(_ context.Context, name string, r io.Reader, ifAbsent bool) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.mu.at[name]; ok && ifAbsent {
		return fs.ErrExist
	}
	m.mu.at[name] = entry{data: data, modified: time.Now()}
	return nil
}

func (m *mapped) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.at, name)
	return nil
}

func (m *mapped) Close() error { return nil }

// What all bodies do alike.
func TestBodiesAgree(t *testing.T) {
	check := func(t *testing.T, o objects.Store) {
		ctx := t.Context()
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		if _, err := o.Stat(ctx, "a/b"); !objects.IsMissing(err) {
			t.Errorf("stat of nothing: %v", err)
		}
		if _, _, err := o.Open(ctx, "a/b", 0); !objects.IsMissing(err) {
			t.Errorf("open of nothing: %v", err)
		}
		ok(o.List(ctx, "a/", func(o objects.Object) error { t.Errorf("%s is listed", o.Name); return nil }))
		ok(o.Write(ctx, "a/b", readerOf([]byte("first")), true))
		if err := o.Write(ctx, "a/b", readerOf([]byte("second")), true); !objects.IsThere(err) {
			t.Errorf("write of what is there: %v", err)
		}
		r, at, err := o.Open(ctx, "a/b", 2)
		if err != nil {
			t.Fatal(err)
		}
		if data := must(io.ReadAll(r)); string(data) != "rst" || at.Size != 5 {
			t.Errorf("from 2: %q of %d", data, at.Size)
		}
		ok(r.Close())
		ok(o.Write(ctx, "a/b", readerOf([]byte("third!")), false))
		ok(o.Write(ctx, "a/c/d", readerOf(nil), false))
		ok(o.Write(ctx, "ab", readerOf(nil), false))
		failing := io.MultiReader(bytes.NewReader(make([]byte, 20<<20)), errReader{})
		if err := o.Write(ctx, "a/torn", failing, false); err == nil {
			t.Error("a write whose bytes end in an error made an object")
		}
		if got := all(t, o); !maps.Equal(got, map[string]int64{"a/b": 6, "a/c/d": 0, "ab": 0}) {
			t.Errorf("%v", got)
		}
		found := 0
		ok(o.List(ctx, "a/", func(o objects.Object) error {
			found++
			if age := time.Since(o.Modified); age < -time.Minute || age > time.Hour {
				t.Errorf("%s is from %v", o.Name, o.Modified)
			}
			return nil
		}))
		if found != 2 {
			t.Errorf("%d objects below a/", found)
		}
		ok(o.Remove(ctx, "a/b"))
		if err := o.Remove(ctx, "a/b"); err != nil && !objects.IsMissing(err) {
			t.Errorf("remove of nothing: %v", err)
		}
	}
	onEach(t, check)
	t.Run("mapped", func(t *testing.T) { check(t, newMapped()) })
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrNoProgress }
