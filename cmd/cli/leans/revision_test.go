package leans

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance/experiment"
)

// What is condemned changes what ranks, and is watched apart from the models: guards
// look anew once it is heard of, though no model and no feed has changed since.
func TestRevisionIsOfWhatIsCondemnedToo(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	r, err := OpenServing(t.Context(), s.Client)
	s.Check(err)
	v, _, err := r.Models.Publish(t.Context(), "rate", "1", []byte("a pack"), "ann")
	s.Check(err)
	s.Check(r.Failed.Condemn(t.Context(), r.Models, v, "it panicked", "n1", time.Now()))
	s.Check(r.Models.Settle(t.Context()))
	before := leans{r}.Revision()
	changed := r.Failed.Changed()
	s.Check(r.Failed.Forget(t.Context(), v)) // changes no model
	select {
	case <-changed:
	case <-time.After(clitest.Patience):
		t.Fatal("it is still condemned")
	}
	if leans := (leans{r}); leans.Failed.Why(v) != "" || leans.Revision() == before {
		t.Errorf("condemned for %q, by revision %d, and before %d", leans.Failed.Why(v), leans.Revision(), before)
	}
}

// A feed that is built in is not what served before the versions that a cut history
// still has.
func TestACutHistoryDoesNotBeginWithWhatIsBuiltIn(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	r, err := OpenServing(t.Context(), s.Client)
	s.Check(err)
	name := feeds.BuiltIn()[0].Name
	for i := 0; ; i++ {
		v, _, err := r.Feeds.Versions.Publish(t.Context(), name, "", fmt.Appendf(nil, "name: %s\nlimit: %d\n", name, i+1), "ann")
		s.Check(err)
		s.Check(r.Feeds.Versions.Serve(t.Context(), v, nil, "ann"))
		events, err := r.Feeds.Versions.History(t.Context(), name)
		s.Check(err)
		cut := events[0].Version != "1"
		if i > 0 && !cut && i%20 != 0 || cut && events[0].What != ledger.Published {
			continue
		}
		all, err := r.Feeds.servedDefinitions(t.Context(), name)
		s.Check(err)
		if builtIn := len(all) > 0 && all[0].event == (ledger.Event{}); builtIn == cut {
			t.Errorf("%d changes, cut: %v, begin with what is built in: %v", len(events), cut, builtIn)
		}
		if cut {
			return
		}
	}
}

// Weights of a feed's own model fit none that does not serve, also where the feed is about
// to name it, as by a definition of before: brokers would give nobody the variant.
func TestAChangeToAModelThatIsGoneLeavesNoWeights(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	r, err := OpenServing(t.Context(), s.Client)
	s.Check(err)
	now := &referred{ctx: t.Context(), feeds: r.Feeds, models: []string{"recency"}, versions: r.Models}
	for model, gone := range map[string]bool{"recency": false, "gone": true} {
		c := Change{referred: now, Feed: "news", To: &feeds.Feed{Name: "news", Model: model}}
		err := c.CheckWeights("news", "", map[string]float64{"likes": 2})
		if is := err != nil && err.Error() == experiment.OwnModelGone("news", model).Error(); is != gone {
			t.Errorf("%s: %v", model, err)
		}
	}
}
