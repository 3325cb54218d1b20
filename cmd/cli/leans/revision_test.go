package leans

import (
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
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
