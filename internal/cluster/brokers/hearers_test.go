package brokers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
)

// said is each broker with what it does not go by.
func said(all []Hearer) string {
	var each []string
	for _, h := range all {
		text := h.Name
		for _, b := range h.Behind {
			text += fmt.Sprintf(" %s/%s:%v", b.Kind, b.Name, b.Heard)
		}
		each = append(each, text)
	}
	return strings.Join(each, ", ")
}

// What a broker has not taken over is listed as far as there is room, and then means
// all of the kind; what no broker follows is not waited for.
func TestHearers(t *testing.T) {
	by := func(revision int64, not ...string) Broker {
		return Broker{Name: "b", GoesBy: map[string]cluster.Applied{"models": {Revision: revision, Not: not}}}
	}
	for what, c := range map[string]struct {
		broker Broker
		of     cluster.Written
		want   string
	}{
		"later":              {by(5), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b"},
		"the same":           {by(4), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b"},
		"before":             {by(3), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b models/m:false"},
		"another not":        {by(5, "n"), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b"},
		"not this":           {by(5, "m"), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b models/m:true"},
		"not any":            {by(5, "n", cluster.AnyName), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b models/m:true"},
		"all of a kind":      {by(5, "n"), cluster.Written{Kind: "models", Revision: 4}, "b models/:true"},
		"what none says":     {by(5), cluster.Written{Kind: "trails", Name: "m", Revision: 9}, "b"},
		"one says, one not":  {Broker{Name: "old"}, cluster.Written{Kind: "models", Name: "m", Revision: 4}, "old models/m:false"},
		"nothing since lost": {by(0), cluster.Written{Kind: "models", Name: "m", Revision: 4}, "b models/m:false"},
	} {
		all, behind := hearers([]Broker{c.broker, by(9)}, []cluster.Written{c.of}, false)
		if got := said(all[:1]); got != c.want || behind != strings.Contains(c.want, ":") {
			t.Errorf("%s: %q, %v; want %q", what, got, behind, c.want)
		}
	}
	of := []cluster.Written{{Kind: "models", Revision: 4}}
	for revision, ahead := range map[int64]bool{0: true, 3: false} { // of an etcd that has lost state
		if all, _ := hearers([]Broker{by(revision)}, of, true); len(all[0].Behind) != 1 || all[0].Behind[0].Ahead != ahead {
			t.Errorf("by revision %d of what is lost: %+v", revision, all[0].Behind)
		}
	}
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	if got := cluster.NotGoneBy(names); len(got) != 51 || got[49] != "n49" || got[50] != cluster.AnyName {
		t.Errorf("%q", got)
	}
}
