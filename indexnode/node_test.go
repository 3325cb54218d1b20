package indexnode

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// openNode opens a node without a log or a cluster, on which every partition
// is ready: tests apply to it what the log would bring.
func openNode(t testing.TB, c cache.Config) (*Node, *replica.Replicas) {
	t.Helper()
	return openRetaining(t, c, nil)
}

func openRetaining(t testing.TB, c cache.Config, kept map[millrace.ContentType]store.Retention) (*Node, *replica.Replicas) {
	t.Helper()
	return openStored(t, c, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1, Retention: kept})
}

func openStored(t testing.TB, c cache.Config, o store.Options) (*Node, *replica.Replicas) {
	t.Helper()
	return openIn(t, t.TempDir(), c, o)
}

// openIn opens a node with a data directory.
func openIn(t testing.TB, dir string, c cache.Config, o store.Options) (*Node, *replica.Replicas) {
	t.Helper()
	n, err := Open(Config{ID: "test", Dir: dir, Brokers: kafka.At("127.0.0.1:1"), Cluster: new(cluster.Client), Cache: c, Store: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		if _, err := n.schemas.Admit(s); err != nil {
			t.Fatal(err)
		}
	}
	for p := range partition.All() {
		n.replicas.Serve(p, time.Now().Add(time.Hour))
	}
	return n, n.replicas
}

// event is one record of the log, of either stream.
type event struct {
	stream kafka.Stream
	entity millrace.Entity // of the timeline
	schema *schemas.Schema
	body   []byte
	at     millrace.Time // when it was logged
}

// bring applies events, all of one stream and partition, as one poll of the
// log that goes up to next.
func bring(ctx context.Context, h *replica.Replicas, events []event, next millrace.Offset) error {
	f := streams.Fetched{TopicPartition: kafka.TopicPartition{Stream: events[0].stream, Partition: partition.Of(events[0].entity)}, Next: next}
	for _, e := range events {
		value := schemas.Frame(e.schema.Fingerprint(), e.body)
		crc := binary.BigEndian.AppendUint32(nil, crc32.Checksum(value, crc32.MakeTable(crc32.Castagnoli)))
		f.Records = append(f.Records, streams.Record{Offset: next - 1, Key: []byte(e.entity), Value: value, CRC: crc, Time: e.at})
	}
	return h.Bring(ctx, f)
}

// world draws the events of a small and busy network: few entities in few
// partitions, records that are replaced, moved, deleted before and after they
// come, and times that tie.
type world struct {
	r        *rand.Rand
	entities []millrace.Entity
	at       int64
}

var (
	verbs     = []string{"post", "like", "comment", "share"}
	languages = []string{"en", "de", "English", "Russian"}
)

func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 9)), at: 1_700_000_000_000}
	for i := range 24 {
		w.entities = append(w.entities, millrace.Entity(fmt.Sprintf("member:%d", i)))
	}
	return w
}

func oneOf[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func (w *world) draw(t testing.TB) event {
	e := oneOf(w.r, w.entities)
	schema, stream, line := schemas.Activity(), kafka.Timeline, ""
	if w.r.IntN(6) == 0 {
		schema, stream = schemas.Features(), kafka.Features
		line = fmt.Sprintf(`{"entity":%q,"subject":%q,"updated_at":%d,"followers":%d,"engagement":%d}`, e,
			oneOf(w.r, []string{"", string(e), "o1", "o2", "object:3", fmt.Sprintf("r%d", w.r.IntN(600))}), w.at+w.r.Int64N(1000), w.r.IntN(4), w.r.IntN(9))
	} else {
		w.at += w.r.Int64N(3)
		at := w.at
		if w.r.IntN(5) == 0 {
			at -= w.r.Int64N(2000)
		}
		line = fmt.Sprintf(`{"id":"r%d","actor":%q,"verb":%q,"created_at":%d,"version":%d,"deleted":%t,"object":%q,"language":%q,"country":"India","text":"About %d photos","likes":%d,"comments":%d}`,
			w.r.IntN(600), e, oneOf(w.r, verbs), at, w.r.IntN(5), w.r.IntN(8) == 0, oneOf(w.r, []string{"", "o1", "o2", "object:3", string(e)}),
			oneOf(w.r, languages), w.r.IntN(9), w.r.IntN(5), w.r.IntN(3))
	}
	body, err := schema.EncodeJSON([]byte(line))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return event{stream: stream, entity: e, schema: schema, body: body}
}
