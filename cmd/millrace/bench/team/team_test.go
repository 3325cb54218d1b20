package team

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/oracle"
)

// small is a world whose truth is known.
func small(t *testing.T, flat bool) (*world, *truth) {
	t.Helper()
	w := newWorld(1000, 3, 7, flat)
	s, known, err := w.schema()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := w.newTruth(s, known)
	if err != nil {
		t.Fatal(err)
	}
	return w, tr
}

// The index written by hand answers as the oracle does, and so does it through
// frames, and what the clients of Redis read back from members.
func TestBaselinesAnswerAlike(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, flat := range []bool{false, true} {
		w, tr := small(t, flat)
		s := newSeeker(newIndex(w))
		for i := range w.asked {
			if diff := tr.judge(i, s.answer(&w.asked[i])); diff != "" {
				t.Errorf("question %d: %s", i, diff)
			}
			asked := frame{b: w.asked[i].append(nil)}
			q := asked.question()
			got := frame{b: appendItems(nil, s.answer(&q))}
			if diff := tr.judge(i, got.items()); diff != "" || asked.err != nil || got.err != nil {
				t.Errorf("question %d through frames: %s %v %v", i, diff, asked.err, got.err)
			}
		}
	}
}

func TestMembers(t *testing.T) {
	w := newWorld(1000, 1, 7, false)
	passed := 0
	for e := range 50 {
		for _, x := range w.records(e) {
			want := newPost(&x)
			var got post
			passes, err := got.readMember(x.member(), 1<<place(languages, "en")|1<<place(languages, "de"))
			if err != nil {
				t.Fatal(err)
			}
			if keep := x.likes >= 3 && x.imp < 20000 && (x.language == "en" || x.language == "de"); keep != passes {
				t.Fatalf("%+v passes: %v", x, passes)
			}
			if want.text = ""; passes && got != want {
				t.Fatalf("%+v is read back as %+v", want, got)
			}
			if passes {
				passed++
			}
		}
	}
	if passed == 0 {
		t.Error("no member passes, and nothing is proved")
	}
	var p post
	if _, err := p.readMember([]byte("short"), 1); err == nil {
		t.Error("half a member is read")
	}
}

// What is wrong with an answer is found, whatever it is.
func TestJudge(t *testing.T) {
	w, tr := small(t, false)
	s := newSeeker(newIndex(w))
	right := func() (items []item) { return append(items, s.answer(&w.asked[0])...) }
	if len(right()) < 2 || tr.judge(0, right()) != "" {
		t.Fatalf("%d items: %s", len(right()), tr.judge(0, right()))
	}
	for name, spoil := range map[string]func([]item) []item{
		"one less":        func(a []item) []item { return a[1:] },
		"two swapped":     func(a []item) []item { a[0], a[1] = a[1], a[0]; return a },
		"another score":   func(a []item) []item { a[1].score += 1e-6; return a },
		"another author":  func(a []item) []item { a[1].author += "x"; return a },
		"another object":  func(a []item) []item { a[1].object += "x"; return a },
		"a further also":  func(a []item) []item { a[1].also = append(a[1].also[:0:0], "x"); return a },
		"another instant": func(a []item) []item { a[1].at++; return a },
	} {
		if tr.judge(0, spoil(right())) == "" {
			t.Errorf("%s: it passes", name)
		}
	}
	r := &run{truth: tr}
	swapped := right()
	swapped[0], swapped[1] = swapped[1], swapped[0]
	if r.glance(0, &answer{items: right()}) != nil || r.glance(0, &answer{items: swapped}) == nil || r.glance(0, &answer{items: right()[1:]}) == nil {
		t.Error("a glance does not see what is wrong")
	}
}

// Frames that end early are refused, and none takes more memory than it has
// bytes.
func TestFrames(t *testing.T) {
	w := newWorld(1000, 1, 7, false)
	whole := w.asked[0].append(nil)
	for n := range len(whole) {
		if f := (frame{b: whole[:n]}); true {
			if f.question(); f.err == nil {
				t.Fatalf("%d of %d bytes are a question", n, len(whole))
			}
		}
	}
	var b bytes.Buffer
	if err := sendFrame(&b, append(frameOf(nil), whole...)); err != nil {
		t.Fatal(err)
	}
	got, err := readFrame(bufio.NewReader(&b), nil)
	if err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes come back as %d, %v", len(whole), len(got), err)
	}
	if _, err := readFrame(bufio.NewReader(strings.NewReader("\xff\xff\xff\xff")), nil); err == nil {
		t.Error("a frame of 4 GiB is read")
	}
}

// The world is as the workload is known, where it does not depend on its size.
func TestWorld(t *testing.T) {
	w := newWorld(5_000, 1000, 1, false)
	records := 0
	for e := range w.entities {
		records += len(w.records(e))
	}
	if each := float64(records) / float64(w.entities); each < 18 || each > 22 {
		t.Errorf("%v records of an entity, want 20", each)
	}
	if n := w.timelines(); n < 500 || n > 740 {
		t.Errorf("%v timelines a query, want 652", n)
	}
	turns := [2]int{}
	for _, q := range w.asked {
		turns[q.model]++
	}
	if turns[0] != turns[1] {
		t.Errorf("the models are asked for %v times", turns)
	}
}

// Records of a flat world score as those with a list.
func TestFlatScoresAlike(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	_, lists := small(t, false)
	_, flat := small(t, true)
	for i := range lists.answers {
		if a, b := lists.answers[i], flat.answers[i]; ids(a) != ids(b) || len(a.Items) == 0 {
			t.Errorf("question %d: %s, flat %s", i, ids(a), ids(b))
		}
	}
}

func ids(a oracle.Answer) string {
	var all []string
	for _, it := range a.Items {
		all = append(all, string(it.ID))
	}
	return strings.Join(all, " ")
}

func TestValidate(t *testing.T) {
	err := (&Config{Entities: 5, Viewers: -1, Duration: -1, Against: []string{"solr"}, Kafka: "127.0.0.1:1"}).Validate()
	for _, field := range []string{"entities", "viewers", "duration", "against", "kafka"} {
		if err == nil || !strings.Contains(err.Error(), field+":") && !strings.Contains(err.Error(), field+",") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}
