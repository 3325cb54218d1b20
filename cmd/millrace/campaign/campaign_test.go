//go:build linux

package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/oracle"
)

// kindsOfViolation are what a campaign must not find.
var kindsOfViolation = []string{"wrong", "stale", "lost", "doubled", "ended", "unhealed", "differing", "fewer"}

// TestCampaign breaks the cluster again and again for as long as it is told,
// under load.
func TestCampaign(t *testing.T) {
	s := need(t)
	s.backups = backupEvery
	w := startWorld(t, s, "campaign", true)
	sum, faults := w.campaign(s)
	compared := 0
	if w.finish() {
		compared = w.digests()
	}
	figure.Print("campaign_faults", float64(faults), "faults")
	answers := sum.whole + sum.partial + sum.flagged
	figure.Print("campaign_answers", float64(answers), "answers")
	figure.Print("campaign_partial", float64(sum.partial), "answers")
	figure.Print("campaign_flagged", float64(sum.flagged), "answers")
	figure.Print("campaign_refused", float64(sum.refused), "questions")
	figure.Print("campaign_inputs", float64(w.truth.acknowledged()), "inputs")
	figure.Print("campaign_oldest_unflagged", sum.oldest.Seconds(), "s")
	figure.Print("campaign_digests_compared", float64(compared), "partitions")
	w.verdict()
	if answers < 20*faults {
		t.Errorf("only %d answers: the campaign shows little", answers)
	}
}

// verdict prints what was found, by kind, and fails the test for any.
func (w *world) verdict() {
	for _, kind := range kindsOfViolation {
		n := w.history.found(kind)
		figure.Print("violations_"+kind, float64(n), "violations")
		if n > 0 {
			w.t.Errorf("%d %s; the history is in %s", n, kind, w.history.path)
		}
	}
}

// campaign runs rounds until the time is up, and returns what the answers came
// to and how many faults there were.
func (w *world) campaign(s settings) (sum tally, faults int) {
	stop := w.underLoad()
	defer stop()
	first := w.heal(nil)
	w.t.Logf("started on a fresh Kafka: %s", first)
	n := 0
	for r := range s.rounds(w.history.began) {
		n++
		began := time.Since(w.history.began)
		w.history.chapter(r.String())
		broke := w.breakAll(r)
		healed := w.heal(&r)
		faults += broke
		got := w.asker.take()
		sum = sum.plus(got)
		w.t.Logf("#%d %.0fs %v | %s | %v | ended %d", n, began.Seconds(), r, healed, got, w.history.found("ended"))
		if w.history.found("unhealed") > 2 {
			w.t.Error("the cluster does not heal any more: the campaign ends early")
			break
		}
	}
	return sum, faults
}

// rounds are the short list, or what is drawn until the time is up.
func (s settings) rounds(began time.Time) iter.Seq[round] {
	plan := newSchedule(s.seed)
	if s.short {
		return slices.Values(plan.short())
	}
	return func(yield func(round) bool) {
		for time.Since(began) < s.lasts && yield(plan.next()) {
		}
	}
}

// underLoad sends inputs and asks questions until it is stopped.
func (w *world) underLoad() (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.load.run(ctx) })
	wg.Go(func() { w.asker.run(ctx) })
	return func() { cancel(); wg.Wait() }
}

// breakAll begins the faults of a round, keeps them for as long as it says, and
// returns how many broke something. What breaks is a clock's affair: nothing tells
// when a session is given up.
func (w *world) breakAll(r round) (broke int) {
	for _, f := range r.faults {
		switch err := f.begin(w); {
		case err == nil:
			broke++
		case errors.Is(err, errUnbroken):
			w.history.note("unbroken", f.what)
		default:
			w.t.Errorf("%s: %v", f.what, err) // of the campaign itself
		}
	}
	select {
	case <-w.ctx.Done():
	case <-time.After(r.hold):
	}
	return broke
}

// heal mends what a round broke and waits until the cluster is whole. One that
// does not become so by itself is told, and all its processes are restarted.
func (w *world) heal(r *round) string {
	began := time.Now()
	if err := w.packets.heal(); err != nil {
		w.t.Error(err)
	}
	for _, p := range w.proxies {
		p.delay.Store(0)
	}
	if r != nil {
		// What roles stand on comes back first: to mend others may need it.
		for _, f := range slices.SortedStableFunc(slices.Values(r.faults), func(a, b fault) int { return cmp.Compare(b.neighbour(), a.neighbour()) }) {
			if f.end == nil {
				continue
			}
			if err := f.end(w); err != nil {
				w.told("unhealed", fmt.Sprintf("%s: %v", f.what, err))
			}
		}
	}
	err := w.whole(w.ctx)
	if err != nil {
		w.told("unhealed", err.Error())
		return fmt.Sprintf("NOT HEALED after %.0fs: %v; %v", time.Since(began).Seconds(), err, w.restartAll())
	}
	took := time.Since(began)
	w.asker.drain()
	return fmt.Sprintf("healed %.1fs", took.Seconds())
}

// restartAll restarts every role, and returns what is wrong still.
func (w *world) restartAll() error {
	r := everything(newSchedule(1).r)
	if err := errors.Join(r.begin(w), r.end(w)); err != nil {
		return err
	}
	if err := w.whole(w.ctx); err != nil {
		w.told("unhealed", "all processes restarted: "+err.Error())
		return err
	}
	return nil
}

// finish asks for everything once the load has ended, unless the cluster is not
// whole.
func (w *world) finish() bool {
	if err := w.whole(w.ctx); err != nil {
		w.told("lost", "at the end: "+err.Error())
		return false
	}
	// What starts last may leave answers flagged for some seconds yet.
	if err := eventually(w.ctx, patience, func(context.Context) error {
		all := w.load.population()
		for m := range all {
			q := oracle.Question{From: millrace.MinTime, To: millrace.MaxTime, AsOf: millrace.TimeOf(time.Now()), Model: "recency", Limit: 1000}
			q.Viewer.ID = "last"
			q.Entities = []millrace.Entity{memberOf(m)}
			w.asker.askOne(w.ctx, m%brokers, q)
		}
		w.asker.drain()
		last := w.asker.take()
		w.t.Logf("at the end: %v", last)
		if last.whole != all {
			return fmt.Errorf("%d of %d last answers are whole", last.whole, all)
		}
		return nil
	}); err != nil {
		w.told("lost", err.Error())
	}
	return true
}
