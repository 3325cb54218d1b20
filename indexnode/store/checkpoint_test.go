package store

import (
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
