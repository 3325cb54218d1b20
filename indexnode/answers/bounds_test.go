package answers

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/race"
)

// largeNode has an entity with so many records of nearly a megabyte, a second apart.
func largeNode(t *testing.T, records int) *node {
	n, h := openStored(t, cache.Config{}, store.Options{FS: vfs.NewMem()})
	text := strings.Repeat("x", 1<<20-1<<10)
	for i := range records {
		nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%03d","actor":"member:1","verb":"post","created_at":%d,"text":%q}`, i, 1_700_000_000_000+1000*i, text), millrace.Offset(i+1))
	}
	return n
}

// allocated returns how many bytes of memory f asks for, whether it is given
// back meanwhile or not. It begins when nobody else does, such as a store that flushes and
// compacts what it was brought.
func allocated(f func()) uint64 {
	if race.Enabled { // its own would count
		f()
		return 0
	}
	var before, after runtime.MemStats
	for runtime.ReadMemStats(&before); ; before = after {
		time.Sleep(50 * time.Millisecond)
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc < 1<<20 {
			break
		}
	}
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// An entity of 135 MB costs a question no more than is stated: all of it is
// refused, by the entity's name and with a way out, which is taken then.
func TestALargeTimelineCostsWhatIsStated(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const records = 135
	n := largeNode(t, records)
	everything := nodetest.All(func(r *nodev1.QueryRequest) { r.Types, r.Limit = []string{"post"}, 10 })
	var err error
	if took := allocated(func() { _, err = n.query(t.Context(), everything) }); took > questionMemory {
		t.Errorf("all of it: %d MiB were asked for", took>>20)
	}
	var refused *millrace.Error
	if !errors.As(err, &refused) || refused.Reason != millrace.ReasonTooLarge || !strings.Contains(refused.Detail, "member:1") || !strings.Contains(refused.WayOut, "from") {
		t.Errorf("all of it: %v", err)
	}
	window := nodetest.All(func(r *nodev1.QueryRequest) {
		r.Types, r.Limit, r.FromMs = []string{"post"}, 5, 1_700_000_000_000+1000*(records-50)
	})
	var resp *nodev1.QueryResponse
	if took := allocated(func() { resp, err = n.query(t.Context(), window) }); took > questionMemory {
		t.Errorf("a part of it: %d MiB were asked for", took>>20)
	}
	if err != nil || len(resp.GetItems()) != 5 || resp.Stages.Candidates != 50 {
		t.Errorf("a part of it: %d items of %v, %v", len(resp.GetItems()), resp.GetStages(), err)
	}
	if held := n.memory.Held(); held != 0 {
		t.Errorf("%d bytes are held in the end", held)
	}
}

// An answer that takes more than the broker has room for is withheld before it

// is made, and one that takes more than a message may is refused.
func TestLargeAnswersAreWithheld(t *testing.T) {
	n := largeNode(t, 40)
	ask := func(limit int32, room int64) (resp *nodev1.QueryResponse, err error) {
		took := allocated(func() {
			resp, err = n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Types, r.Limit, r.MaxBytes = []string{"post"}, limit, room }))
		})
		if took > questionMemory {
			t.Errorf("%d items: %d MiB were asked for", limit, took>>20)
		}
		return resp, err
	}
	resp, err := ask(20, 1<<20)
	if err != nil || len(resp.Items) != 0 || resp.WithheldBytes < 19<<20 || resp.WithheldBytes > 21<<20 {
		t.Fatalf("%d items, %d withheld, %v", len(resp.GetItems()), resp.GetWithheldBytes(), err)
	}
	if resp, err = ask(20, resp.WithheldBytes); err != nil || len(resp.Items) != 20 || resp.WithheldBytes != 0 {
		t.Errorf("%d items, %d withheld, %v", len(resp.GetItems()), resp.GetWithheldBytes(), err)
	}
	var refused *millrace.Error
	if _, err := ask(40, 0); !errors.As(err, &refused) || refused.Reason != millrace.ReasonTooLarge || refused.Field != "limit" {
		t.Errorf("40 items: %v", err)
	}
	if held := n.memory.Held(); held != 0 {
		t.Errorf("%d bytes are held in the end", held)
	}
}

// Questions that read much at the same time share the node's memory: what is
// beyond it is refused as overload, and all of it comes back.
func TestQuestionsShareTheMemory(t *testing.T) {
	n := largeNode(t, 60)
	loan := n.memory.Borrow()
	if err := loan.More(questionMemory - 32<<20); err != nil { // others
		t.Fatal(err)
	}
	ask := func() error {
		_, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"post"} }))
		return err
	}
	var refused *millrace.Error
	if err := ask(); !errors.As(err, &refused) || refused.Reason != millrace.ReasonOverloaded {
		t.Errorf("beside others: %v", err)
	}
	loan.Return()
	if err := ask(); err != nil {
		t.Errorf("alone: %v", err)
	}
	if held := n.memory.Held(); held != 0 {
		t.Errorf("%d bytes are held in the end", held)
	}
}

// Entities times types is bounded, and so is what is looked through for a
// record.
func TestTimelinesAreBounded(t *testing.T) {
	n := hostileNode(t)
	for what, c := range map[string]struct {
		types, entities int
		examine         string
	}{
		"timelines": {100, 5001, ""},
		"examined":  {99, 1020, "r1"},
	} {
		names := make([]string, c.entities)
		for i := range names {
			names[i] = fmt.Sprint("member:", i)
		}
		req := nodetest.All(func(r *nodev1.QueryRequest) {
			r.Types, r.Entities, r.Examine = make([]string, c.types), nodetest.Pack(names...), c.examine
			fillTypes(r.Types)
		})
		_, err := n.query(t.Context(), req)
		var refused *millrace.Error
		if !errors.As(err, &refused) || refused.Reason != millrace.ReasonTooLarge || refused.Field != "entities" {
			t.Errorf("%s: %v", what, err)
		}
	}
}
