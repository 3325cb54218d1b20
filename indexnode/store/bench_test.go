package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

// The load of the ingest figures: records of 200 bytes in the log's order, on
// timelines chosen by Zipf. Bodies are noise, so that compression hides
// nothing.
const (
	benchTimelines = 100_000
	benchRecord    = 200
	benchPoll      = 5_000
)

type benchLoad struct {
	rng  *rand.Rand
	zipf *rand.Zipf
	n    int
	body [1 << 20]byte
}

func newBenchLoad() *benchLoad {
	l := &benchLoad{rng: rand.New(rand.NewPCG(1, 2))}
	l.zipf = rand.NewZipf(l.rng, 1.1, 10, benchTimelines-1)
	for i := range l.body {
		l.body[i] = byte(l.rng.Uint32())
	}
	return l
}

var benchNames = func() []millrace.Timeline {
	names := make([]millrace.Timeline, benchTimelines)
	for i := range names {
		names[i] = millrace.Timeline{Entity: millrace.Entity("member:" + strconv.Itoa(i)), Type: "post"}
	}
	return names
}

func (l *benchLoad) next(names []millrace.Timeline) (millrace.Partition, millrace.Timeline, millrace.Record) {
	name := names[l.zipf.Uint64()]
	id := "post:" + strconv.Itoa(l.n)
	at := l.rng.IntN(len(l.body) - benchRecord)
	size := benchRecord - len(id) - 10
	l.n++
	return partition.Of(name.Entity), name, millrace.Record{
		ID: millrace.RecordID(id), Time: millrace.Time(1_700_000_000_000 + l.n*10 - l.rng.IntN(5_000)), Schema: 9, Body: l.body[at : at+size],
	}
}

// cpu is the processor time the process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// ingestBlobs puts n records through the store, and returns the processor time
// of a record, in µs, and the bytes written for a byte of records.
func ingestBlobs(b *testing.B, n int) (us, amplification float64) {
	names := benchNames()
	load := newBenchLoad()
	start := cpu()
	s, err := Open(b.TempDir(), Options{FlushEvery: -1, MaxDirtyBytes: benchDirty})
	if err != nil {
		b.Fatal(err)
	}
	var batch Batch
	var changes []Change
	for i := 0; i < n; i += benchPoll {
		batch.Reset()
		for range benchPoll {
			p, t, r := load.next(names)
			batch.Put(p, t, r)
			batch.SetApplied(p, Content, millrace.Offset(load.n))
		}
		if changes, err = s.Apply(&batch, changes[:0]); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
	written := bytesWritten(s.db)
	b.Log(s.db.Metrics().String())
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return float64((cpu() - start).Nanoseconds()) / 1e3 / float64(n), float64(written) / float64(n*benchRecord)
}

// ingestKeys is the baseline: the same records, each under a key of its own
// that orders it within its timeline, in the same Pebble.
func ingestKeys(b *testing.B, n int) (us, amplification float64) {
	names := benchNames()
	load := newBenchLoad()
	start := cpu()
	db, err := pebble.Open(b.TempDir(), benchPebble())
	if err != nil {
		b.Fatal(err)
	}
	var key []byte
	for i := 0; i < n; i += benchPoll {
		batch := db.NewBatch()
		for range benchPoll {
			p, t, r := load.next(names)
			key = recordKey(key[:0], p, t, r)
			if err := batch.Set(key, r.Body, nil); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Set([]byte("applied"), binary.AppendUvarint(nil, uint64(i)), nil); err != nil {
			b.Fatal(err)
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			b.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		b.Fatal(err)
	}
	written := bytesWritten(db)
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	return float64((cpu() - start).Nanoseconds()) / 1e3 / float64(n), float64(written) / float64(n*benchRecord)
}

func benchPebble() *pebble.Options {
	s := &Store{opts: Options{}.withDefaults()}
	s.log = s.opts.Log
	o := s.pebbleOptions()
	o.Experimental.SpanPolicyFunc = nil
	return o
}

func recordKey(dst []byte, p millrace.Partition, t millrace.Timeline, r millrace.Record) []byte {
	dst = append(dst, byte(p>>8), byte(p))
	dst = appendString(appendString(dst, t.Entity), t.Type)
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(r.Time))
	return append(dst, r.ID...)
}

func bytesWritten(db *pebble.DB) (n uint64) {
	m := db.Metrics()
	for _, l := range m.Levels {
		n += l.TableBytesFlushed + l.TableBytesCompacted
	}
	return n
}

func BenchmarkIngest(b *testing.B) {
	n := 1_000_000
	if testing.Short() {
		n = 20_000
	}
	for b.Loop() {
		us, wa := ingestBlobs(b, n)
		base, baseWA := ingestKeys(b, n)
		b.ReportMetric(us, "µs/record")
		b.ReportMetric(base, "baseline-µs/record")
		b.ReportMetric(wa, "amplification")
		b.ReportMetric(baseWA, "baseline-amplification")
		figure.Print("ingest_cpu_vs_key_per_record", us/base, "x", 3)
		figure.Print("ingest_write_amplification", wa, "x", 6)
	}
}

var benchDirty, _ = strconv.ParseInt(os.Getenv("DIRTY"), 10, 64)
var _ = fmt.Sprint
