package replica

import (
	"fmt"
	"testing"
)

// A quarantine is known again after a restart by its cause: that of an operator
// stays, others are mended.
func TestTheCauseOfAQuarantineIsKnownAgain(t *testing.T) {
	for text, want := range map[string]Reason{operatorText + ": because " + differsText: ByOperator, differsText + ": at 5": Differs, "bad block": Corrupt} {
		why := whyQuarantined(fmt.Errorf("store: partition 17: %s", text))
		if why.Reason != want {
			t.Errorf("%q is %s, want %s", text, why.Reason, want)
		}
		all := new(Replicas)
		r := &all.replicas[17]
		r.setCause(why)
		if all.curable(r) == (want == ByOperator) {
			t.Errorf("%q is made anew without a word: %v", text, want == ByOperator)
		}
	}
}
