package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
)

// actsAt has one outcome, which belongs to an answer; 0: none.
type actsAt millrace.Time

func (a actsAt) Newest() millrace.Time { return millrace.Time(a) }
func (a actsAt) Course() *outcome.Course {
	if a == 0 {
		return &outcome.Course{}
	}
	return CourseOf(Came{At: millrace.Time(a), Right: 1})
}
func (actsAt) Told() outcome.Report                           { return outcome.Report{} }
func (actsAt) Topic() exposure.Topic                          { return exposure.Topic{} }
func (actsAt) Read(context.Context, func(*outcome.Act)) error { return nil }
func (actsAt) Whole() time.Time                               { return time.Now() }

// Guards on what viewers do are blind once outcomes have not been read for a while, or
// none has come for long while answers did; others never are.
func TestGuardsAreBlindWithoutOutcomes(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) millrace.Time { return millrace.TimeOf(now.Add(-d)) }
	clicks := &experiment.Guards{More: map[string]float64{"click": 2}}
	for name, c := range map[string]struct {
		fault        error
		read, newest time.Duration
		shown        time.Duration
		window       time.Duration
		says         string
	}{
		"well":                  {newest: time.Minute},
		"unread for a moment":   {fault: errors.New("there is no topic clicks"), read: 30 * time.Second, newest: time.Minute},
		"unread":                {fault: errors.New("there is no topic clicks"), read: 2 * time.Minute, newest: time.Minute, says: "clicks is not read since 2m0s by c, which leads: there is no topic clicks"},
		"silent":                {newest: 2 * time.Hour, says: "the newest outcome of clicks that belongs to what was shown is 2h0m0s old, and answers have come for 2h0m0s since"},
		"silent for a moment":   {newest: 50 * time.Minute},
		"silent, by its window": {newest: 50 * time.Minute, window: 20 * time.Minute, says: "is 50m0s old"},
		"nobody asks":           {newest: 2 * time.Hour, shown: 90 * time.Minute},
	} {
		a := acts{read: actsAt(ago(c.newest)), of: experiment.Outcomes{Topic: "clicks", Window: c.window}, from: ago(100 * time.Hour)}
		a.reads(nil)
		if a.whole = now.Add(-c.read); c.fault != nil {
			a.reads(c.fault)
		}
		if says := a.blind("c", clicks, ago(c.shown)); (says == "") != (c.says == "") || !strings.Contains(says, c.says) {
			t.Errorf("%s: %q", name, says)
		}
		if says := a.blind("c", &experiment.Guards{Empty: 2}, ago(c.shown)); says != "" {
			t.Errorf("%s, of no guard on it: %q", name, says)
		}
	}
	none := acts{read: actsAt(0), of: experiment.Outcomes{Topic: "clicks"}, from: ago(3 * time.Hour)}
	none.reads(nil)
	if says := none.blind("c", clicks, ago(0)); !strings.Contains(says, "no outcome that belongs to what was shown has come to clicks since the evidence began, and answers have come for 3h0m0s since") {
		t.Errorf("%q", says)
	}
}

// kafkaAt is a log of outcomes that answers nobody for a while.
type kafkaAt struct {
	back   time.Time
	takes  time.Duration // a reading that is answered
	served []time.Time
}

func (k *kafkaAt) Newest() millrace.Time { return 1 }
func (*kafkaAt) Course() *outcome.Course { return &outcome.Course{} }
func (*kafkaAt) Told() outcome.Report    { return outcome.Report{} }
func (k *kafkaAt) Whole() time.Time      { return time.Now() }
func (*kafkaAt) Topic() exposure.Topic   { return exposure.Topic{} }
func (k *kafkaAt) Read(context.Context, func(*outcome.Act)) error {
	if time.Now().Before(k.back) {
		time.Sleep(10 * time.Second)
		return &os.PathError{Op: "read", Path: "clicks", Err: os.ErrDeadlineExceeded}
	}
	time.Sleep(k.takes)
	k.served = append(k.served, time.Now())
	return nil
}

// A log of outcomes that is back is read within seconds, however long it was waited for
// and however long others take; these are read as often as ever.
func TestOutcomesAreReadSoonAfterKafkaIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		away := &kafkaAt{back: time.Now().Add(100 * time.Second)}
		long := &kafkaAt{takes: 20 * time.Second}
		g := &guard{log: slog.New(slog.DiscardHandler), every: 15 * time.Second}
		of := func(name string, a Acts) *watched {
			return &watched{Defined: experiment.Defined{Experiment: experiment.Experiment{Name: name}}, acts: acts{read: a, of: experiment.Outcomes{Topic: "clicks"}, whole: time.Now(), unread: notReadYet}}
		}
		w := of("away", away)
		g.mu.watched = map[string]*watched{"away": w, "long": of("long", long)}
		done := make(chan struct{})
		go func() { defer close(done); g.readActs(ctx) }()
		time.Sleep(87*time.Second + 500*time.Millisecond)
		g.mu.Lock()
		says := w.acts.blind("c", &experiment.Guards{More: map[string]float64{"click": 2}}, 1)
		g.mu.Unlock()
		<-done
		if len(away.served) == 0 || away.served[0].Sub(away.back) > 15*time.Second {
			t.Errorf("back at %v, and read at %v", away.back, away.served)
		}
		if want := "; it is read again at "; !strings.Contains(says, want) {
			t.Errorf("%q does not say %q", says, want)
		}
		if n := len(long.served); n > 3 {
			t.Errorf("what takes 20 s is read %d times in 10 minutes", n)
		}
	})
}

// Until a coordinator has read outcomes it notes what the one before knew, and says of
// none that they were read.
func TestOutcomesAreNotReadBeforeTheyAre(t *testing.T) {
	a := acts{read: actsAt(7), of: experiment.Outcomes{Topic: "clicks"}, whole: time.Now(), unread: notReadYet}
	if l := a.look(); l != nil {
		t.Errorf("%+v", l)
	}
	before := &experiments.OutcomesLook{Topic: "clicks", Newest: time.Now()}
	a.was = before
	a.reads(errors.New("away"))
	if l := a.look(); l == nil || !l.Before || l.Newest != before.Newest {
		t.Errorf("%+v", l)
	}
	a.reads(nil)
	if l := a.look(); l.Before || l.Newest != millrace.Time(7).Std().UTC() {
		t.Errorf("%+v", l)
	}
}

// scripted is a log of outcomes that tells what a test says.
type scripted struct {
	actsAt
	course *outcome.Course
	told   outcome.Report
}

func (s *scripted) Course() *outcome.Course { return s.course }
func (s *scripted) Told() outcome.Report    { return s.told }

// What is known of outcomes holds a ramp, and the time of its step, as soon as those that come
// now are broken, however many right ones came before, and no longer once they are whole; and
// where others come, and none any more that belongs to what was shown, though many did.
func TestRampsWaitForWhatComesNow(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	ago := func(d time.Duration) millrace.Time { return millrace.TimeOf(now.Add(-d)) }
	well := Came{At: ago(time.Hour), Right: 100_000}
	late := 2*outcome.Skew + 10*time.Second
	for name, c := range map[string]struct {
		course     []Came
		came, last time.Duration // how old the newest outcome and answer are
		from       time.Duration // how old the evidence is
		belong     int
		least      time.Duration
		says       string
	}{
		"well":                       {course: []Came{well, {At: ago(0), Right: 1}}},
		"wrong names":                {course: []Came{well, {At: ago(time.Minute), Wrong: 20}, {At: ago(0), Right: 9}}, says: "see almost nothing: of clicks 20 name the answer of another viewer, or one without their record, and 9 belong to an item, since "},
		"and mended":                 {course: []Came{well, {At: ago(time.Minute), Wrong: 20}, {At: ago(0), Right: 10}}},
		"that belong to nothing":     {course: []Came{{At: ago(late), Right: 1}}, from: time.Hour, belong: 1000, says: "wait for outcomes that belong to what was shown: the newest outcome of clicks that belongs to what was shown is 2m1"},
		"of few that belong":         {course: []Came{{At: ago(late), Right: 1}}, from: time.Hour, belong: 500},
		"of nothing for a moment":    {course: []Came{{At: ago(time.Minute), Right: 1}}, from: time.Hour, belong: 1000},
		"of nothing, in a long step": {course: []Came{{At: ago(late), Right: 1}}, from: time.Hour, belong: 1000, least: time.Hour},
		"all late":                   {course: []Came{{At: ago(late), Right: 1}}, came: late, from: time.Hour, belong: 1000},
		"while nobody asks":          {course: []Came{{At: ago(late), Right: 1}}, last: late, from: time.Hour, belong: 1000},
		"silent":                     {course: []Came{{At: ago(2 * time.Hour), Right: 1}}, from: 3 * time.Hour, belong: 2, says: "and answers have come for 2h0m0s since"},
		"none that belongs":          {from: 3 * time.Hour, says: "no outcome that belongs to what was shown has come to clicks since the evidence began, and answers have come for 3h0m0s since"},
		"none yet":                   {from: time.Minute},
	} {
		a := acts{read: &scripted{actsAt(ago(c.came)), CourseOf(c.course...), outcome.Report{Attributed: c.belong}}, of: experiment.Outcomes{Topic: "clicks"}, from: ago(c.from)}
		a.reads(nil)
		e := &experiment.Experiment{Guards: &experiment.Guards{More: map[string]float64{"click": 2}}, Ramp: &experiment.Ramp{Least: c.least}}
		if says := a.waits(e, ago(c.last)); (says == "") != (c.says == "") || !strings.Contains(says, c.says) {
			t.Errorf("%s: %q", name, says)
		}
		if e.Guards = (&experiment.Guards{Empty: 2}); a.waits(e, ago(c.last)) != "" {
			t.Errorf("%s: it holds guards on something else", name)
		}
	}
}
