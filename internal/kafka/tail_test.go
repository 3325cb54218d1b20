package kafka

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
	"github.com/millrace/millrace/internal/partition"
)

// piece is what ReadTails told of one partition.
type piece struct {
	values []string
	next   millrace.Offset
	err    error
}

// tails reads pieces of the timeline.
func (k cluster) tails(t *testing.T, until millrace.Time, spans map[TopicPartition]Span) map[TopicPartition]piece {
	t.Helper()
	got := map[TopicPartition]piece{}
	must(t, ReadTails(deadline(t), TailsConfig{Brokers: k.brokers, Topics: k.topics, Until: until}, spans, func(f Fetched) error {
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
func (k cluster) transactor(t *testing.T) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.brokers.Addrs()...), kgo.TransactionalID(k.entity("transactor")), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// transact writes values to each of some partitions in one transaction of a
// time, and returns the offset of each one's last record.
func (k cluster) transact(t *testing.T, cl *kgo.Client, end kgo.TransactionEndTry, at time.Time, values []string, to ...TopicPartition) map[TopicPartition]millrace.Offset {
	t.Helper()
	must(t, cl.BeginTransaction())
	last := map[TopicPartition]millrace.Offset{}
	for _, v := range values {
		for _, tp := range to {
			r := &kgo.Record{Topic: k.topics.Of(tp.Stream), Partition: int32(tp.Partition), Key: []byte(k.entity("member")), Value: []byte(v), Timestamp: at}
			must(t, cl.ProduceSync(deadline(t), r).FirstErr())
			last[tp] = millrace.Offset(r.Offset)
		}
	}
	must(t, cl.EndTransaction(deadline(t), end))
	return last
}

func TestTails(t *testing.T) { testTails(t, fake(t)) }

// testTails: pieces end where they are to end, also within a transaction, an
// aborted one, or before a marker; what the log does not have is told of its
// partition alone.
func testTails(t *testing.T, k cluster) {
	cl := k.transactor(t)
	at := func(s string) TopicPartition {
		return TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity(s)))}
	}
	a, b, cut, short := at("a"), at("b"), at("cut"), at("short")
	a.Stream = Features
	first := k.transact(t, cl, kgo.TryCommit, time.Now(), []string{"1", "2", "3"}, a, b, cut, short)
	aborted := k.transact(t, cl, kgo.TryAbort, time.Now(), []string{"never", "never"}, a, b)
	last := k.transact(t, cl, kgo.TryCommit, time.Now(), []string{"4", "5"}, a, b)
	deleted, err := admin(t, k.brokers).DeleteRecords(deadline(t), kadm.Offsets{
		k.topics.Timeline: {int32(cut.Partition): {Topic: k.topics.Timeline, Partition: int32(cut.Partition), At: int64(first[cut])}},
	})
	must(t, errors.Join(err, deleted.Error()))

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
		for _, tp := range []TopicPartition{a, b} {
			d := first[tp] - first[b] // the partitions may have held something before
			span := Span{Position{c.from + d, -1}, c.to + d}
			got := k.tails(t, 0, map[TopicPartition]Span{tp: span})[tp]
			if c.from == c.to {
				span.To = 0 // nothing is told
			}
			if !slices.Equal(got.values, c.want) || got.next != span.To || got.err != nil {
				t.Errorf("%s of %s: %+v, want %v up to %d", c.name, tp, got, c.want, span.To)
			}
		}
	}

	got := k.tails(t, 0, map[TopicPartition]Span{
		a:     {Position{first[a] - 2, -1}, first[a] + 1},
		cut:   {Position{first[cut] - 2, -1}, first[cut] + 1},
		short: {Position{first[short] - 2, -1}, first[short] + 100},
	})
	for tp, lost := range map[TopicPartition]bool{a: false, cut: true, short: true} {
		if p := got[tp]; errors.Is(p.err, ErrLostPosition) != lost || (len(p.values) == 3) == lost {
			t.Errorf("%s: %+v; lost: want %v", tp, p, lost)
		}
	}

	stop := errors.New("enough")
	err = ReadTails(deadline(t), TailsConfig{Brokers: k.brokers, Topics: k.topics}, map[TopicPartition]Span{b: {Position{0, -1}, last[b]}},
		func(Fetched) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("take failed: %v", err)
	}
}

func TestInstant(t *testing.T) { testInstant(t, fake(t)) }

// testInstant: of transactions that overlap, those of up to a time are in whole
// or not at all, however they lie in the log.
func testInstant(t *testing.T, k cluster) {
	cl := k.transactor(t)
	a := TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity("a")))}
	b := TopicPartition{Features, partition.Of(millrace.Entity(k.entity("b")))}
	moment := time.Now().Add(time.Minute).Truncate(time.Millisecond) // later than all markers
	for i, after := range []time.Duration{-10 * time.Minute, 0, 2 * time.Second, -time.Second, time.Millisecond, 5 * time.Minute, 10 * time.Minute} {
		k.transact(t, cl, kgo.TryCommit, moment.Add(after), []string{fmt.Sprint(i, " "), fmt.Sprint(i, ".")}, a, b)
	}
	in, err := NewInspector(k.brokers)
	must(t, err)
	defer in.Close()
	if _, err := in.At(deadline(t), k.topics, millrace.TimeOf(time.Now())); err == nil {
		t.Error("the offsets of this moment were told, though transactions may be under way")
	}
	at, err := in.at(deadline(t), k.topics, millrace.TimeOf(moment))
	must(t, err)
	for _, tp := range []TopicPartition{a, b} {
		all, any := at.All[tp.Stream][tp.Partition], at.Any[tp.Stream][tp.Partition]
		before := k.tails(t, 0, map[TopicPartition]Span{tp: {Position{0, -1}, all}})[tp].values
		if n := len(before); n < 4 || !slices.Equal(before[n-4:], []string{"0 ", "0.", "1 ", "1."}) {
			t.Errorf("%s: of the time or before, all of it: %q", tp, before)
		}
		if got, want := k.tails(t, millrace.TimeOf(moment), map[TopicPartition]Span{tp: {Position{all, -1}, any}})[tp], []string{"3 ", "3."}; !slices.Equal(got.values, want) || got.next != any {
			t.Errorf("%s: from %d to %d: %+v, want %q", tp, all, any, got, want)
		}
		if got := k.tails(t, 0, map[TopicPartition]Span{tp: {Position{all, -1}, any}})[tp]; len(got.values) != 6 {
			t.Errorf("%s: from %d to %d, of any time: %q", tp, all, any, got.values)
		}
	}
}

// All records of a session's transaction have one time.
func TestTransactionsHaveOneTime(t *testing.T) {
	k := fake(t)
	base, m := k.cut(t), k.member(t)
	for range 3 {
		m.begin(20)
		for now := time.Now(); time.Now().UnixMilli() <= now.UnixMilli()+1; { // time goes on within the transaction
		}
		for i := range 10 {
			m.Produce(deadline(t), ToStream(k.topics.Timeline, millrace.Entity(k.entity(fmt.Sprint(i))), nil, Source{"later", 0, 0}))
		}
		must(t, m.Commit(deadline(t)))
	}
	c := k.cut(t)
	times := map[millrace.Time]int{}
	must(t, ReadTails(deadline(t), TailsConfig{Brokers: k.brokers, Topics: k.topics}, between(base, c), func(f Fetched) error {
		for _, r := range f.Records {
			times[r.Time]++
		}
		return f.Err
	}))
	if len(times) != 3 {
		t.Errorf("records by time: %v; want three transactions of 30", times)
	}
	for at, n := range times {
		if n != 30 {
			t.Errorf("%d records at %s, want a whole transaction of 30", n, at)
		}
	}
}

// testBrokersTimes: times that the broker gave say nothing of transactions, and
// are not taken for those of their beginnings. The fake gives none.
func testBrokersTimes(t *testing.T, k cluster) {
	set := func(value string) {
		altered, err := admin(t, k.brokers).AlterTopicConfigs(context.Background(), []kadm.AlterConfig{{Name: "message.timestamp.type", Value: &value}}, k.topics.Timeline)
		must(t, err)
		for _, a := range altered {
			must(t, a.Err)
		}
	}
	set("LogAppendTime")
	t.Cleanup(func() { set("CreateTime") })
	tp := TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity("a")))}
	cl := k.transactor(t)
	read := func() (err error) {
		last := k.transact(t, cl, kgo.TryCommit, time.Now(), []string{"1"}, tp)
		return ReadTails(deadline(t), TailsConfig{Brokers: k.brokers, Topics: k.topics, Until: millrace.MaxTime},
			map[TopicPartition]Span{tp: {Position{last[tp], -1}, last[tp] + 1}}, func(f Fetched) error { return f.Err })
	}
	for ok := false; !ok; { // the broker hears of it a moment later
		err := read()
		if ok = errors.Is(err, errLogAppendTime); !ok {
			must(t, err)
		}
	}
}
