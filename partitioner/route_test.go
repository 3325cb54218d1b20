package partitioner

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// newRouter knows the shipped schemas, and waits for no other.
func newRouter(tb testing.TB) *router {
	tb.Helper()
	registry, err := registry.New(nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		if _, err := registry.Admit(s); err != nil {
			tb.Fatal(err)
		}
	}
	return &router{
		features: map[string]bool{"signals": true},
		resolver: &resolver{registry: registry, fresh: true, absent: map[uint32]time.Time{}},
		future:   schemas.DefaultFuture,
	}
}

// FuzzRoute: whatever comes in has a fate, and comes out as it was.
func FuzzRoute(f *testing.F) {
	fp := schemas.Note().Fingerprint()
	f.Add(false, schemas.Frame(fp, note("n1", "member:1", "post", now.UnixMilli(), "hello")))
	f.Add(false, schemas.Frame(fp, note("n1", "member:1", "post", -1, "\xff")))
	f.Add(true, signal(0.5))
	f.Add(false, []byte{})
	f.Add(false, []byte{0, 0, 0, 0, 1, 2})
	r := newRouter(f)
	f.Fuzz(func(t *testing.T, features bool, value []byte) {
		in := record(value)
		if features {
			in.Topic = "signals"
		}
		v, err := r.route(t.Context(), in)
		switch {
		case err != nil:
			t.Errorf("undecided: %v", err)
		case v.fate == dead && (v.refusal.Reason == "" || v.refusal.Detail == ""):
			t.Errorf("refused without saying why: %+v", v.refusal)
		case v.fate == published && (len(v.entities) == 0 || v.entities[0] == "" || !bytes.Equal(v.value, value)):
			t.Errorf("published to %q as %x", v.entities, v.value)
		case v.fate != dead && v.fate != published:
			t.Errorf("fate %d of a single record", v.fate)
		}
	})
}

// What one record costs before Kafka has its share.
func BenchmarkRoute(b *testing.B) {
	r := newRouter(b)
	const n = 1000
	var values [n][]byte
	for i := range values {
		values[i] = schemas.Frame(schemas.Note().Fingerprint(),
			note(strconv.Itoa(i), "member:1", "post", now.UnixMilli(), "some text of the usual length, or nearly so"))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		in := groups.Input{Source: kafka.Source{Topic: "posts", Partition: 1, Offset: 123456}, Time: millrace.TimeOf(now), Value: values[i%n]}
		v, err := r.route(b.Context(), in)
		if err != nil || v.fate != published {
			b.Fatal(err, v.refusal)
		}
		for _, e := range v.entities {
			kafka.ToStream("timeline", e, v.value, in.Source)
		}
	}
}
