package clusters

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/experiments"
)

// What is told of a broker that does not go by a change is what is known of it.
func TestWhyABrokerHasNotHeard(t *testing.T) {
	now := time.Now()
	behind := func(ago time.Duration, admin string, heard ...bool) *brokers.Hearer {
		h := &brokers.Hearer{Broker: brokers.Broker{Name: "host-2 127.0.0.1:9090", Admin: admin, Told: now.Add(-ago)}}
		for i, heard := range heard {
			h.Behind = append(h.Behind, brokers.Behind{Written: cluster.Written{Kind: []string{feeds.Kind, experiments.Kind}[i], Name: "town", Revision: 7}, Heard: heard})
		}
		return h
	}
	for want, h := range map[string]*brokers.Hearer{
		"NOT HEARD by host-2 127.0.0.1:9090, which last told etcd something 3m12s ago: if it still answers, it goes on with what it took over before; see millrace doctor --admin host-2:6060": behind(192*time.Second, "host-2:6060", false),
		"NOT HEARD by host-2 127.0.0.1:9090 yet: it goes on with what it took over before; its log says why":                                                                                   behind(time.Second, "", true, false),
		"NOT TAKEN OVER by host-2 127.0.0.1:9090: it has heard of document town, feed town, and goes on with what it took over before; its log says why":                                       behind(time.Second, "host-2:6060", true, true),
	} {
		if got := notHeard(h, now); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func TestHeardInLines(t *testing.T) {
	not := func(n int) (all []unheard) {
		for i := range n {
			all = append(all, unheard{says: fmt.Sprint("NOT ", i)})
		}
		return all
	}
	for want, h := range map[string]*Heard{
		"no broker is registered: whether one has heard of it is not known\n": {},
		"whether brokers have heard of it is not known: etcd is away\n":       {Fault: "etcd is away"},
		"heard by 1 broker\n":  {By: []string{"a"}},
		"heard by 2 brokers\n": {By: []string{"a", "b"}},
		"heard by 2 brokers\n1 broker of these told etcd nothing of late, and may have ended: see millrace cluster show\n": {By: []string{"a", "b"}, Silent: []string{"b"}},
		"heard by 1 of 2 brokers\nNOT 0\n": {By: []string{"a"}, Not: not(1)},
		"NOT 0\n":                          {Not: not(1)},
		"NOT 8\nNOT 9\nNOT HEARD by 2 more; see millrace cluster show\n": {Not: not(12)},
		"heard by 1 of 3 brokers\nNOT 0\nNOT 1\n":                        {By: []string{"a"}, Not: not(2)},
	} {
		var out strings.Builder
		if err := h.Write(&out); err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("%q, %v; want %q", out.String(), err, want)
		}
	}
}

// Who goes by a change and then fell silent is told as such.
func TestWhoHasHeardMayHaveEnded(t *testing.T) {
	now := time.Now()
	h := heardBy([]brokers.Hearer{{Broker: brokers.Broker{Name: "a", Told: now}}, {Broker: brokers.Broker{Name: "b", Told: now.Add(-time.Minute)}}}, nil)
	if !slices.Equal(h.By, []string{"a", "b"}) || !slices.Equal(h.Silent, []string{"b"}) {
		t.Errorf("%+v", h)
	}
}

// A broker is well while it speaks and goes by everything.
func TestStateOfABroker(t *testing.T) {
	for want, b := range map[string]Broker{
		"goes by all there is":                                                    {},
		"SILENT for 3m12s":                                                        {Silent: 192},
		"BEHIND in feeds, models, by 9 revisions of etcd":                         {Behind: []behind{{Of: "feeds", Revisions: 2}, {Of: "models", Revisions: 9}}},
		"SILENT for 1m0s; BEHIND in models, by 9 revisions of etcd":               {Silent: 60, Behind: []behind{{Of: "models", Revisions: 9}}},
		"BEHIND in models, by 9 revisions of etcd; could NOT TAKE OVER all feeds": {Behind: []behind{{Of: "feeds"}, {Of: "models", Revisions: 9}}},
		"ahead of etcd, which has lost state, in feeds":                           {Behind: []behind{{Of: "feeds", Ahead: true}}},
		"could NOT TAKE OVER all feeds":                                           {Behind: []behind{{Of: "feeds"}}},
	} {
		if got := b.State(); got != want || b.Well() != (want == "goes by all there is") {
			t.Errorf("%q, want %q", got, want)
		}
		faulty := strings.Contains(want, "BEHIND") || strings.Contains(want, "NOT TAKE")
		if b.Faulty() != faulty || (BrokerFaults([]Broker{b}) != nil) != faulty {
			t.Errorf("%q is a fault: %v", want, b.Faulty())
		}
	}
}
