package outcome

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// answer is what a viewer was shown at a second.
func answer(id, viewer string, second int, records ...string) *exposure.Record {
	r := &exposure.Record{ID: id, Viewer: viewer, Time: millrace.Time(second * 1000)}
	for i, record := range records {
		r.Items = append(r.Items, exposure.Item{Place: i + 1, ID: record})
	}
	return r
}

func TestOutcomesAreAttributed(t *testing.T) {
	answers := []*exposure.Record{
		answer("first", "ann", 1000, "x", "y"),
		answer("second", "ann", 2000, "x"),
		answer("bob's", "bob", 1000, "x"),
		answer("nobody's", "", 1000, "x"),
		answer("twice", "cid", 1000, "x", "y", "x"),
	}
	for name, c := range map[string]struct {
		o    Outcome
		want Place
		told Report
	}{
		"by its answer":            {Outcome{Viewer: "ann", Record: "x", Answer: "first", At: 9_000_000}, Place{"first", 1}, Report{Attributed: 1}},
		"to another viewer":        {Outcome{Viewer: "bob", Record: "x", Answer: "first", At: 1_001_000}, Place{}, Report{Elsewhere: 1}},
		"of an answer without it":  {Outcome{Viewer: "ann", Record: "z", Answer: "first", At: 1_001_000}, Place{}, Report{Lacking: 1}},
		"of no answer":             {Outcome{Viewer: "ann", Record: "x", Answer: "none", At: 1_001_000}, Place{}, Report{Nothing: 1}},
		"by its viewer":            {Outcome{Viewer: "ann", Record: "y", At: 1_000_000}, Place{"first", 2}, Report{Attributed: 1}},
		"the latest before":        {Outcome{Viewer: "ann", Record: "x", At: 2_000_001}, Place{"second", 1}, Report{Attributed: 1}},
		"none later if one before": {Outcome{Viewer: "ann", Record: "x", At: 1_990_000}, Place{"first", 1}, Report{Attributed: 1}},
		"by a clock that is late":  {Outcome{Viewer: "ann", Record: "x", At: 940_000}, Place{"first", 1}, Report{Attributed: 1}},
		"too early":                {Outcome{Viewer: "ann", Record: "x", At: 939_999}, Place{}, Report{Nothing: 1}},
		"at the window's end":      {Outcome{Viewer: "ann", Record: "y", At: 4_600_000}, Place{"first", 2}, Report{Attributed: 1}},
		"after the window":         {Outcome{Viewer: "ann", Record: "y", At: 4_600_001}, Place{}, Report{Nothing: 1}},
		"by nobody":                {Outcome{Record: "x", At: 1_001_000}, Place{}, Report{Nothing: 1}},
		"there twice":              {Outcome{Viewer: "cid", Record: "x", At: 1_001_000}, Place{"twice", 1}, Report{Attributed: 1}},
		"there twice, by answer":   {Outcome{Viewer: "cid", Record: "x", Answer: "twice", At: 1_001_000}, Place{"twice", 1}, Report{Attributed: 1}},
		"by nobody, of an answer":  {Outcome{Record: "x", Answer: "nobody's", At: 1_001_000}, Place{"nobody's", 1}, Report{Attributed: 1}},
	} {
		for _, backwards := range []bool{false, true} {
			l := NewLedger(time.Hour)
			c.o.ID, c.o.Action = "o", "click"
			must(t, l.Add(c.o))
			in := slices.Clone(answers)
			if backwards {
				slices.Reverse(in)
			}
			for _, r := range in {
				l.Offer(r)
			}
			done, told := l.Settle()
			want := map[Place][]Done{}
			if c.want != (Place{}) {
				want[c.want] = []Done{{"click", 1, c.o.At}}
			}
			if !reflect.DeepEqual(done, want) || told != c.told {
				t.Errorf("%s: %v, %+v", name, done, told)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOutcomesAreCounted(t *testing.T) {
	l := NewLedger(time.Hour)
	for i, id := range []string{"0", "1", "2", "0"} {
		must(t, l.Add(Outcome{ID: id, Viewer: "ann", Record: "x", Action: []string{"click", "like"}[i%2*(1-i/3)], At: millrace.Time(5000 - i)}))
	}
	l.Offer(answer("a", "ann", 1, "x"))
	done, told := l.Settle()
	if want := (map[Place][]Done{{"a", 1}: {{"click", 2, 4998}, {"like", 1, 4999}}}); !reflect.DeepEqual(done, want) || told != (Report{Attributed: 3, Twice: 1}) {
		t.Errorf("%v, %+v", done, told)
	}
}

// What has the id of another outcome is none that came twice, if it is of another
// viewer, record, action or answer, named or found: who writes one id for all that viewers
// do loses nothing.
func TestOneIDForAllIsNoRepetition(t *testing.T) {
	first := Outcome{ID: "click", Viewer: "ann", Record: "x", Action: "click", Answer: "a", At: 2_000}
	for name, c := range map[string]struct {
		by    func(*Outcome)
		twice int
	}{
		"again":                  {func(*Outcome) {}, 1},
		"sent again later":       {func(o *Outcome) { o.At += 1000 }, 1},
		"another id":             {func(o *Outcome) { o.ID = "c" }, 0},
		"another record":         {func(o *Outcome) { o.Record = "y" }, 0},
		"another action":         {func(o *Outcome) { o.Action = "like" }, 0},
		"another viewer":         {func(o *Outcome) { o.Viewer, o.Answer = "bob", "b" }, 0},
		"another answer":         {func(o *Outcome) { o.Answer = "c" }, 0},
		"an answer that is none": {func(o *Outcome) { o.Answer = "none" }, 0},
		"no answer":              {func(o *Outcome) { o.Answer = "" }, 0},
	} {
		l, second := NewLedger(time.Hour), first
		c.by(&second)
		must(t, l.Add(first))
		must(t, l.Add(second))
		for _, r := range []*exposure.Record{answer("a", "ann", 1, "x", "y"), answer("b", "bob", 1, "x"), answer("c", "ann", 1, "x")} {
			l.Offer(r)
		}
		if _, told := l.Settle(); told.Twice != c.twice || told.Attributed+told.Nothing != 2-c.twice {
			t.Errorf("%s: %+v", name, told)
		}
	}
	// That names no answer, and is of two by when it was.
	l := NewLedger(time.Hour)
	for _, second := range []int{1001, 1002, 2001} {
		must(t, l.Add(Outcome{ID: "click", Viewer: "ann", Record: "x", Action: "click", At: millrace.Time(second * 1000)}))
	}
	l.Offer(answer("a", "ann", 1000, "x"))
	l.Offer(answer("b", "ann", 2000, "x"))
	if _, told := l.Settle(); told != (Report{Attributed: 2, Twice: 1}) {
		t.Errorf("%+v", told)
	}
}

// When wrong outcomes came and whether that is over: a few strange ones change neither, and
// however many right ones came before, or how long ago it was, it is known to the second.
func TestTheCourseOfOutcomes(t *testing.T) {
	const second, day = millrace.Time(1000), millrace.Time(86_400_000)
	type group struct {
		at, each millrace.Time
		n        int
		wrong    bool
	}
	for name, c := range map[string]struct {
		came []group
		want []Stretch
	}{
		"none":                  {},
		"right ones":            {[]group{{0, second, 50, false}}, nil},
		"some strange ones":     {[]group{{0, second, 9, true}}, nil},
		"wrong ones":            {[]group{{7 * second, second, 20, true}}, []Stretch{{7 * second, 0, 0, 20}}},
		"then right":            {[]group{{7 * second, second, 20, true}, {40 * second, second, 10, false}}, []Stretch{{7 * second, 27 * second, 0, 20}}},
		"then too few":          {[]group{{7 * second, second, 20, true}, {40 * second, second, 9, false}}, []Stretch{{7 * second, 0, 9, 20}}},
		"before and behind":     {[]group{{0, second, 30, false}, {50 * second, second, 20, true}, {90 * second, second, 30, false}}, []Stretch{{30 * second, 70 * second, 0, 20}}},
		"then some strange":     {[]group{{0, second, 20, true}, {40 * second, second, 10, false}, {50 * second, second, 9, true}, {60 * second, second, 10, false}}, []Stretch{{0, 20 * second, 0, 20}}},
		"right ones in between": {[]group{{0, second, 20, true}, {5 * second, second, 3, false}, {40 * second, second, 20, false}}, []Stretch{{0, 20 * second, 3, 20}}},
		"wrong again":           {[]group{{0, second, 400, true}, {400 * second, second / 10, 100, false}, {420 * second, second, 60, true}}, []Stretch{{0, 400 * second, 0, 400}, {410 * second, 0, 0, 60}}},
		"and right again":       {[]group{{0, second, 400, true}, {400 * second, second / 10, 100, false}, {420 * second, second, 60, true}, {500 * second, second, 20, false}}, []Stretch{{0, 400 * second, 0, 400}, {410 * second, 480 * second, 0, 60}}},
		"after many right ones": {[]group{{0, second, 100_000, false}, {100_000 * second, second, 10, true}}, []Stretch{{100_000 * second, 0, 0, 10}}},
		"a minute long ago":     {[]group{{0, second, 100_000, false}, {100_000 * second, second, 60, true}, {100_060 * second, second, 200_000, false}}, []Stretch{{100_000 * second, 100_060 * second, 0, 60}}},
		"among strange ones":    {[]group{{0, 2 * second, 5000, false}, {second, 20 * second, 500, true}, {10_000 * second, second, 60, true}, {10_060 * second, 2 * second, 5000, false}, {10_065 * second, 20 * second, 499, true}}, []Stretch{{9999 * second, 10_060 * second, 0, 60}}},
		"over days":             {[]group{{0, day / 20, 400, true}, {30 * day, day / 20, 200, false}}, []Stretch{{0, 399*day/20 + second, 0, 400}}},
	} {
		var all []came
		for _, x := range c.came {
			for i := range x.n {
				all = append(all, came{at: x.at + millrace.Time(i)*x.each, wrong: x.wrong})
			}
		}
		slices.SortStableFunc(all, func(a, b came) int { return cmp.Compare(a.at, b.at) })
		var whole, first, last Course
		for i, o := range all {
			whole.add(o.at, o.wrong)
			if i < len(all)/2 {
				first.add(o.at, o.wrong)
			} else {
				last.add(o.at, o.wrong)
			}
		}
		for _, course := range []*Course{&whole, first.Plus(&last)} {
			left := len(all)
			for _, s := range course.spans {
				left -= s.right + s.wrong
			}
			if got := course.Broken(); left != 0 || len(course.spans) > maxSpans || !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v; %d spans, %d outcomes left out", name, got, c.want, len(course.spans), left)
			}
			if now := course.Now(); (now != nil) != (len(c.want) > 0 && c.want[len(c.want)-1].Until == 0) {
				t.Errorf("%s: now %v", name, now)
			}
		}
	}
}

// Outcomes come out of order, by partitions: those of one reading by far, and of several by some
// seconds.
func TestTheCourseOutOfOrder(t *testing.T) {
	const second = millrace.Time(1000)
	l := NewLedger(time.Hour)
	notes := [2]Notes{{Until: 1e9}}
	l.Note(&notes)
	n := 0
	add := func(viewer string, at millrace.Time) {
		n++
		must(t, l.Add(Outcome{ID: fmt.Sprint(n), Viewer: viewer, Record: "x", Action: "click", Answer: "a", At: at}))
	}
	for i := range millrace.Time(1000) {
		add("ann", i*second)
	}
	for i := range millrace.Time(120) {
		add("eve", (500+i/2)*second)
	}
	_, err := l.Acts("", offering(answer("a", "ann", 1, "x")), func(*Act) {})
	must(t, err)
	if got, want := notes[0].Broken(), (Stretch{500 * second, 560 * second, 60, 120}); len(got) != 1 || got[0] != want {
		t.Errorf("%v, want %v", got, want)
	}
	var c Course
	for i := range millrace.Time(1026) {
		c.add(i*second, false)
	}
	for i := range millrace.Time(20) {
		c.add((1016+i/2)*second, true)
	}
	if s := c.Now(); s == nil || *s != (Stretch{1016 * second, 0, 10, 20}) {
		t.Errorf("%v", s)
	}
}

// Whatever a wrong outcome's clock says, it has come since the reading before and until now;
// and what belongs to nothing changes nothing.
func TestNotesOfOutcomes(t *testing.T) {
	const from, until = millrace.Time(100_000), millrace.Time(160_000)
	l := NewLedger(time.Hour)
	notes := [2]Notes{{From: from, Until: until}, {From: from - 50_000, Until: until}}
	l.Note(&notes)
	for i, at := range []millrace.Time{0, 120_000, 900_000} {
		must(t, l.Add(Outcome{ID: fmt.Sprint(i), Viewer: "eve", Record: "x", Action: "click", Answer: "a", At: at}))
		must(t, l.Add(Outcome{ID: fmt.Sprint(i), Viewer: "nobody", Record: "x", Action: "click", At: at}))
	}
	must(t, l.Add(Outcome{ID: "4", Viewer: "ann", Record: "x", Action: "click", Answer: "a", At: 130_000}))
	must(t, l.Add(Outcome{ID: "5", Viewer: "ann", Record: "x", Action: "like", At: 40_000, Again: true}))
	_, err := l.Acts("", func(take func(*exposure.Record)) error { take(answer("a", "ann", 1, "x")); return nil }, func(*Act) {})
	must(t, err)
	want := [2][]span{
		{{100_000, 101_000, 0, 1}, {120_000, 121_000, 0, 1}, {130_000, 131_000, 1, 0}, {160_000, 161_000, 0, 1}},
		{{50_000, 51_000, 1, 0}},
	}
	if !slices.Equal(notes[0].spans, want[0]) || !slices.Equal(notes[1].spans, want[1]) || notes[0].Newest() != 130_000 || notes[1].Newest() != 40_000 {
		t.Errorf("%+v", notes)
	}
}

// Random outcomes and answers: each outcome is where a search of all answers
// finds it.
func TestAttributionEqualsASearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		const window = 10 * time.Minute
		var answers []*exposure.Record
		for i := range 30 {
			shown := []string{"x", "y", "z"}
			rnd.Shuffle(3, func(i, j int) { shown[i], shown[j] = shown[j], shown[i] })
			answers = append(answers, answer(fmt.Sprint("a", i), fmt.Sprint("v", rnd.IntN(3)), rnd.IntN(100)*30, shown[:1+rnd.IntN(3)]...))
		}
		l := NewLedger(window)
		want := map[Place]int{}
		for i := range 100 {
			o := Outcome{ID: fmt.Sprint(i), Viewer: fmt.Sprint("v", rnd.IntN(3)), Record: string("xyz"[rnd.IntN(3)]), Action: "click", At: millrace.Time(rnd.IntN(3_600_000))}
			if rnd.IntN(3) == 0 {
				o.Answer = fmt.Sprint("a", rnd.IntN(33))
			}
			must(t, l.Add(o))
			if at := search(answers, &o, window); at != (Place{}) {
				want[at]++
			}
		}
		rnd.Shuffle(len(answers), func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })
		for _, r := range answers {
			l.Offer(r)
		}
		done, told := l.Settle()
		got, sum := map[Place]int{}, 0
		for at, d := range done {
			got[at] = d[0].Count
			sum += d[0].Count
		}
		if !maps.Equal(got, want) || told.Attributed != sum || told.Attributed+told.Elsewhere+told.Lacking+told.Nothing != 100 {
			t.Fatalf("got %v, %+v, want %v", got, told, want)
		}
	}
}

// search finds the answer of an outcome as the rule is told, answer by answer.
func search(answers []*exposure.Record, o *Outcome, window time.Duration) (at Place) {
	var before, after *exposure.Record
	place := func(r *exposure.Record) int {
		return 1 + slices.IndexFunc(r.Items, func(it exposure.Item) bool { return it.ID == o.Record })
	}
	byID := slices.SortedFunc(slices.Values(answers), func(a, b *exposure.Record) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		}
		return 0
	})
	for _, r := range byID {
		if place(r) == 0 || r.Viewer != o.Viewer {
			continue
		}
		switch late := time.Duration(o.At-r.Time) * time.Millisecond; {
		case o.Answer != "":
			if r.ID == o.Answer {
				return Place{r.ID, place(r)}
			}
		case late >= 0 && late <= window:
			if before == nil || r.Time > before.Time {
				before = r
			}
		case late < 0 && late >= -Skew:
			if after == nil || r.Time < after.Time {
				after = r
			}
		}
	}
	switch {
	case before != nil:
		return Place{before.ID, place(before)}
	case after != nil:
		return Place{after.ID, place(after)}
	}
	return at
}
