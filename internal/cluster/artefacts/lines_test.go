package artefacts

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whatever stands in etcd as a reason or a name of who did something is read as a
// part of a line.
func TestTextsOfCondemnationsStandInLines(t *testing.T) {
	const evil, shown = "x\x1b[2J\nWHEN forged", `x\u001b[2J\u000aWHEN forged`
	sum := strings.Repeat("a", 64)
	body, err := json.Marshal([]Condemnation{{Version: "1", Sum: sum, Why: evil, Who: evil}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseCondemned(string(body))
	if err != nil || all[0].Why != shown || all[0].Who != shown {
		t.Errorf("%+v, %v", all, err)
	}
}
