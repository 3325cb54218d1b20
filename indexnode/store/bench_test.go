package store

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/disk"
	"github.com/millrace/millrace/indexnode/store/timeline"
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
	return partition.Of(name.Entity), name, l.record()
}

// record makes up a record; times rise, nearly.
func (l *benchLoad) record() millrace.Record {
	id := "post:" + strconv.Itoa(l.n)
	at := l.rng.IntN(len(l.body) - benchRecord)
	size := benchRecord - len(id) - 10
	l.n++
	return millrace.Record{
		ID: millrace.RecordID(id), Time: 1_700_000_000_000 + millrace.Time(l.n*10-l.rng.IntN(5_000)), Schema: 9, Body: l.body[at : at+size],
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

// medianRatio is the median of a[i]/b[i], each pair of the same moment.
func medianRatio(a, b []float64) float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return median(r)
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
	s, err := Open(b.TempDir(), Options{FlushEvery: -1})
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
	var key, value []byte
	for i := 0; i < n; i += benchPoll {
		batch := db.NewBatch()
		for range benchPoll {
			p, t, r := load.next(names)
			key, value = recordKey(key[:0], p, t, r), recordValue(value[:0], r)
			if err := batch.Set(key, value, nil); err != nil {
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
	s := &Store{opts: Options{MinFreeBytes: -1}.withDefaults()}
	s.log = s.opts.Log
	s.disk = disk.New(disk.Config{FS: s.opts.FS, MinFree: -1, Log: s.log, Stalls: func(error) {}})
	o := s.pebbleOptions()
	o.Experimental.SpanPolicyFunc = nil
	return o
}

func recordKey(dst []byte, p millrace.Partition, t millrace.Timeline, r millrace.Record) []byte {
	dst = append(dst, byte(p>>8), byte(p))
	dst = blob.AppendString(blob.AppendString(dst, t.Entity), t.Type)
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(r.Time))
	return append(dst, r.ID...)
}

// recordValue is the baseline's value: what a record has besides its key.
func recordValue(dst []byte, r millrace.Record) []byte {
	dst = binary.AppendVarint(append(dst, 0), r.Version)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Schema))
	return append(dst, r.Body...)
}

func bytesWritten(db *pebble.DB) (n uint64) {
	m := db.Metrics()
	for _, l := range m.Levels {
		n += l.TableBytesFlushed + l.TableBytesCompacted
	}
	return n
}

// BenchmarkIngest puts a million records (fewer with -short) through the store
// and through the baseline.
func BenchmarkIngest(b *testing.B) {
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	for b.Loop() {
		us, amplification := ingestBlobs(b, n)
		base, baseAmplification := ingestKeys(b, n)
		b.ReportMetric(us, "µs/record")
		b.ReportMetric(base, "baseline-µs/record")
		b.ReportMetric(baseAmplification, "baseline-x-written")
		figure.Print("ingest_cpu_vs_key_per_record", us/base, "x")
		figure.Print("ingest_write_amplification", amplification, "x")
	}
}

// The load of the read figures: timelines of 20 records of 200 bytes, one blob
// of 4 KB each, all in Pebble's cache.
const (
	readTimelines = 4_000
	readRecords   = 20
)

// BenchmarkRead reads whole timelines that were just written: from the store,
// from the baseline, and, as what cannot be beaten, the head's bytes by a bare
// Get.
func BenchmarkRead(b *testing.B) {
	names := benchNames()[:readTimelines]
	s, keys := readStores(b, names)
	var newest Newest
	var rows keyRows
	var blob, key, get []float64
	for b.Loop() {
		for range 25 {
			blob = append(blob, perTimeline(b, names, func(p millrace.Partition, t millrace.Timeline) int {
				if err := s.ReadNewestInto(&newest, p, t, readRecords); err != nil {
					b.Fatal(err)
				}
				return len(newest.Records)
			}))
			key = append(key, perTimeline(b, names, func(p millrace.Partition, t millrace.Timeline) int {
				if err := rows.read(keys, p, t, readRecords); err != nil {
					b.Fatal(err)
				}
				return len(rows.recs)
			}))
			get = append(get, perTimeline(b, names, func(p millrace.Partition, t millrace.Timeline) int {
				v, closer, err := s.db.Get(timeline.HeadKey(timeline.Prefix(p, t)))
				if err != nil {
					b.Fatal(err)
				}
				defer closer.Close()
				if len(v) < readRecords*150 {
					b.Fatal("short")
				}
				return readRecords
			}))
		}
	}
	figure.Print("timeline_read_vs_key_per_record", medianRatio(blob, key), "x")
	figure.Print("store_miss_vs_get", medianRatio(blob, get), "x")
	b.ReportMetric(median(blob), "µs/timeline")
	b.ReportMetric(median(key), "baseline-µs/timeline")
	b.ReportMetric(median(get), "get-µs/timeline")
	if err := errors.Join(s.Close(), keys.Close()); err != nil {
		b.Fatal(err)
	}
}

func readStores(b *testing.B, names []millrace.Timeline) (*Store, *pebble.DB) {
	s, err := Open(b.TempDir(), Options{FlushEvery: -1, CacheBytes: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	o := benchPebble()
	o.CacheSize = 256 << 20
	keys, err := pebble.Open(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	load := newBenchLoad()
	for range readRecords {
		var batch Batch
		kb := keys.NewBatch()
		for _, t := range names {
			p, r := partition.Of(t.Entity), load.record()
			batch.Put(p, t, r)
			if err := kb.Set(recordKey(nil, p, t, r), recordValue(nil, r), nil); err != nil {
				b.Fatal(err)
			}
		}
		_, err := s.Apply(&batch, nil)
		if err := errors.Join(err, kb.Commit(pebble.NoSync)); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(s.Flush(), keys.Flush()); err != nil {
		b.Fatal(err)
	}
	return s, keys
}

// perTimeline returns the processor time of reading a timeline, in µs.
func perTimeline(b *testing.B, names []millrace.Timeline, read func(millrace.Partition, millrace.Timeline) int) float64 {
	rng := rand.New(rand.NewPCG(5, 6))
	const n = readTimelines / 2
	start := cpu()
	for range n {
		t := names[rng.IntN(len(names))]
		if got := read(partition.Of(t.Entity), t); got != readRecords {
			b.Fatalf("%d records", got)
		}
	}
	return float64((cpu() - start).Nanoseconds()) / 1e3 / n
}

// keyRows is the baseline: the newest records of a timeline, each from a row of
// its own. Its memory is used again, like the store's.
type keyRows struct {
	recs []millrace.Record
	buf  []byte
}

func (r *keyRows) read(db *pebble.DB, p millrace.Partition, t millrace.Timeline, n int) error {
	prefix := blob.AppendString(blob.AppendString([]byte{byte(p >> 8), byte(p)}, t.Entity), t.Type)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return err
	}
	r.recs, r.buf = r.recs[:0], slices.Grow(r.buf[:0], n*2*benchRecord)
	for ok := it.First(); ok && len(r.recs) < n; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(err, it.Close())
		}
		k := it.Key()[len(prefix):]
		at := len(r.buf)
		r.buf = append(append(r.buf, k[8:]...), v...)
		id, value := unsafe.String(&r.buf[at], len(k)-8), r.buf[at+len(k)-8:]
		version, w := binary.Varint(value[1:])
		if w <= 0 || len(value) < 9+w {
			return errors.Join(blob.ErrRow, it.Close())
		}
		r.recs = append(r.recs, millrace.Record{ID: millrace.RecordID(id), Object: millrace.Object(id), Deleted: value[0] != 0,
			Time: millrace.Time(^binary.BigEndian.Uint64(k)), Version: version,
			Schema: millrace.Fingerprint(binary.LittleEndian.Uint64(value[1+w:])), Body: value[9+w:]})
	}
	return it.Close()
}
