package answers

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/internal/rpcerr"
)

// While one filter is compiled, whoever asks with it waits, and nobody who asks
// with another.
func TestASlowFilterHoldsUpNobodyElse(t *testing.T) {
	n := hostileNode(t)
	known := n.schemas.Snapshot()
	const slow, other = "record.likes == 3", "record.likes == 4"
	free, begun := make(chan struct{}), make(chan struct{})
	one := n.filters.of(sources{feed: slow}, known)
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
			f, err := n.filters.join(sources{feed: slow}, known)
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
			_, err = n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = other }))
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
		wg.Go(func() { got[i], _ = n.filters.join(sources{feed: src}, known) })
	}
	wg.Wait()
	for _, f := range got {
		if f == nil || f != got[0] {
			t.Fatal("it was compiled again")
		}
	}
}

// A filter is compiled anew for other schemas, and is the new one from then on.
func TestAFilterIsOfTheSchemasThatAreKnown(t *testing.T) {
	n := hostileNode(t)
	from := sources{feed: "record.likes == 3"}
	join := func() *filter.Filter { return must(n.filters.join(from, n.schemas.Snapshot()))(t) }
	before := join()
	must(n.schemas.Admit(nodetest.Review(t, "Review", `{"name":"likes","type":"double"}`)))(t)
	after := join()
	if after == before || join() != after {
		t.Error("it is of the schemas that were known before")
	}
	r, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = from.feed }))
	if err != nil || len(r.Items) == 0 {
		t.Errorf("%v, %v", r, err)
	}
}

// A filter that cannot be compiled, or panics the compiler, is an error every
// time, and takes no room.
func TestABadFilterIsAnErrorAgain(t *testing.T) {
	n := hostileNode(t)
	known := n.schemas.Snapshot()
	for range 2 {
		if f, err := n.filters.join(sources{feed: "record.nothing == 1"}, known); f != nil || err == nil {
			t.Errorf("%v, %v", f, err)
		}
		if f, err := n.filters.join(sources{feed: "true"}, nil); f != nil || err == nil || !strings.Contains(err.Error(), "panicked") { // no schemas are no snapshot
			t.Errorf("%v, %v", f, err)
		}
	}
	if len(n.filters.compiled) > 0 {
		t.Errorf("%d are kept", len(n.filters.compiled))
	}
}

// escape is CEL by itself only in part: it closes a bracket that it did not
// open, where the text around it makes a comment of its carriage return.
const escape = "// \r ( \n true) || (true // \r )\n"

// Whatever a caller's filter says, the feed's holds too, and an account has the
// clauses of both.
func TestACallersFilterIsParsedApart(t *testing.T) {
	n := hostileNode(t)
	ask := func(request, feed string) (*nodev1.QueryResponse, error) {
		return n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.RequestFilter, r.Filter, r.Explain = request, feed, true }))
	}
	for _, hostile := range []string{escape, "true) || (true", "true // ", "\"", "r\"\\", "true || true", "// (\n true", "\u2028true"} {
		if resp, err := ask(hostile, "record.likes > 3 // some"); err == nil && (len(resp.Items) != 1 || resp.Items[0].Id != "r2") {
			t.Errorf("%q gives %v", hostile, resp.Items)
		}
	}
	resp, err := ask("record.likes > 3 // more", "record.verb == \"post\" && record.likes < 100")
	if err != nil || len(resp.Items) != 1 || len(resp.Clauses) != 3 || resp.Clauses[0].Clause != "record.likes > 3" || resp.Stages.FilteredFalse != 2 {
		t.Errorf("%v, %v", resp, err)
	}
	for range 2 { // the second time out of the cache
		if _, err := ask(escape, "true"); err == nil {
			t.Error("the escape is a filter")
		}
	}
}

// A node that cannot keep a schema yet does not refuse a filter that may be
// good by it: it cannot tell, and another replica is asked. With all schemas it
// refuses.
func TestAFilterIsNotRefusedForASchemaThatIsHeld(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	ask := func() *millrace.Error {
		t.Helper()
		_, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: nodetest.Pack("x"), ToMs: 1, Model: "recency", Limit: 1, Filter: `record.color == "red"`})
		var e *millrace.Error
		if !errors.As(rpcerr.FromStatus(err), &e) {
			t.Fatalf("%v", err)
		}
		return e
	}
	var why error
	held := func() error { return why }
	n.schemasHeld.Store(&held)
	if e := ask(); e.Reason != millrace.ReasonFilter || !rpcerr.Refused(e) {
		t.Errorf("with all schemas: %+v", e)
	}
	why = errors.New("no space left on device")
	if e := ask(); e.Reason != millrace.ReasonUnavailable || rpcerr.Refused(e) || !strings.Contains(e.Detail, "no space left on device") || !strings.Contains(e.Detail, "color") {
		t.Errorf("while one cannot be kept: %+v", e)
	}
}
