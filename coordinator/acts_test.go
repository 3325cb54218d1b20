package coordinator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
)

type actsAt millrace.Time

func (a actsAt) Newest() millrace.Time                        { return millrace.Time(a) }
func (actsAt) Read(context.Context, func(*outcome.Act)) error { return nil }

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
		"unread":                {fault: errors.New("there is no topic clicks"), read: 2 * time.Minute, newest: time.Minute, says: "clicks is not read since 2m0s: there is no topic clicks"},
		"silent":                {newest: 2 * time.Hour, says: "the newest outcome of clicks is 2h0m0s old, and answers have come for 2h0m0s since"},
		"silent for a moment":   {newest: 50 * time.Minute},
		"silent, by its window": {newest: 50 * time.Minute, window: 20 * time.Minute, says: "is 50m0s old"},
		"nobody asks":           {newest: 2 * time.Hour, shown: 90 * time.Minute},
	} {
		a := acts{read: actsAt(ago(c.newest)), of: experiment.Outcomes{Topic: "clicks", Window: c.window}, from: ago(100 * time.Hour)}
		a.reads(nil)
		if a.whole = now.Add(-c.read); c.fault != nil {
			a.reads(c.fault)
		}
		if says := a.blind(clicks, ago(c.shown)); (says == "") != (c.says == "") || !strings.Contains(says, c.says) {
			t.Errorf("%s: %q", name, says)
		}
		if says := a.blind(&experiment.Guards{Empty: 2}, ago(c.shown)); says != "" {
			t.Errorf("%s, of no guard on it: %q", name, says)
		}
	}
	none := acts{read: actsAt(0), of: experiment.Outcomes{Topic: "clicks"}, from: ago(3 * time.Hour)}
	none.reads(nil)
	if says := none.blind(clicks, ago(0)); !strings.Contains(says, "no outcome has come to clicks since the evidence began, and answers have come for 3h0m0s since") {
		t.Errorf("%q", says)
	}
}
