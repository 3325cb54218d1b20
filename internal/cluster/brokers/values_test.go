package brokers

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// A broker is silent once it has written nothing for longer than three beats, and may hear of
// a change until then, unless it has heard of all, or is ahead.
func TestSilentBrokers(t *testing.T) {
	now := time.Now()
	for since, want := range map[time.Duration]time.Duration{0: 0, brokerSilent: 0, brokerSilent + 1: brokerSilent + 1, -time.Hour: 0} {
		if got := (&Broker{Told: now.Add(-since)}).Silent(now); got != want {
			t.Errorf("after %v: silent for %v", since, got)
		}
	}
	for _, c := range []struct {
		told   time.Time
		behind []Behind
		want   bool
	}{
		{now, []Behind{{}}, true}, {now, nil, false}, {now, []Behind{{Heard: true}}, false}, {now, []Behind{{Ahead: true}}, false}, {now, []Behind{{Heard: true}, {}}, true},
		{now.Add(-time.Hour), []Behind{{}}, false},
	} {
		if got := (&Hearer{Broker{Told: c.told}, c.behind}).mayHear(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	for kind, want := range map[string]string{cluster.SecretsKind: cluster.SecretsPrefix, cluster.TraceKind: tracePrefix, "feeds": "docs/feeds/"} {
		if got := prefixOf(kind); got != want {
			t.Errorf("%s is at %s", kind, got)
		}
	}
}

// Who is traced and for how long is bounded; a trace ends by itself.
func TestTraces(t *testing.T) {
	long := strings.Repeat("x", maxViewerBytes)
	for _, c := range []struct {
		viewer string
		d      time.Duration
		field  string
	}{{"", time.Minute, "viewer"}, {long + "x", time.Minute, "viewer"}, {"\xff", time.Minute, "viewer"}, {"v", time.Second - 1, "for"}, {"v", maxTrace + 1, "for"}} {
		_, err := Trace(t.Context(), nil, c.viewer, c.d)
		if e, ok := err.(*millrace.Error); !ok || e.Field != c.field || e.WayOut == "" {
			t.Errorf("%.20q for %v: %v", c.viewer, c.d, err)
		}
	}
	tr := &Traced{state: keyspace.NewLatest(map[string]traced{"now": {until: time.Now().Add(time.Hour)}, "over": {until: time.Now().Add(-time.Second)}})}
	for viewer, want := range map[string]bool{"now": true, "over": false, "other": false} {
		if tr.Has(viewer) != want {
			t.Errorf("%s is traced: %v", viewer, !want)
		}
	}
	tr.revision.Store(7)
	if kind, by := tr.GoesBy(); kind != cluster.TraceKind || by.Revision != 7 {
		t.Errorf("%s, %+v", kind, by)
	}
}
