package outcome

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// An outcome takes as much memory as it is said to, however long its names are; one
// that an answer has, with the answer, a little more.
func TestMemoryOfOutcomes(t *testing.T) {
	const n = 100_000
	long := strings.Repeat("x", 1000)
	before := heap()
	l := NewLedger(time.Hour)
	for i := range n {
		must(t, l.Add(Outcome{ID: fmt.Sprint(long, i), Viewer: fmt.Sprint(long, i), Record: long, Action: "click", At: 1_000_000, Answer: fmt.Sprint(long, i)[:1000*(i%2)]}))
	}
	if each := (heap() - before) / n; each > 130 {
		t.Errorf("%d bytes of an outcome", each)
	}
	l.Reset()
	for i := range n {
		must(t, l.Add(Outcome{ID: fmt.Sprint(i), Viewer: fmt.Sprint("v", i), Record: "x", Action: "click", At: 1_000_000}))
	}
	for i := range n {
		r := answer(fmt.Sprintf("answer-%030d", i), fmt.Sprint("v", i), 1000, "x")
		r.Experiments = []exposure.Experiment{{Layer: strings.Clone(long), Experiment: strings.Clone(long), Variant: strings.Clone(long), Unit: r.Viewer, Checksum: strings.Clone(long)}}
		l.Offer(r)
	}
	if each := (heap() - before) / n; each > 600 {
		t.Errorf("%d bytes of an outcome with its answer", each)
	}
	runtime.KeepAlive(l)
}

// Answers from which later ones take what they had are not kept, and others keep what
// is theirs.
func TestAnswersWithoutOutcomesAreForgotten(t *testing.T) {
	l := NewLedger(time.Hour)
	for _, viewer := range []string{"ann", "bob"} {
		must(t, l.Add(Outcome{ID: viewer, Viewer: viewer, Record: "x", Action: "click", At: 3_600_000}))
	}
	got := actsOf(t, l, func() (all []*exposure.Record) {
		all = append(all, answer("bob's", "bob", 1000, "x"))
		for i := range 3000 {
			all = append(all, answer(fmt.Sprintf("%04d", i), "ann", 100+i, "x"))
		}
		return all
	}()...)
	if len(got) != 2 || got[0].Item != (Place{"2999", 1}) || got[1].Item != (Place{"bob's", 1}) || got[1].Shown != 1_000_000 {
		t.Errorf("%+v", got)
	}
	if len(l.owners) > 1100 {
		t.Errorf("%d answers are kept", len(l.owners))
	}
}

// No outcome is said to lack an answer that one of the answers, or one before them,
// could be; nearly all others are.
func TestMet(t *testing.T) {
	const from = millrace.Time(10_000_000)
	m := NewMet(from)
	for i := range 10_000 {
		m.Add(answer(fmt.Sprint("a", i), fmt.Sprint("v", i), 10_000+i, "x"))
	}
	past := from + millrace.Time((time.Hour + Skew).Milliseconds())
	lacks := func(o Outcome) bool { return m.Lacks(&o, time.Hour) }
	for i := range 10_000 {
		if lacks(Outcome{Viewer: fmt.Sprint("v", i), At: past}) || lacks(Outcome{Viewer: "w", Answer: fmt.Sprint("a", i), At: past}) || lacks(Outcome{Viewer: fmt.Sprint("w", i), At: past - 1}) || lacks(Outcome{Answer: fmt.Sprint("b", i), At: past - 1}) {
			t.Fatalf("%d may have an answer", i)
		}
	}
	missed := 0
	for i := range 10_000 {
		for _, o := range []Outcome{{Viewer: fmt.Sprint("w", i), At: past}, {Viewer: fmt.Sprint("v", i), Answer: fmt.Sprint("b", i), At: past}} {
			if !lacks(o) {
				missed++
			}
		}
	}
	if missed > 20 {
		t.Errorf("%d of 20,000 may have been shown something", missed)
	}
	if i := slices.IndexFunc([]millrace.Time{-1 << 63, 0}, func(at millrace.Time) bool { return lacks(Outcome{Viewer: "w", At: at}) }); i >= 0 {
		t.Error("of before the answers nothing is known")
	}
}
