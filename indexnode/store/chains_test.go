package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// TestChains runs the scripts of testdata. Every timeline is of partition 0.
//
//	open [blob=BYTES] [keep=N] [age=SECONDS]  a new store
//	reopen                                    flush, close, open
//	crash                                     lose what is not flushed
//	put T                                     lines "ID TIME [v=N] [del] [obj=O] [size=N]"
//	draw T                                    the chain and what its blobs hold
//	read T [from=N] [to=N]                    live records, newest first
//	newest T max=N                            ReadNewest
//	find T ID                                 where a record is
func TestChains(t *testing.T) {
	datadriven.Walk(t, "testdata/chains", func(t *testing.T, path string) {
		w := &chainScript{t: t}
		defer w.close()
		datadriven.RunTest(t, path, w.run)
	})
}

type chainScript struct {
	t    *testing.T
	s    *Store
	fs   *vfs.MemFS
	opts Options
}

func (w *chainScript) close() {
	if w.s != nil {
		if err := w.s.Close(); err != nil {
			w.t.Error(err)
		}
		w.s = nil
	}
}

func (w *chainScript) open() {
	w.opts.FS = w.fs
	s, err := Open("db", w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.s = s
}

func argInt(d *datadriven.TestData, key string, otherwise int) int {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			n, err := strconv.Atoi(a.Vals[0])
			if err != nil {
				d.Fatalf(nil, "%s: %v", key, err)
			}
			return n
		}
	}
	return otherwise
}

func (w *chainScript) run(t *testing.T, d *datadriven.TestData) string {
	name := millrace.Timeline{Type: "post"}
	if len(d.CmdArgs) > 0 {
		name.Entity = millrace.Entity(d.CmdArgs[0].Key)
	}
	switch d.Cmd {
	case "open":
		w.close()
		w.fs = vfs.NewCrashableMem()
		w.opts = Options{MaxBlobBytes: argInt(d, "blob", 200), FlushEvery: -1, Retention: map[millrace.ContentType]Retention{
			"post": {MaxCount: argInt(d, "keep", 0), MaxAge: time.Duration(argInt(d, "age", 0)) * time.Millisecond},
		}}
		w.open()
		return ""
	case "reopen":
		w.close()
		w.open()
		return ""
	case "crash":
		old := w.s
		w.fs = w.fs.CrashClone(vfs.CrashCloneCfg{})
		w.open()
		old.Close()
		return fmt.Sprintln(w.s.Applied(0).Content)
	case "put":
		return w.put(name, d.Input, argInt(d, "clock", 0))
	case "draw":
		return w.draw(name)
	case "read":
		recs, err := w.s.Read(nil, 0, name, millrace.Time(argInt(d, "from", 0)), millrace.Time(argInt(d, "to", math.MaxInt32)))
		return short(recs, err)
	case "newest":
		n, err := readNewest(w.s, 0, name, argInt(d, "max", 1))
		return strings.TrimSuffix(short(n.Records, err), "\n") + fmt.Sprintf(" | complete from %d\n", n.From)
	case "sweep":
		if err := w.s.Sweep(t.Context(), 0, nil); err != nil {
			return err.Error() + "\n"
		}
		return ""
	case "check":
		r, err := w.s.Check(t.Context(), 0)
		if err != nil {
			return err.Error() + "\n"
		}
		return fmt.Sprintf("%+v\n", r)
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

func short(recs []millrace.Record, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, r := range recs {
		fmt.Fprintf(&b, "%s@%d ", r.ID, r.Time)
	}
	return strings.TrimSuffix(b.String(), " ") + "\n"
}

func (w *chainScript) put(name millrace.Timeline, lines string, clock int) string {
	var b Batch
	n := 0
	for _, line := range strings.Split(lines, "\n") {
		f := strings.Fields(line)
		at, err := strconv.Atoi(f[1])
		if err != nil {
			w.t.Fatal(err)
		}
		size := 20
		r := millrace.Record{ID: millrace.RecordID(f[0]), Time: millrace.Time(at), Schema: 7}
		for _, opt := range f[2:] {
			k, v, _ := strings.Cut(opt, "=")
			switch k {
			case "v":
				r.Version, err = strconv.ParseInt(v, 10, 64)
			case "size":
				size, err = strconv.Atoi(v)
			case "obj":
				r.Object = millrace.Object(v)
			case "schema":
				x, e := strconv.Atoi(v)
				r.Schema, err = millrace.Fingerprint(x), e
			case "del":
				r.Deleted, size = true, 0
			default:
				err = errors.New(opt)
			}
			if err != nil {
				w.t.Fatal(err)
			}
		}
		r.Body = []byte(strings.Repeat("x", size))
		if clock != 0 {
			b.SetClock(0, millrace.Time(clock))
		}
		b.Put(0, name, r)
		n++
	}
	b.SetApplied(0, Content, max(0, w.s.Applied(0).Content)+millrace.Offset(n))
	changes, err := w.s.Apply(&b, nil)
	if err != nil {
		return err.Error() + "\n"
	}
	var out strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&out, "%s %v", c.Record.ID, c.Kind)
		if c.HadOld {
			fmt.Fprintf(&out, ", was v=%d at %d", c.Old.Version, c.Old.Time)
		}
		if c.Newest {
			out.WriteString(", newest")
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// draw draws the chain from what is stored, head first:
//
//	head[c@30 b@20] → m_0[a@10]  next m_1
func (w *chainScript) draw(name millrace.Timeline) string {
	return drawTimeline(w.s, 0, name)
}

func drawTimeline(s *Store, n millrace.Partition, name millrace.Timeline) string {
	t, err := timeline.Open((*source)(s), n, name, s.opts.MaxBlobBytes)
	if dirty := s.parts[n].timelines[name]; dirty != nil {
		t = dirty
	}
	if err == nil {
		err = t.LoadChain()
	}
	if err != nil {
		return err.Error() + "\n"
	}
	if t.Head == nil {
		return "nothing\n"
	}
	var b strings.Builder
	drawBlob(&b, "head", t.Head)
	for _, l := range slices.Backward(t.Links()) {
		older, err := t.BlobAt(&l)
		if err != nil {
			return err.Error() + "\n"
		}
		if got := blob.LinkOf(l.Suffix, older); got != l {
			fmt.Fprintf(&b, " METADATA %+v SHOULD BE %+v", l, got)
		}
		drawBlob(&b, fmt.Sprintf(" → m_%d", l.Suffix), older)
	}
	if t.Chain != nil {
		fmt.Fprintf(&b, "  next m_%d", t.Chain.Next)
		if f := t.Chain.Floor; f != nil {
			fmt.Fprintf(&b, "  floor %s@%d", f.ID, f.Time)
		}
	}
	return b.String() + "\n"
}

func drawBlob(b *strings.Builder, name string, blob *blob.Blob) {
	recs, err := blob.DecodeAll(nil)
	if err != nil {
		b.WriteString(err.Error())
		return
	}
	var words []string
	for _, r := range slices.Backward(recs) {
		word := fmt.Sprintf("%s@%d", r.ID, r.Time)
		if r.Deleted {
			word = "†" + word
		}
		if r.Version != 0 {
			word += fmt.Sprintf("v%d", r.Version)
		}
		words = append(words, word)
	}
	fmt.Fprintf(b, "%s[%s]", name, strings.Join(words, " "))
}
