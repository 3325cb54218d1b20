package members

import (
	"encoding/json"
	"strings"
	"testing"
)

// Whatever stands in etcd as a reason or a name of who did something is read as a
// part of a line; the reason of a node has lines, and steers nothing else.
func TestTextsOfAdmissionsStandInLines(t *testing.T) {
	const evil, shown = "x\x1b[2J\nWHEN forged", `x\u001b[2J\u000aWHEN forged`
	sum := strings.Repeat("a", 64)
	body, err := json.Marshal([]Admission{{Name: "m", Version: "1", Sum: sum, Refused: evil, Unkept: evil}})
	if err != nil {
		t.Fatal(err)
	}
	admitted, err := decodeAdmitted(body)
	if err != nil || admitted[0].Refused != "x\\u001b[2J\nWHEN forged" || admitted[0].Unkept != shown {
		t.Errorf("%+v, %v", admitted, err)
	}
}
