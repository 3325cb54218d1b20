package store

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
)

// A batch with a new content type comes while a checkpoint holds the writers.
// Both end.
func TestCheckpointBesideANewType(t *testing.T) {
	var armed atomic.Bool
	inside, goOn := make(chan struct{}), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLink && strings.HasSuffix(op.Path, ".sst") && armed.CompareAndSwap(true, false) {
			close(inside)
			<-goOn
		}
		return nil
	}))
	s := openMem(t, Options{FS: fs})
	put := func(typ millrace.ContentType) error {
		var b Batch
		b.Put(3, millrace.Timeline{Entity: "member:1", Type: typ}, millrace.Record{ID: "a", Time: 1})
		b.SetApplied(3, Content, 1)
		_, err := s.Apply(&b, nil)
		return err
	}
	if err := put("post"); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	ends := make(chan error, 2)
	go func() {
		_, err := s.Checkpoint([]millrace.Partition{3}, "checkpoint")
		ends <- err
	}()
	<-inside
	go func() { ends <- put("share") }()
	for s.types.mu.TryLock() { // until the batch has it, and waits for the checkpoint
		s.types.mu.Unlock()
		if len(ends) > 0 {
			close(goOn)
			t.Fatal("the batch was written beside the checkpoint")
		}
		runtime.Gosched()
	}
	close(goOn)
	for range 2 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Ingest goes on while a checkpoint waits for a slow disk.
func TestIngestGoesOnBesideACheckpoint(t *testing.T) {
	var armed atomic.Bool
	inside, goOn := make(chan struct{}), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") && armed.CompareAndSwap(true, false) {
			close(inside)
			<-goOn
		}
		return nil
	}))
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 20))
	armed.Store(true)
	end := make(chan error, 1)
	var all []Checkpoint
	go func() {
		var err error
		all, err = s.Checkpoint([]millrace.Partition{3}, "checkpoint")
		end <- err
	}()
	<-inside
	apply(t, s, mendBatch(3, 20, 40)) // hangs if it does not
	close(goOn)
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if all[0].Applied.Content != 20 || s.Applied(3).Content != 40 {
		t.Errorf("the checkpoint is at %v, the store at %v", all[0].Applied, s.Applied(3))
	}
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// A checkpoint that does not open, or whose rows are not those of the store, is
// an error, and nothing of it stays.
func TestACheckpointThatDoesNotOpen(t *testing.T) {
	mem := vfs.NewMem()
	var harm atomic.Pointer[func(path string) error]
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && strings.HasPrefix(op.Path, "checkpoint/MANIFEST") {
			if do := harm.Swap(nil); do != nil {
				return (*do)(op.Path)
			}
		}
		return nil
	}))
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 40))
	for what, do := range map[string]func(path string) error{
		"manifest": func(path string) error {
			_, err := rewriteFile(func(b []byte) ([]byte, string) { return b[:len(b)/2], "" })(mem, path)
			return err
		},
		"tables": func(string) error {
			names, err := mem.List("checkpoint")
			for _, name := range names {
				if strings.HasSuffix(name, ".sst") {
					err = errors.Join(err, mem.Remove("checkpoint/"+name))
				}
			}
			return err
		},
	} {
		harm.Store(&do)
		if all, err := s.Checkpoint([]millrace.Partition{3}, "checkpoint"); err == nil || all != nil {
			t.Errorf("%s: %v", what, all)
		}
		if harm.Load() != nil {
			t.Errorf("%s: it was not opened: the test shows nothing", what)
		}
		if _, err := mem.Stat("checkpoint"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: left behind: %v", what, err)
		}
	}
	checkpoint(t, s, 3, "checkpoint")
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}
