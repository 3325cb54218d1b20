package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/partition"
)

// piece is what ReadTails told of one partition.
type piece struct {
	values []string
	next   millrace.Offset
	err    error
}

// pieces reads pieces of the timeline.
func pieces(t *testing.T, k kafkatest.Cluster, until millrace.Time, spans map[kafka.TopicPartition]Span) map[kafka.TopicPartition]piece {
	t.Helper()
	got := map[kafka.TopicPartition]piece{}
	kafkatest.Must(t, ReadTails(kafkatest.Deadline(t), TailsConfig{Brokers: k.Brokers, Topics: k.Topics, Until: until}, spans, func(f Fetched) error {
		p := got[f.TopicPartition]
		for _, r := range f.Records {
			p.values = append(p.values, string(r.Value))
		}
		p.next, p.err = f.Next, f.Err
		got[f.TopicPartition] = p
		return nil
	}))
	return got
}

// transactor is a client that writes transactions to the timeline.
func transactor(t *testing.T, k kafkatest.Cluster) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.TransactionalID(k.Entity("transactor")), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	kafkatest.Must(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// transact writes values to each of some partitions in one transaction of a
// time, and returns the offset of each one's last record.
func transact(t *testing.T, k kafkatest.Cluster, cl *kgo.Client, end kgo.TransactionEndTry, at time.Time, values []string, to ...kafka.TopicPartition) map[kafka.TopicPartition]millrace.Offset {
	t.Helper()
	kafkatest.Must(t, cl.BeginTransaction())
	last := map[kafka.TopicPartition]millrace.Offset{}
	for _, v := range values {
		for _, tp := range to {
			r := &kgo.Record{Topic: k.Topics.Of(tp.Stream), Partition: int32(tp.Partition), Key: []byte(k.Entity("member")), Value: []byte(v), Timestamp: at}
			kafkatest.Must(t, cl.ProduceSync(kafkatest.Deadline(t), r).FirstErr())
			last[tp] = millrace.Offset(r.Offset)
		}
	}
	kafkatest.Must(t, cl.EndTransaction(kafkatest.Deadline(t), end))
	return last
}

func TestTails(t *testing.T) { testTails(t, kafkatest.Fake(t)) }

// testTails: pieces end where they are to end, also within a transaction, an
// aborted one, or before a marker; what the log does not have is told of its
// partition alone.
func testTails(t *testing.T, k kafkatest.Cluster) {
	cl := transactor(t, k)
	at := func(s string) kafka.TopicPartition {
		return kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity(s)))}
	}
	a, b, cut, short := at("a"), at("b"), at("cut"), at("short")
	a.Stream = kafka.Features
	first := transact(t, k, cl, kgo.TryCommit, time.Now(), []string{"1", "2", "3"}, a, b, cut, short)
	aborted := transact(t, k, cl, kgo.TryAbort, time.Now(), []string{"never", "never"}, a, b)
	last := transact(t, k, cl, kgo.TryCommit, time.Now(), []string{"4", "5"}, a, b)
	deleted, err := kafkatest.Admin(t, k.Brokers).DeleteRecords(kafkatest.Deadline(t), kadm.Offsets{
		k.Topics.Timeline: {int32(cut.Partition): {Topic: k.Topics.Timeline, Partition: int32(cut.Partition), At: int64(first[cut])}},
	})
	kafkatest.Must(t, errors.Join(err, deleted.Error()))

	for _, c := range []struct {
		name     string
		from, to millrace.Offset
		want     []string
	}{
		{"all", first[b] - 2, last[b] + 2, []string{"1", "2", "3", "4", "5"}},
		{"nothing", first[b], first[b], nil},
		{"within a transaction", first[b] - 1, first[b], []string{"2"}},
		{"without its marker", first[b] - 2, first[b] + 1, []string{"1", "2", "3"}},
		{"up to the middle of an aborted one", first[b], aborted[b], []string{"3"}},
		{"only an aborted one", aborted[b] - 1, aborted[b] + 1, nil},
		{"from the middle of an aborted one", aborted[b], last[b], []string{"4"}},
	} {
		for _, tp := range []kafka.TopicPartition{a, b} {
			d := first[tp] - first[b] // the partitions may have held something before
			span := Span{kafka.Position{Next: c.from + d, Epoch: -1}, c.to + d}
			got := pieces(t, k, 0, map[kafka.TopicPartition]Span{tp: span})[tp]
			if c.from == c.to {
				span.To = 0 // nothing is told
			}
			if !slices.Equal(got.values, c.want) || got.next != span.To || got.err != nil {
				t.Errorf("%s of %s: %+v, want %v up to %d", c.name, tp, got, c.want, span.To)
			}
		}
	}

	got := pieces(t, k, 0, map[kafka.TopicPartition]Span{
		a:     {kafka.Position{Next: first[a] - 2, Epoch: -1}, first[a] + 1},
		cut:   {kafka.Position{Next: first[cut] - 2, Epoch: -1}, first[cut] + 1},
		short: {kafka.Position{Next: first[short] - 2, Epoch: -1}, first[short] + 100},
	})
	for tp, lost := range map[kafka.TopicPartition]bool{a: false, cut: true, short: true} {
		if p := got[tp]; errors.Is(p.err, kafka.ErrLostPosition) != lost || (len(p.values) == 3) == lost {
			t.Errorf("%s: %+v; lost: want %v", tp, p, lost)
		}
	}

	stop := errors.New("enough")
	err = ReadTails(kafkatest.Deadline(t), TailsConfig{Brokers: k.Brokers, Topics: k.Topics}, map[kafka.TopicPartition]Span{b: {kafka.Position{Next: 0, Epoch: -1}, last[b]}},
		func(Fetched) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("take failed: %v", err)
	}
}

// A batch that cannot be read fails the pieces that it is in, and none before it: they
// are what is restored after a corruption.
func TestTailsBeforeABrokenBatch(t *testing.T) {
	k := kafkatest.Fake(t)
	topic := k.Topics.Timeline
	for p, breaks := range []func(partition int32){
		func(p int32) { kafkatest.Overlong(t, k, topic, p, 0, false, []byte("bad"), []byte("lost")) },
		func(p int32) { kafkatest.Overlong(t, k, topic, p, 1, true, []byte("good"), []byte("bad")) },
		func(p int32) { kafkatest.Broken(t, k, topic, p, 2, false) },
		func(p int32) { kafkatest.Bomb(t, k, topic, p) },
	} {
		kafkatest.Write(t, k, topic, int32(p), "1")
		kafkatest.Write(t, k, topic, int32(p), "2")
		breaks(int32(p))
		kafkatest.Write(t, k, topic, int32(p), "behind")
		tp := onTimeline(p)
		for to := range millrace.Offset(5) {
			got := pieces(t, k, 0, map[kafka.TopicPartition]Span{tp: {kafka.Position{Next: 0, Epoch: -1}, to}})[tp]
			if fails := to > 3 || to > 2 && p != 1; fails { // the second has an entry before the one that is broken
				if !errors.Is(got.err, kafka.ErrLostPosition) {
					t.Errorf("%s up to %d: %+v, want a fault of the batch that cannot be read", tp, to, got)
				}
			} else if want := []string{"1", "2", "good"}[:to]; !slices.Equal(got.values, want) || got.next != to || got.err != nil {
				t.Errorf("%s up to %d: %+v, want %q", tp, to, got, want)
			}
		}
	}
}

func TestInstant(t *testing.T) { testInstant(t, kafkatest.Fake(t)) }

// testInstant: of transactions that overlap, those of up to a time are in whole
// or not at all, however they lie in the log.
func testInstant(t *testing.T, k kafkatest.Cluster) {
	cl := transactor(t, k)
	a := kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity("a")))}
	b := kafka.TopicPartition{Stream: kafka.Features, Partition: partition.Of(millrace.Entity(k.Entity("b")))}
	moment := time.Now().Add(time.Minute).Truncate(time.Millisecond) // later than all markers
	for i, after := range []time.Duration{-10 * time.Minute, 0, 2 * time.Second, -time.Second, time.Millisecond, 5 * time.Minute, 10 * time.Minute} {
		transact(t, k, cl, kgo.TryCommit, moment.Add(after), []string{fmt.Sprint(i, " "), fmt.Sprint(i, ".")}, a, b)
	}
	if _, err := At(kafkatest.Deadline(t), k.Brokers, k.Topics, millrace.TimeOf(time.Now())); err == nil {
		t.Error("the offsets of this moment were told, though transactions may be under way")
	}
	at, err := instant(kafkatest.Deadline(t), k.Brokers, k.Topics, millrace.TimeOf(moment))
	kafkatest.Must(t, err)
	for _, tp := range []kafka.TopicPartition{a, b} {
		all, any := at.All[tp.Stream][tp.Partition], at.Any[tp.Stream][tp.Partition]
		before := pieces(t, k, 0, map[kafka.TopicPartition]Span{tp: {kafka.Position{Next: 0, Epoch: -1}, all}})[tp].values
		if n := len(before); n < 4 || !slices.Equal(before[n-4:], []string{"0 ", "0.", "1 ", "1."}) {
			t.Errorf("%s: of the time or before, all of it: %q", tp, before)
		}
		if got, want := pieces(t, k, millrace.TimeOf(moment), map[kafka.TopicPartition]Span{tp: {kafka.Position{Next: all, Epoch: -1}, any}})[tp], []string{"3 ", "3."}; !slices.Equal(got.values, want) || got.next != any {
			t.Errorf("%s: from %d to %d: %+v, want %q", tp, all, any, got, want)
		}
		if got := pieces(t, k, 0, map[kafka.TopicPartition]Span{tp: {kafka.Position{Next: all, Epoch: -1}, any}})[tp]; len(got.values) != 6 {
			t.Errorf("%s: from %d to %d, of any time: %q", tp, all, any, got.values)
		}
	}
}

// testBrokersTimes: times that the broker gave say nothing of transactions, and
// are not taken for those of their beginnings. The fake gives none.
func testBrokersTimes(t *testing.T, k kafkatest.Cluster) {
	set := func(value string) {
		altered, err := kafkatest.Admin(t, k.Brokers).AlterTopicConfigs(context.Background(), []kadm.AlterConfig{{Name: "message.timestamp.type", Value: &value}}, k.Topics.Timeline)
		kafkatest.Must(t, err)
		for _, a := range altered {
			kafkatest.Must(t, a.Err)
		}
	}
	set("LogAppendTime")
	t.Cleanup(func() { set("CreateTime") })
	tp := kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity("a")))}
	cl := transactor(t, k)
	read := func() (err error) {
		last := transact(t, k, cl, kgo.TryCommit, time.Now(), []string{"1"}, tp)
		return ReadTails(kafkatest.Deadline(t), TailsConfig{Brokers: k.Brokers, Topics: k.Topics, Until: millrace.MaxTime},
			map[kafka.TopicPartition]Span{tp: {kafka.Position{Next: last[tp], Epoch: -1}, last[tp] + 1}}, func(f Fetched) error { return f.Err })
	}
	for ok := false; !ok; { // the broker hears of it a moment later
		err := read()
		if ok = errors.Is(err, errLogAppendTime); !ok {
			kafkatest.Must(t, err)
		}
	}
}
