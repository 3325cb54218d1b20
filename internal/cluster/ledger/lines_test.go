package ledger

import (
	"encoding/json"
	"testing"
)

// Whatever stands in etcd as a reason or a name of who did something is read as a
// part of a line.
func TestTextsOfLedgersStandInLines(t *testing.T) {
	const evil, shown = "x\x1b[2J\nWHEN forged", `x\u001b[2J\u000aWHEN forged`
	body, err := json.Marshal(Ledger{Format: format, History: []Event{{What: evil, Version: evil, Sum: evil, Who: evil}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Parse(string(body))
	if err != nil {
		t.Fatal(err)
	}
	if e := l.History[0]; e.What != shown || e.Version != shown || e.Sum != shown || e.Who != shown {
		t.Errorf("%+v", e)
	}
}
