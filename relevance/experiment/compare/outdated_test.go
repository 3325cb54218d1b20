package compare

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
)

// A broker that goes by an older definition, or deals what is paused, is named; what
// came before all had to know, and further pages, are nobody's fault.
func TestOutdatedNamesTheBroker(t *testing.T) {
	placed := time.Now().Add(-time.Hour)
	add := func(state experiment.State, after time.Duration, change func(*exposure.Record)) string {
		o := NewOutdated(experiment.Defined{Checksum: "new", Experiment: experiment.Experiment{Name: "e", State: state}}, placed)
		r := exposure.Record{Time: millrace.TimeOf(placed.Add(after)), Broker: "b1", Experiments: []exposure.Experiment{{Experiment: "e", Checksum: "new"}}}
		change(&r)
		o.Add(&r)
		o.Add(&r)
		return o.Says(0)
	}
	old := func(r *exposure.Record) { r.Experiments[0].Checksum = "old" }
	none := func(*exposure.Record) {}
	for name, says := range map[string]string{
		"old": add(experiment.Running, time.Minute, old), "paused": add(experiment.Paused, time.Minute, none),
	} {
		if !strings.Contains(says, `2 by broker "b1"`) {
			t.Errorf("%s: %q", name, says)
		}
	}
	for name, says := range map[string]string{
		"new": add(experiment.Running, time.Minute, none), "just after": add(experiment.Paused, 10*time.Second, old),
		"a further page": add(experiment.Paused, time.Minute, func(r *exposure.Record) { r.ServedBefore = 3 }),
		"another":        add(experiment.Paused, time.Minute, func(r *exposure.Record) { r.Experiments[0].Experiment = "x" }),
	} {
		if says != "" {
			t.Errorf("%s: %q", name, says)
		}
	}
	// Whoever writes exposures makes names of brokers without end.
	o := NewOutdated(experiment.Defined{Checksum: "new", Experiment: experiment.Experiment{Name: "e"}}, placed)
	for i := range 1000 {
		o.Add(&exposure.Record{Time: millrace.TimeOf(time.Now()), Broker: fmt.Sprint(i), Experiments: []exposure.Experiment{{Experiment: "e", Checksum: "old"}}})
	}
	if n := len(o.answers.n); n != maxBrokers {
		t.Errorf("%d brokers are kept", n)
	}
}
