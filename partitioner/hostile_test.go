package partitioner

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

const (
	wantPublished schemas.Reason = "published"
	wantIgnored   schemas.Reason = "ignored"
)

type hostile struct {
	name  string
	topic string // empty = posts
	key   string
	stamp time.Time // the log's timestamp; the zero time = now
	value []byte    // nil = a null value
	want  schemas.Reason
}

// note is the body of the small schema, by hand, so that it can be wrong.
func note(id, author, kind string, at int64, text string) []byte {
	var b []byte
	for _, s := range []string{id, author, kind} {
		b = append(binary.AppendVarint(b, int64(len(s))), s...)
	}
	b = binary.AppendVarint(b, at)
	b = append(binary.AppendVarint(b, int64(len(text))), text...)
	return binary.AppendVarint(b, 7)
}

func hostileInputs(t *testing.T) []hostile {
	fp := schemas.Note().Fingerprint()
	at := now.UnixMilli()
	good := func(id string) []byte { return schemas.Frame(fp, note(id, "member:1", "post", at, "hello")) }
	timed := func(id string, at int64) []byte { return schemas.Frame(fp, note(id, "member:1", "post", at, "")) }
	all := []hostile{
		{name: "1 empty value", key: "k", value: []byte{}, want: schemas.EmptyValue},
		{name: "2 null with a key", key: "member:1", want: wantIgnored},
		{name: "2 null without a key", want: schemas.EmptyValue},
		{name: "3 and 4 a key of another entity, on a partition of its own", key: "member:2", value: good("other-key"), want: wantPublished},
		{name: "5 unknown schema", value: schemas.Frame(12345, []byte("body")), want: schemas.UnknownSchema},
		{name: "5 unknown Confluent id", value: []byte("\x00\x00\x00\x00\x09body"), want: schemas.UnknownSchema},
		{name: "no framing", value: []byte(`{"id":"p1"}`), want: schemas.BadFraming},
		{name: "7 a trailing byte", value: append(good("trailing"), 0), want: schemas.TrailingBytes},
		{name: "9 a record over the limit", value: schemas.Frame(fp, note("big", "member:1", "post", at, strings.Repeat("x", millrace.MaxBodyBytes))), want: schemas.OverLimit},
		{name: "9 an id over the limit", value: schemas.Frame(fp, note(strings.Repeat("x", millrace.MaxIDBytes+1), "member:1", "post", at, "")), want: schemas.OverLimit},
		{name: "11 a negative time", value: timed("negative", -1), want: schemas.TimeOutOfRange},
		{name: "11 the year 9999", value: timed("y9999", int64(millrace.MaxTime)-1), want: schemas.TimeInTheFuture},
		{name: "11 past the year 9999", value: timed("y10000", int64(millrace.MaxTime)), want: schemas.TimeOutOfRange},
		{name: "11 2^31 seconds", value: timed("2038", 1000<<31), want: schemas.TimeInTheFuture},
		{name: "11 24 hours ahead", value: timed("ahead", now.Add(schemas.DefaultFuture).UnixMilli()), want: wantPublished},
		{name: "11 24 hours and 1 ms ahead", value: timed("too-far", now.Add(schemas.DefaultFuture).UnixMilli()+1), want: schemas.TimeInTheFuture},
		{name: "11 24 hours and 1 ms after an earlier arrival", stamp: now.Add(-time.Hour), value: timed("early", now.Add(23*time.Hour).UnixMilli()+1), want: schemas.TimeInTheFuture},
		{name: "11 24 hours after a later arrival", stamp: now.Add(time.Hour), value: timed("late", now.Add(25*time.Hour).UnixMilli()), want: wantPublished},
		{name: "11 the year 9999, without a timestamp", stamp: time.UnixMilli(-1), value: timed("unstamped", int64(millrace.MaxTime)-1), want: wantPublished},
		{name: "an id", value: good("twice"), want: wantPublished},
		{name: "12 the same again", value: good("twice"), want: wantPublished},
		{name: "13 its id with other contents", value: schemas.Frame(fp, note("twice", "member:1", "post", at, "other")), want: wantPublished},
		{name: "a record", value: activity(t, "gone", "member:1", ""), want: wantPublished},
		{name: "a delete of its version", value: activity(t, "gone", "member:1", `,"deleted":true`), want: wantPublished},
		{name: "the same delete again", value: activity(t, "gone", "member:1", `,"deleted":true`), want: wantPublished},
		{name: "19 invalid UTF-8", value: schemas.Frame(fp, note("utf8", "member:1", "post", at, "\xff")), want: schemas.InvalidUTF8},
		{name: "19 an entity of invalid UTF-8", value: schemas.Frame(fp, note("utf8", "member:\xff", "post", at, "")), want: schemas.InvalidUTF8},
		{name: "an empty id", value: schemas.Frame(fp, note("", "member:1", "post", at, "")), want: schemas.MissingRole},
		{name: "features on a content topic", value: signal(0.5), want: WrongKind},
		{name: "content on a feature topic", topic: "signals", value: good("kind"), want: WrongKind},
		{name: "20 a NaN feature", topic: "signals", value: signal(math.NaN()), want: schemas.NotFinite},
		{name: "20 an infinite feature", topic: "signals", value: signal(math.Inf(1)), want: schemas.NotFinite},
		{name: "features", topic: "signals", value: signal(0.5), want: wantPublished},
	}
	whole := good("truncated")
	for n := 1; n < len(whole); n++ {
		want := schemas.Truncated
		if n == 1 {
			want = schemas.BadFraming
		}
		all = append(all, hostile{name: fmt.Sprintf("6 truncated to %d bytes", n), value: whole[:n], want: want})
	}
	for bit := range 8 * 10 {
		flipped := bytes.Clone(good("flipped"))
		flipped[bit/8] ^= 1 << (bit % 8)
		want := schemas.UnknownSchema
		if bit < 16 {
			want = schemas.BadFraming
		}
		all = append(all, hostile{name: fmt.Sprintf("8 bit %d of the header flipped", bit), value: flipped, want: want})
	}
	return all
}

// signal is a record of the shipped feature schema, by hand.
func signal(engagement float64) []byte {
	b := append(binary.AppendVarint(nil, 8), "member:1"...)
	b = append(b, 0)
	b = binary.AppendVarint(b, now.UnixMilli())
	for _, f := range []float64{10, 2, engagement} {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return schemas.Frame(schemas.Features().Fingerprint(), append(b, 0))
}

// Every hostile input meets its outcome in one transaction, and what is refused
// comes out byte for byte.
func TestHostileInputs(t *testing.T) {
	w := newFake(t)
	w.publish(schemas.Note(), schemas.Activity(), schemas.Features())
	inputs := hostileInputs(t)
	records := make([]*kgo.Record, len(inputs))
	outputs := 0
	for i, in := range inputs {
		if in.topic == "" {
			in.topic = "posts"
		}
		records[i] = &kgo.Record{Topic: in.topic, Partition: 1, Timestamp: in.stamp, Value: in.value, Headers: []kgo.RecordHeader{
			{Key: "name", Value: []byte(in.name)}, {Key: "src", Value: []byte("the producer's own")}}}
		if in.key != "" {
			records[i].Key = []byte(in.key)
		}
		if in.want != wantIgnored {
			outputs++
		}
	}
	w.produce(records...)
	_, stop := w.start()
	out := w.read(outputs)
	stop()

	came := map[string]*kgo.Record{} // by source
	for topic, all := range out {
		for _, r := range all {
			src := header(r, kafka.HeaderSource)
			if came[src] != nil {
				t.Errorf("%s came out twice", src)
			}
			came[src] = r
			if topic == "dead-letters" != (header(r, kafka.HeaderReason) != "") {
				t.Errorf("%s: in %s with reason %q", src, topic, header(r, kafka.HeaderReason))
			}
		}
	}
	for i, in := range inputs {
		r := came[source(records[i])]
		switch {
		case in.want == wantIgnored:
			if r != nil {
				t.Errorf("%s: came out in %s", in.name, r.Topic)
			}
		case r == nil:
			t.Errorf("%s: lost", in.name)
		case in.want == wantPublished:
			if r.Topic == "dead-letters" {
				t.Errorf("%s: refused: %s", in.name, header(r, kafka.HeaderDetail))
			} else if string(r.Key) != "member:1" || r.Partition != int32(partition.Of("member:1")) || !bytes.Equal(r.Value, in.value) {
				t.Errorf("%s: published as key %q, partition %d, value %x", in.name, r.Key, r.Partition, r.Value)
			}
		default:
			checkDeadLetter(t, in, records[i], r)
		}
	}
}

func checkDeadLetter(t *testing.T, in hostile, sent, got *kgo.Record) {
	t.Helper()
	if got.Topic != "dead-letters" {
		t.Errorf("%s: published in %s, want reason %s", in.name, got.Topic, in.want)
		return
	}
	if reason := header(got, kafka.HeaderReason); reason != string(in.want) {
		t.Errorf("%s: reason %s (%s), want %s", in.name, reason, header(got, kafka.HeaderDetail), in.want)
	}
	if header(got, kafka.HeaderDetail) == "" {
		t.Errorf("%s: no detail", in.name)
	}
	same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	if !same(got.Key, sent.Key) || !same(got.Value, sent.Value) {
		t.Errorf("%s: came out as key %q, value %x; went in as key %q, value %x", in.name, got.Key, got.Value, sent.Key, sent.Value)
	}
	for i, h := range sent.Headers {
		if got.Headers[i].Key != h.Key || !bytes.Equal(got.Headers[i].Value, h.Value) {
			t.Errorf("%s: header %d is %v, was %v", in.name, i, got.Headers[i], h)
		}
	}
}
