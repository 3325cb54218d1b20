package experiments

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

// That a guard paused an experiment is told also where the history of its document does
// not tell it any more; not so where the experiment has been watched since.
func TestAGuardsPauseIsToldByItsTrail(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	tr, err := open(t.Context(), s.Client, io.Discard)
	s.Check(err)
	_, err = tr.Define(t.Context(), "d", []byte(`layers: [{name: l, salt: s, unit: viewer}]
experiments: [{name: e, layer: l, feeds: [recent], state: running, slots: [0-9999], share: 100, variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {limit: 3}}]}]
`))
	s.Check(err)
	tr.Why = "as after many other changes"
	_, err = tr.Steer(t.Context(), "e", func(now experiment.Experiment) (experiment.State, int, error) {
		return experiment.Paused, now.Share, nil
	})
	s.Check(err)
	st, err := tr.Read(t.Context())
	s.Check(err)
	of, err := st.Find("e")
	s.Check(err)
	const pause = `"decisions": [{"when": "2026-01-02T03:04:05Z", "by": "one", "what": "ramped e to 100 of 10,000"}, {"when": "2026-01-02T04:04:05Z", "by": "one", "what": "paused e", "why": "refused of b: 3"}, {"when": "2026-01-02T05:04:05Z", "by": "ann", "person": true, "what": "held e"}]`
	for trail, want := range map[string]string{
		"{}":              "",
		"{" + pause + "}": "coordinator one: paused e: refused of b: 3",
		`{"looked": {"when": "2026-01-02T04:04:04Z"}, ` + pause + "}": "coordinator one: paused e: refused of b: 3",
		`{"looked": {"when": "2026-01-02T04:04:06Z"}, ` + pause + "}": "",
	} {
		_, err := documents.Of(s.Client, experiments.TrailsKind).PutIf(t.Context(), "e", []byte(trail))
		s.Check(err)
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			by, ok, err := tr.pausedBy(t.Context(), &of)
			s.Check(err)
			if by.Who == want && ok == (want != "") {
				break
			}
			if time.Since(began) > clitest.Patience {
				t.Fatalf("%s: paused by %q, want %q", strings.Split(trail, "decisions")[0], by.Who, want)
			}
		}
	}
}
