package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Whatever stands in etcd as a reason or a name of who did something is read as a
// part of a line; the reason of a node has lines, and steers nothing else.
func TestTextsStandInLines(t *testing.T) {
	const evil, shown = "x\x1b[2J\nWHEN forged", `x\u001b[2J\u000aWHEN forged`
	sum := strings.Repeat("a", 64)
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	l, err := parseLedger(text(ledger{Format: ledgerFormat, History: []Event{{What: evil, Version: evil, Sum: evil, Who: evil}}}))
	if err != nil {
		t.Fatal(err)
	}
	if e := l.History[0]; e.What != shown || e.Version != shown || e.Sum != shown || e.Who != shown {
		t.Errorf("%+v", e)
	}
	all, err := parseCondemned(text([]Condemnation{{Version: "1", Sum: sum, Why: evil, Who: evil}}))
	if err != nil || all[0].Why != shown || all[0].Who != shown {
		t.Errorf("%+v, %v", all, err)
	}
	admitted, err := decodeAdmitted([]byte(text([]Admission{{Name: "m", Version: "1", Sum: sum, Refused: evil, Unkept: evil}})))
	if err != nil || admitted[0].Refused != "x\\u001b[2J\nWHEN forged" || admitted[0].Unkept != shown {
		t.Errorf("%+v, %v", admitted, err)
	}
}

func FuzzParseParts(f *testing.F) {
	f.Add(partsOf(make([]byte, 3<<20)).line())
	f.Add("millrace parts 1 99999999999 1 x")
	f.Add("name: home")
	f.Fuzz(func(t *testing.T, doc string) {
		p, ok := parseParts(doc)
		if ok && (p.count < 1 || p.bytes > p.count*keyspace.MaxDocumentBytes || p.count > keyspace.MaxPartedBytes/keyspace.MaxDocumentBytes) {
			t.Fatalf("%q: %+v", doc, p)
		}
	})
}
