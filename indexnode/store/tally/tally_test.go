package tally

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

func TestRow(t *testing.T) {
	flows := NewFlows(2)
	c := flows.Begin(true)
	c.Of("post").Counts = Counts{1, 2, 3, 4, -5, 6, 7, 8}
	of := State{7, 8}
	row := c.Encode(of)
	if got, err := flows.decode(row, of); err != nil || len(got) != 1 || got["post"] != (Counts{1, 2, 3, 4, -5, 6, 7, 8}) {
		t.Fatalf("%+v: %v", got, err)
	}
	for n := range row {
		if got, err := flows.decode(row[:n], of); err == nil {
			t.Errorf("%d bytes are read as %v", n, got)
		}
	}
	if _, err := flows.decode(append(row, 0), of); err == nil {
		t.Error("more is read")
	}
	if _, err := flows.decode(row, State{7, 9}); err == nil {
		t.Error("counts of another state are read")
	}
}

// FuzzRow decodes any bytes: they are refused, or encode to what decodes to the
// same, since numbers may be written longer than needed. What is accepted has as many
// types as it says, no more than a tally tells apart, and nothing is cut or added
// unseen.
func FuzzRow(f *testing.F) {
	const most = 4
	flows, of := NewFlows(most), State{7, 8}
	row := func(types ...millrace.ContentType) []byte {
		c := NewFlows(100).Begin(true)
		for _, t := range types {
			c.Of(t).Counts = Counts{1, 2, 3, 4, -5, 6, 7, 8}
		}
		return c.Encode(of)
	}
	f.Add(row())
	f.Add(row("post", ""))
	f.Add(row("1", "2", "3", "4", ""))
	f.Add(row("1", "2", "3", "4", "5", ""))
	f.Add(append(row("post"), 0))
	f.Add(bytes.Replace(row("a", "b"), []byte("\x01b"), []byte("\x01a"), 1)) // one type twice
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := flows.decode(in, of)
		if err != nil {
			return
		}
		if n, _ := binary.Uvarint(in[17:]); int(n) != len(c) || n > most+1 {
			t.Fatalf("%d types of %d are read", len(c), n)
		}
		again, err := flows.decode(flows.Read(in, true, of).Encode(of), of)
		if err != nil || !maps.Equal(c, again) {
			t.Fatalf("counts %v became %v: %v", c, again, err)
		}
		for n := range in {
			if _, err := flows.decode(in[:n], of); err == nil {
				t.Fatalf("%d bytes of %d are read", n, len(in))
			}
		}
		if _, err := flows.decode(append(in[:len(in):len(in)], 0), of); err == nil {
			t.Fatal("a byte more is read")
		}
	})
}

// A tally has what is there, counted record by record, and what became of the rest; types past
// the last that has a name are counted together, in each partition and on the node.
func TestATallyIsWhatIsThere(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	flows := NewFlows(2)
	names := []millrace.ContentType{"a", "b", "c", "d"}
	total := map[millrace.ContentType]Flow{}
	for range 2 { // partitions
		c := flows.Begin(true)
		there := map[millrace.ContentType][]millrace.Record{}
		want := map[millrace.ContentType]Counts{}
		for now := range 400 {
			name := names[min(r.IntN(4), now/50)]
			n := c.Of(name)
			if name > "b" {
				name = ""
			}
			rec := millrace.Record{ID: millrace.RecordID(strconv.Itoa(now)), Time: millrace.Time(r.IntN(1000)), Deleted: r.IntN(3) == 0, Body: make([]byte, r.IntN(300))}
			own, w := there[name], want[name]
			had := len(own) > 0
			i := -1
			if had {
				i = r.IntN(len(own))
			}
			arrive := func() {
				if !rec.Deleted {
					w.Taken++
					w.Newest = max(w.Newest, rec.Time)
				}
			}
			switch k := r.IntN(8); {
			case k < 4 || !had:
				n.Take(&rec)
				own = append(own, rec)
				arrive()
			case k < 6:
				n.Replace(&own[i], &rec)
				if rec.Deleted && !own[i].Deleted {
					w.Hidden++
				}
				own[i] = rec
				arrive()
			default:
				gone := own[i : i+1]
				if k == 7 {
					gone = own[i:]
				}
				for _, g := range gone {
					if !g.Deleted {
						w.Expired++
					}
				}
				if k == 7 {
					if err := n.ExpireBlob(blob.Encode(gone, 0)); err != nil {
						t.Fatal(err)
					}
				} else {
					n.Expire(&gone[0])
				}
				own = slices.Delete(own, i, i+len(gone))
			}
			n.Timeline(had, len(own) > 0)
			there[name], want[name] = own, w
		}
		for name, w := range want {
			f := total[name]
			total[name] = Flow{f.Taken + w.Taken, f.Hidden + w.Hidden, f.Expired + w.Expired}
			for i := range there[name] {
				newest := w.Newest
				w.Scan(&there[name][i])
				w.Newest = newest // of those that are gone, too
			}
			if len(there[name]) > 0 {
				w.Timelines = 1
			}
			if got := c.Now()[name]; got != w {
				t.Errorf("%q: %+v, want %+v", name, got, w)
			}
		}
		if len(c.Now()) != len(want) {
			t.Errorf("%d types, want %d", len(c.Now()), len(want))
		}
	}
	if got := flows.Now(); !maps.Equal(got, total) {
		t.Errorf("flows %+v, want %+v", got, total)
	}
	before := flows.Now()[""].Taken
	flows.Begin(true).Of("e").Take(&millrace.Record{ID: "x"}) // the first type of its partition, and not of the node
	if got := flows.Now(); len(got) != 3 || got[""].Taken != before+1 {
		t.Errorf("flows %+v", got)
	}
	bad := blob.Encode([]millrace.Record{{ID: "a"}}, 0)
	bad.Buf[16+8+1] = 0x10 // its flags
	if err := flows.Begin(true).Of("a").ExpireBlob(bad); !errors.Is(err, blob.Err) {
		t.Errorf("a bad blob: %v", err)
	}
}

// A scan counts live records and tombstones apart; the latest time is of a live one.
func TestScan(t *testing.T) {
	var c Counts
	live := millrace.Record{ID: "a", Time: 5, Body: make([]byte, 200)}
	old := millrace.Record{ID: "b", Time: 4}
	dead := millrace.Record{ID: "c", Time: 9, Deleted: true}
	for _, rec := range []*millrace.Record{&live, &old, &dead} {
		c.Scan(rec)
	}
	bytes := len(blob.Encode([]millrace.Record{live, old, dead}, 0).Buf) - len(blob.Encode(nil, 0).Buf) - 8
	if want := (Counts{Records: 2, Deleted: 1, Bytes: int64(bytes), Newest: 5}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	if got, want := (Counts{1, 2, 3, 4, 5, 6, 7, 8}).Add(Counts{10, 20, 30, 40, 4, 60, 70, 80}), (Counts{11, 22, 33, 44, 5, 66, 77, 88}); got != want {
		t.Errorf("the sum is %+v, want %+v", got, want)
	}
}

// What is read on opening is known if it is a row of this state, or if there is nothing to count.
func TestRead(t *testing.T) {
	flows, of := NewFlows(2), State{7, 8}
	of9 := State{9, 8}
	full := flows.Begin(true)
	for i, name := range []millrace.ContentType{"a", "b", ""} {
		full.Of(name).Counts = Counts{Records: int64(i) + 1}
	}
	row := full.Encode(of)
	over := NewFlows(9).Begin(true)
	for _, name := range []millrace.ContentType{"a", "b", "c", ""} {
		over.Of(name)
	}
	for what, c := range map[string]struct {
		row          []byte
		begun, known bool
		types        int
	}{
		"nothing":                        {nil, false, true, 0},
		"nothing, and an old row":        {row, false, true, 0},
		"something, and no row":          {nil, true, false, 0},
		"something":                      {row, true, true, 3},
		"of another content":             {full.Encode(of9), true, false, 0},
		"of another that was dropped":    {full.Encode(State{7, 9}), true, false, 0},
		"of an older format":             {append([]byte{0}, row[1:]...), true, false, 0},
		"a row cut short":                {row[:len(row)-1], true, false, 0},
		"a row of nothing":               {row[:17], true, false, 0},
		"more types than are told apart": {over.Encode(of), true, false, 0},
	} {
		got := flows.Read(c.row, c.begun, of)
		if got.Known() != c.known || len(got.Now()) != c.types {
			t.Errorf("%s: known %t, %v", what, got.Known(), got.Now())
		}
		if c.types > 0 && !maps.Equal(got.Now(), full.Now()) {
			t.Errorf("%s: %v, want %v", what, got.Now(), full.Now())
		}
		got.Of("a").Take(&millrace.Record{ID: "x", Time: 1})
	}
	if got := flows.Now()["a"].Taken; got != 10 {
		t.Errorf("%d records were taken in on the node, want 10", got)
	}
	s := flows.Scanned(map[millrace.ContentType]*Counts{"a": {Records: 5, Deleted: 2, Taken: 99}})
	if got, want := s.Now()["a"], (Counts{Records: 5, Deleted: 2, Taken: 5}); !s.Known() || got != want {
		t.Errorf("scanned: known %t, %+v, want %+v", s.Known(), got, want)
	}
	s.Of("a").Take(&millrace.Record{ID: "x"})
	if got := flows.Now()["a"].Taken; got != 11 {
		t.Errorf("%d records were taken in on the node, want 11", got)
	}
}

// Mend puts right what a scan found otherwise; what came after the scan stays.
func TestMend(t *testing.T) {
	for what, c := range map[string]struct {
		known     bool
		was, now  Counts
		found     *Counts
		want      Counts
		wantWrong int
	}{
		"right":           {true, Counts{Records: 3, Taken: 9}, Counts{Records: 5, Taken: 11}, &Counts{Records: 3}, Counts{Records: 5, Taken: 11}, 0},
		"records":         {true, Counts{Records: 3}, Counts{Records: 5}, &Counts{Records: 4, Newest: 7}, Counts{Records: 6}, 1},
		"tombstones":      {true, Counts{Deleted: 3}, Counts{Deleted: 5}, &Counts{Deleted: 2}, Counts{Deleted: 4}, 1},
		"timelines":       {true, Counts{Timelines: 3}, Counts{Timelines: 3}, &Counts{Timelines: 2}, Counts{Timelines: 2}, 1},
		"bytes":           {true, Counts{Bytes: 3}, Counts{Bytes: 3}, &Counts{Bytes: 2}, Counts{Bytes: 2}, 1},
		"what is nowhere": {true, Counts{Records: 3}, Counts{Records: 4}, nil, Counts{Records: 1}, 1},
		"not known":       {false, Counts{}, Counts{Records: 1, Newest: 3, Taken: 1, Expired: 2}, &Counts{Records: 4, Newest: 7}, Counts{Records: 5, Newest: 7, Taken: 5, Expired: 2}, 0},
	} {
		n := NewFlows(2).Begin(c.known)
		n.Of("a").Counts = c.now
		n.Of("b").Counts = Counts{Records: 1}
		found := map[millrace.ContentType]*Counts{"b": {Records: 1}}
		if c.found != nil {
			found["a"] = c.found
		}
		was := map[millrace.ContentType]Counts{"a": c.was}
		if c.known {
			was["b"] = Counts{Records: 1}
		}
		if wrong := n.Mend(was, found); wrong != c.wantWrong || n.Now()["a"] != c.want || !n.Known() {
			t.Errorf("%s: %d are wrong, %+v; want %d, %+v", what, wrong, n.Now()["a"], c.wantWrong, c.want)
		}
	}
}
