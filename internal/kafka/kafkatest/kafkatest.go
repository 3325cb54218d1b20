// Package kafkatest gives tests a Kafka: a fake one in the test's process or, if
// MILLRACE_KAFKA has its address, a real one. It also writes what a Kafka client should not
// write, such as batches that cannot be read.
package kafkatest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/internal/freeport"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/wait"
)

// Cluster is a Kafka with topics for a test. Content, the content topic, and the topics of
// schemas and of progress belong to this test alone. It may share the other topics with tests
// of other names; in these only the entities that begin with Name are the test's own.
type Cluster struct {
	Brokers kafka.Brokers
	Topics  kafka.Topics
	Name    string
	Content string
}

// Entity returns an entity that no other test uses.
func (k Cluster) Entity(s string) string { return k.Name + s }

// Fake starts a Kafka that ends with the test.
func Fake(t *testing.T) Cluster {
	t.Helper()
	_, k := start(t)
	return k
}

// Controlled is Fake, and also returns the Kafka itself, for a test to interfere with.
func Controlled(t *testing.T) (*kfake.Cluster, Cluster) {
	t.Helper()
	return start(t, kfake.SleepOutOfOrder())
}

// EachRequestMatters makes each of some calls, by name, which must succeed, and then again for
// each kind of request that it made, while Kafka answers none of that kind. Then it must fail.
func EachRequestMatters(t *testing.T, fake *kfake.Cluster, calls map[string]func(context.Context) error) {
	t.Helper()
	var asked [100]atomic.Int64 // by kind of request
	var fails atomic.Int64      // the kind that fails; -1: none
	fails.Store(-1)
	fake.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		asked[r.Key()].Add(1)
		if int64(r.Key()) == fails.Load() {
			return nil, errors.New("it fails"), true
		}
		return nil, nil, false
	})
	for name, call := range calls {
		for i := range asked {
			asked[i].Store(0)
		}
		Must(t, call(Deadline(t)))
		for kind := range asked {
			if asked[kind].Load() == 0 || kind == int(kmsg.ApiVersions) {
				continue
			}
			fails.Store(int64(kind))
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond) // what asks again and again fails then
			if err := call(ctx); err == nil {
				t.Errorf("%s: no request of the kind %s is answered, and it is done", name, kmsg.NameForKey(int16(kind)))
			}
			cancel()
			fails.Store(-1)
		}
	}
}

func start(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, Cluster) {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	Must(t, err)
	t.Cleanup(c.Close)
	return c, setUp(t, kafka.At(c.ListenAddrs()...), "", "")
}

// setUp creates those topics that are missing: the topics that all tests with the same prefix
// share, and the topics that have the test's name.
func setUp(t *testing.T, brokers kafka.Brokers, prefix, name string) Cluster {
	t.Helper()
	ctx := Deadline(t)
	k := Cluster{brokers, kafka.Prefixed(prefix), name, prefix + name + "posts"}
	k.Topics.Schemas, k.Topics.Progress = prefix+name+"schemas", prefix+name+"progress"
	Must(t, kafka.EnsureTopics(ctx, brokers, k.Topics, nil))
	Must(t, kafka.EnsureContentTopic(ctx, brokers, k.Content, 3, nil))
	return k
}

// OnReal runs tests, by name, against a real Kafka. It skips them if there is none.
func OnReal(t *testing.T, tests map[string]func(*testing.T, Cluster)) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("MILLRACE_KAFKA is not set; make kafka starts one on 127.0.0.1:19092")
	}
	prefix := fmt.Sprintf("kafka-%d-", time.Now().UnixNano())
	var created []string
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			k := setUp(t, kafka.At(addr), prefix, name)
			created = append(created, append(k.Topics.All(), k.Content)...)
			test(t, k)
		})
	}
	slices.Sort(created)
	if _, err := Admin(t, kafka.At(addr)).DeleteTopics(Deadline(t), slices.Compact(created)...); err != nil {
		t.Logf("topics stay behind: %v", err)
	}
}

// Deadline returns a context that bounds what a test waits for.
func Deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Must ends the test if err is not nil.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Addrs returns the addresses of a Kafka, for clients with options of their own.
func Addrs(brokers kafka.Brokers) []string { return strings.Split(brokers.String(), ", ") }

// Admin returns an administrator of a Kafka.
func Admin(t *testing.T, brokers kafka.Brokers) *kadm.Client {
	t.Helper()
	cl, err := kafka.NewClient(brokers, nil)
	Must(t, err)
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// StartOn starts a Kafka on a port that keeps its data in dir, and goes on with what is there.
func StartOn(t *testing.T, port int, dir string) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(dir))
	for tries := 0; err != nil && strings.Contains(err.Error(), "address already in use") && tries < 100; tries++ {
		time.Sleep(200 * time.Millisecond) // an outgoing connection may have the port for a moment
		c, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(dir))
	}
	Must(t, err)
	t.Cleanup(c.Close)
	return c
}

// FreePort returns a port of loopback that nobody listens on.
func FreePort(t *testing.T) (port int, addr string) {
	t.Helper()
	port, err := freeport.Row(1)
	Must(t, err)
	return port, net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Write writes an entry. Entries have a key, as compacted topics want.
func Write(t *testing.T, k Cluster, topic string, partition int32, value string) {
	t.Helper()
	write(t, k, &kgo.Record{Topic: topic, Partition: partition, Key: []byte("key"), Value: []byte(value)})
}

// Bomb writes an entry that is small as it is compressed, but larger than
// [kafka.MaxBatchBytes] once it is decompressed.
func Bomb(t *testing.T, k Cluster, topic string, partition int32) {
	t.Helper()
	write(t, k, &kgo.Record{Topic: topic, Partition: partition, Key: []byte("key"), Value: make([]byte, kafka.MaxBatchBytes+1)},
		kgo.ProducerBatchMaxBytes(kafka.MaxBatchBytes+1<<20), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
}

// Broken writes a batch that no reader can open, although its checksum is right. The batch
// says that it has n entries. If compressed is true, it also says that it is compressed by
// zstd, which it is not; else its entries do not parse.
func Broken(t *testing.T, k Cluster, topic string, partition int32, n int, compressed bool) {
	t.Helper()
	writeBatch(t, k, topic, partition, batchOf(n, compressed, []byte("\x03what is no record")))
}

// Overlong writes a batch with an entry for each of values, and a right checksum. The length
// of entry at is written in five bytes with a bit beyond the 32nd. Kafka ignores that bit and
// accepts the batch; readers cannot parse it.
func Overlong(t *testing.T, k Cluster, topic string, partition int32, at int, compressed bool, values ...[]byte) {
	t.Helper()
	var entries []byte
	for i, value := range values {
		one := kmsg.Record{OffsetDelta: int32(i), Key: []byte("key"), Value: value}
		body := one.AppendTo(nil)[1:] // without its length, which is written as 0
		length := binary.AppendUvarint(nil, uint64(2*len(body)))
		if i == at {
			for len(length) < 4 {
				length[len(length)-1] |= 0x80
				length = append(length, 0)
			}
			length[3] |= 0x80
			length = append(length, 0x10)
		}
		entries = append(append(entries, length...), body...)
	}
	if compressed {
		c, err := kgo.DefaultCompressor(kgo.ZstdCompression())
		Must(t, err)
		entries, _ = c.Compress(new(bytes.Buffer), entries)
	}
	writeBatch(t, k, topic, partition, batchOf(len(values), compressed, entries))
}

// batchOf returns a batch that says that it has n entries and, if compressed is true, that
// these are compressed by zstd. It takes entries as they are, and compresses nothing.
func batchOf(n int, compressed bool, entries []byte) kmsg.RecordBatch {
	const zstd = 4
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(n - 1), NumRecords: int32(n), ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
		FirstTimestamp: time.Now().UnixMilli(), MaxTimestamp: time.Now().UnixMilli(), Records: entries,
	}
	if compressed {
		b.Attributes = zstd
	}
	return b
}

// writeBatch writes a batch as it is, with a right length and checksum.
func writeBatch(t *testing.T, k Cluster, topic string, partition int32, b kmsg.RecordBatch) {
	t.Helper()
	const behindCRC = 21 // offset in the batch; the length is at 8, the checksum at 17
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[behindCRC:], crc32.MakeTable(crc32.Castagnoli)))
	cl, err := kafka.NewClient(k.Brokers, nil)
	Must(t, err)
	defer cl.Close()
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, raw
	into := kmsg.NewProduceRequestTopic()
	all, err := kadm.NewClient(cl).ListTopics(Deadline(t), topic)
	Must(t, err)
	into.Topic, into.TopicID, into.Partitions = topic, all[topic].ID, []kmsg.ProduceRequestTopicPartition{p}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis, req.Topics = -1, 10_000, []kmsg.ProduceRequestTopic{into}
	answer, err := cl.Broker(int(all[topic].Partitions[partition].Leader)).Request(Deadline(t), req)
	Must(t, err)
	Must(t, kerr.ErrorForCode(answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode))
}

func write(t *testing.T, k Cluster, r *kgo.Record, more ...kgo.Opt) {
	t.Helper()
	cl, err := kafka.NewClient(k.Brokers, nil, more...)
	Must(t, err)
	defer cl.Close()
	Must(t, cl.ProduceSync(Deadline(t), r).FirstErr())
}

// Begin begins a transaction and writes an entry to each partition of values. It returns the
// function that ends the transaction, and that waits until readers see the end: Kafka writes
// the markers for it a moment later.
func Begin(t *testing.T, k Cluster, topic string, values map[int32][]byte) (end func(kgo.TransactionEndTry)) {
	t.Helper()
	// By later protocols franz-go may abort instead of committing; see inTransaction in
	// the tests of package streams.
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.TransactionalID(fmt.Sprint(topic, time.Now().UnixNano())), kgo.MaxVersions(kversion.V3_5_0()))
	Must(t, err)
	t.Cleanup(cl.Close)
	Must(t, cl.BeginTransaction())
	written := map[int32]int64{}
	for p, value := range values {
		r := &kgo.Record{Topic: topic, Partition: p, Key: []byte("key"), Value: value}
		Must(t, cl.ProduceSync(Deadline(t), r).FirstErr())
		written[p] = r.Offset
	}
	return func(commit kgo.TransactionEndTry) {
		t.Helper()
		ctx := Deadline(t)
		Must(t, cl.EndTransaction(ctx, commit))
		admin := Admin(t, k.Brokers)
		for p, at := range written {
			for {
				stable, err := admin.ListCommittedOffsets(ctx, topic)
				Must(t, err)
				if end, ok := stable.Lookup(topic, p); ok && end.Offset > at {
					break
				}
				Must(t, wait.For(ctx, 10*time.Millisecond))
			}
		}
	}
}
