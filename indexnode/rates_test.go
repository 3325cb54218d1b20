package indexnode

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// Rates near what comes and goes a second, and fall when nothing does.
func TestRates(t *testing.T) {
	n, h := openStored(t, cache.Config{Memory: 16 << 10}, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	now, p := time.Now(), partition.Of("member:1")
	nodetest.BringLine(t, h, kafka.Timeline, `{"id":"before","actor":"member:1","verb":"post","created_at":1700000000000}`, 1)
	n.rates.look(n, now)
	if in, out := n.rates.get(p, "post"); in != 0 || out != 0 {
		t.Errorf("what was there before comes: %v, %v", in, out)
	}
	at := millrace.Offset(2)
	for range 40 { // ten minutes, 15 records and 3 deletions in each 15 s
		for i := range 15 {
			nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"post","created_at":1700000000000}`, at), at)
			if at++; i%5 == 0 {
				nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"post","created_at":1700000000000,"deleted":true,"version":2}`, at-1), at)
				at++
			}
		}
		now = now.Add(15 * time.Second)
		n.rates.look(n, now)
	}
	if in, out := n.rates.get(p, "post"); in < 0.99 || in > 1.01 || out < 0.19 || out > 0.21 {
		t.Errorf("1 and 0.2 a second come and go; told are %v and %v", in, out)
	}
	for range 20 {
		now = now.Add(15 * time.Second)
		n.rates.look(n, now)
	}
	if in, out := n.rates.get(p, "post"); in > 0.01 || out > 0.01 {
		t.Errorf("nothing comes for five minutes; told are %v and %v", in, out)
	}
}

// What a replica reads that is made, of what the log had before, does not come.
func TestAReplicaThatIsMadeHasNoRates(t *testing.T) {
	var r rates
	var now map[millrace.ContentType]rate
	taken := int64(0)
	look := func(state replica.State, comes int64) float64 {
		taken += comes
		now = r.next(now, state, map[millrace.ContentType]tally.Counts{"post": {Taken: taken}}, 15)
		return now["post"].in
	}
	for i, state := range []replica.State{replica.CatchingUp, replica.CatchingUp, replica.Ready, replica.Ready} {
		comes := int64(15_000)
		if i == 3 {
			comes = 0
		}
		if in := look(state, comes); in != 0 {
			t.Errorf("at look %d, while it is %s, %v a second come", i, state, in)
		}
	}
	if in := look(replica.Ready, 15); in < 0.2 || in > 0.25 {
		t.Errorf("of one a second %v", in)
	}
}

// However many content types there are, metrics tell a bounded number.
func TestTypeMetricsAreBounded(t *testing.T) {
	n, _ := openStored(t, cache.Config{Memory: 16 << 10}, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	registry := prometheus.NewRegistry()
	registry.MustRegister(&typeMetrics{n})
	var b store.Batch
	const types = 2000
	for i := range types { // of others in each partition, one that is no text
		b.Put(millrace.Partition(i%7), millrace.Timeline{Entity: "e", Type: millrace.ContentType("t" + strconv.Itoa(i))}, millrace.Record{ID: "r", Time: 1})
	}
	b.Put(0, millrace.Timeline{Entity: "e", Type: "\xff"}, millrace.Record{ID: "r", Time: 1})
	if _, err := n.store.Apply(&b, nil); err != nil {
		t.Fatal(err)
	}
	got := gathered(t, registry)
	series, sum := 0, 0.0
	for name, v := range got {
		if l := len("indexnode_type_records"); len(name) > l && name[:l] == "indexnode_type_records" {
			series++
			sum += v
		}
	}
	if series > store.MaxTypes+1 || sum != types+1 || got["indexnode_type_records type="] < types-store.MaxTypes {
		t.Errorf("%d series of %v records, %v of them together", series, sum, got["indexnode_type_records type="])
	}
}
