package ask

import (
	"strings"
	"testing"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

func TestPrintAccount(t *testing.T) {
	var out strings.Builder
	printAccount(&out, nil)
	printAccount(&out, &feedv1.Explain{
		Candidates: 90, Scored: 60, Capped: 5, HedgesFired: 1, HedgesWon: 1, HedgeSavedMillis: 7.5,
		Clauses: []*feedv1.ClauseCounts{{Clause: "record.likes > 3", False: 26, Null: 4}},
		Calls: []*feedv1.NodeCall{
			{Node: "n1", Partitions: 3, Timelines: 12, Outcome: "cancelled", Millis: 9},
			{Node: "n2", Partitions: 3, Timelines: 12, Outcome: "answered", Millis: 2, BeganMillis: 7, Hedge: true, Times: &feedv1.NodeTimes{ResolveMillis: 1, Misses: 2, ReadMillis: 0.5, ScanMillis: 0.25, RankMillis: 0.125}},
		},
		Times: &feedv1.BrokerTimes{ReadMillis: 0.1, RouteMillis: 0.2, FanOutMillis: 9, MergeMillis: 0.3, RecordsMillis: 0.4},
	})
	want := `
90 candidates, 60 scored, 5 capped
  record.likes > 3 drops 30, false 26, null 4, error 0, NaN 0
n1: 12 timelines of 3 partitions, cancelled, 9.00 ms from 0.00 ms on
n2: 12 timelines of 3 partitions, again, answered, 2.00 ms from 7.00 ms on
  resolve 1.00 ms (2 read from the store, 0.50 ms), scan 0.25 ms, rank 0.12 ms
1 hedges, 1 won, about 7.50 ms saved
broker: read 0.10 ms, route 0.20 ms, fan-out 9.00 ms, merge 0.30 ms, records 0.40 ms
`
	if got := out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
