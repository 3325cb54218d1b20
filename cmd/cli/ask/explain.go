package ask

import (
	"io"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/display"
)

// printAccount prints how an answer was made: what became of the candidates, what each node
// was asked for, and where the time went. If e is nil, the request did not ask for an
// explanation, and it prints nothing.
func printAccount(w io.Writer, e *feedv1.Explain) {
	if e == nil {
		return
	}
	display.Printf(w, "\n%d candidates, %d scored, %d capped\n", e.Candidates, e.Scored, e.Capped)
	for _, c := range e.Clauses {
		display.Printf(w, "  %s drops %d, false %d, null %d, error %d, NaN %d\n", c.Clause, c.False+c.Null+c.Error+c.Nan, c.False, c.Null, c.Error, c.Nan)
	}
	for _, c := range e.Calls {
		hedge := "" // a hedge asks another replica for what a slow call has not answered yet
		if c.Hedge {
			hedge = ", again"
		}
		display.Printf(w, "%s: %d timelines of %d partitions%s, %s, %.2f ms from %.2f ms on\n", c.Node, c.Timelines, c.Partitions, hedge, c.Outcome, c.Millis, c.BeganMillis)
		if t := c.Times; t != nil {
			display.Printf(w, "  resolve %.2f ms (%d read from the store, %.2f ms), scan %.2f ms, rank %.2f ms\n", t.ResolveMillis, t.Misses, t.ReadMillis, t.ScanMillis, t.RankMillis)
		}
	}
	if e.HedgesFired > 0 {
		display.Printf(w, "%d hedges, %d won, about %.2f ms saved\n", e.HedgesFired, e.HedgesWon, e.HedgeSavedMillis)
	}
	if t := e.Times; t != nil {
		display.Printf(w, "broker: read %.2f ms, route %.2f ms, fan-out %.2f ms, merge %.2f ms, records %.2f ms\n", t.ReadMillis, t.RouteMillis, t.FanOutMillis, t.MergeMillis, t.RecordsMillis)
	}
}
