package schemas

import (
	"slices"
	"syscall"
	"testing"
	"time"

	hamba "github.com/hamba/avro/v2"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/race"
)

const benchRows = 1000

func benchBody(tb testing.TB) []byte {
	tb.Helper()
	body, err := Activity().EncodeJSON([]byte(activityLine))
	if err != nil {
		tb.Fatal(err)
	}
	return body
}

// BenchmarkAppend decodes an activity into columns.
func BenchmarkAppend(b *testing.B) {
	body := benchBody(b)
	d, err := NewDecoder(Activity(), Activity())
	if err != nil {
		b.Fatal(err)
	}
	empty := column.New(Activity().Layout(), benchRows, benchRows*2*len(body))
	a := empty.Append()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for n := 0; b.Loop(); n++ {
		if n%benchRows == 0 {
			a = empty.Append() // over the same memory
		}
		if err := d.Append(a, body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEnvelope checks an activity and takes its roles.
func BenchmarkEnvelope(b *testing.B) {
	body := benchBody(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Activity().Envelope(body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEncodeJSON encodes an activity from its line.
func BenchmarkEncodeJSON(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Activity().EncodeJSON([]byte(activityLine)); err != nil {
			b.Fatal(err)
		}
	}
}

// hambaActivity is what a program of hamba's would decode an activity into.
type hambaActivity struct {
	ID          string    `avro:"id"`
	Actor       string    `avro:"actor"`
	Verb        string    `avro:"verb"`
	CreatedAt   int64     `avro:"created_at"`
	Object      string    `avro:"object"`
	About       []string  `avro:"about"`
	Version     int64     `avro:"version"`
	Deleted     bool      `avro:"deleted"`
	Language    string    `avro:"language"`
	Country     string    `avro:"country"`
	Visibility  string    `avro:"visibility"`
	Text        string    `avro:"text"`
	Likes       int64     `avro:"likes"`
	Comments    int64     `avro:"comments"`
	Shares      int64     `avro:"shares"`
	Impressions int64     `avro:"impressions"`
	Features    []float32 `avro:"features"`
}

// BenchmarkHambaStruct and BenchmarkHambaGeneric are the baselines.
func BenchmarkHambaStruct(b *testing.B) { benchHamba[hambaActivity](b) }

func BenchmarkHambaGeneric(b *testing.B) { benchHamba[map[string]any](b) }

func benchHamba[T any](b *testing.B) {
	body := benchBody(b)
	s, err := hamba.ParseBytesWithCache([]byte(Activity().JSON()), "", &hamba.SchemaCache{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		var v T
		if err := hamba.Unmarshal(s, body, &v); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGenerated gives the figure: an activity into columns by generated
// code, against hamba into a struct, in turns and by the process's CPU time.
func BenchmarkGenerated(b *testing.B) {
	body := benchBody(b)
	d, err := NewDecoder(Activity(), Activity())
	if err != nil || d.generated == nil {
		b.Fatal("no generated decoder: ", err)
	}
	s, err := hamba.ParseBytesWithCache([]byte(Activity().JSON()), "", &hamba.SchemaCache{})
	if err != nil {
		b.Fatal(err)
	}
	empty := column.New(Activity().Layout(), benchRows, benchRows*2*len(body))
	ours := func(d *Decoder) func() {
		return func() {
			a := empty.Append()
			for range benchRows {
				if err := d.Append(a, body); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	plan := *d
	plan.generated = nil
	ways := []func(){ours(d), ours(&plan), func() {
		for range benchRows {
			var v hambaActivity
			if err := hamba.Unmarshal(s, body, &v); err != nil {
				b.Fatal(err)
			}
		}
	}}
	ns := make([][]float64, len(ways))
	for range 9 {
		for i, way := range ways {
			way() // into the caches
			const times = 10
			began := cpuTime(b)
			for range times {
				way()
			}
			ns[i] = append(ns[i], float64(cpuTime(b)-began)/(times*benchRows))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		ways[0]()
	}
	generated, byPlan, hamba := median(ns[0]), median(ns[1]), median(ns[2])
	b.ReportMetric(generated, "ns/record")
	b.ReportMetric(byPlan, "ns/record-plan")
	b.ReportMetric(hamba, "ns/record-hamba")
	figure.Print("avro_generated_vs_hamba", hamba/generated, "x")
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// cpuTime is the process's, since a busy machine stretches any other.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestAppendAllocates nothing once the slab has room.
func TestAppendAllocates(t *testing.T) {
	if race.Enabled {
		t.Skip("pools forget under the race detector")
	}
	body := benchBody(t)
	d, err := NewDecoder(Activity(), Activity())
	if err != nil {
		t.Fatal(err)
	}
	plan := *d
	plan.generated = nil
	for what, d := range map[string]*Decoder{"generated": d, "by plan": &plan} {
		a := column.New(Activity().Layout(), benchRows, benchRows*2*len(body)).Append()
		if n := testing.AllocsPerRun(500, func() {
			if err := d.Append(a, body); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations a record, want none", what, n)
		}
	}
}
