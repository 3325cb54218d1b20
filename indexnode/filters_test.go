package indexnode

import (
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace/internal/filter"
)

// While one filter is compiled, whoever asks with it waits, and nobody who asks
// with another.
func TestASlowFilterHoldsUpNobodyElse(t *testing.T) {
	n := hostileNode(t)
	known := n.schemas.Snapshot()
	const slow, other = "record.likes == 3", "record.likes == 4"
	free, begun := make(chan struct{}), make(chan struct{})
	one := n.filters.of(slow, known)
	go one.once.Do(func() {
		close(begun)
		<-free
		one.f, one.err = compile(slow, known)
	})
	<-begun
	const askers = 8
	got := make(chan *filter.Filter, askers)
	for range askers {
		go func() {
			f, err := n.filters.get(slow, known)
			if err != nil {
				t.Error(err)
			}
			got <- f
		}()
	}
	answered := make(chan error, 1)
	go func() {
		var err error
		for began := time.Now(); time.Since(began) < 50*time.Millisecond && err == nil; { // until the others wait
			_, err = n.query(t.Context(), all(func(r *nodev1.QueryRequest) { r.Filter = other }))
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("who asks with another filter waits")
	}
	if len(got) > 0 {
		t.Error("somebody has a filter that is not compiled yet")
	}
	close(free)
	for range askers {
		if f := <-got; f == nil || f != one.f {
			t.Errorf("%v is not the filter that was compiled", f)
		}
	}
}

// Of many who ask with a new filter at once, one compiles it.
func TestAFilterIsCompiledOnce(t *testing.T) {
	n := hostileNode(t)
	known := n.schemas.Snapshot()
	src := "record.likes == 3" + strings.Repeat(" || record.likes == 4", 100)
	var got [16]*filter.Filter
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i], _ = n.filters.get(src, known) })
	}
	wg.Wait()
	for _, f := range got {
		if f == nil || f != got[0] {
			t.Fatal("it was compiled again")
		}
	}
}

// A filter that cannot be compiled, or panics the compiler, is an error every
// time, and takes no room.
func TestABadFilterIsAnErrorAgain(t *testing.T) {
	n := hostileNode(t)
	known := n.schemas.Snapshot()
	for range 2 {
		if f, err := n.filters.get("record.nothing == 1", known); f != nil || err == nil {
			t.Errorf("%v, %v", f, err)
		}
		if f, err := n.filters.get("true", nil); f != nil || err == nil || !strings.Contains(err.Error(), "panicked") { // no schemas are no snapshot
			t.Errorf("%v, %v", f, err)
		}
	}
	if len(n.filters.compiled) > 0 {
		t.Errorf("%d are kept", len(n.filters.compiled))
	}
}
