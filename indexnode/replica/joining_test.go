package replica

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// A replica that comes to many others asks Kafka where its own streams begin and
// end, and not where theirs do.
func TestWhoComesAsksForItself(t *testing.T) {
	w := newWorld(t)
	w.limit = time.Hour // what is confirmed stays so
	var asked atomic.Int64
	w.kafka.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		for _, topic := range r.(*kmsg.ListOffsetsRequest).Topics {
			asked.Add(int64(len(topic.Partitions)))
		}
		return nil, nil, false
	})
	all := slices.Collect(partition.All())
	w.start(slices.DeleteFunc(slices.Clone(all), func(p millrace.Partition) bool { return p == partHere })...)
	w.input.through.Store(time.Now().Add(time.Minute).UnixMilli())
	w.until("the others are ready", func() bool { a, _, _ := w.replicas.Answering(time.Now()); return a.Len() == partition.Count-1 })
	before := asked.Load()
	w.want(all...)
	w.until("it is ready", w.is(partHere, Ready, ""))
	if n := asked.Load() - before; n == 0 || n > 20 {
		t.Errorf("asked for %d offsets", n)
	}
}
