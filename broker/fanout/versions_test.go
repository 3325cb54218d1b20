package fanout

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
)

// A node that lacked a model is asked last for a moment, and only for that.
func TestAbsentModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a absent
		a.note("n1", "x")
		if got := a.lacking("x"); !slices.Equal(got, []millrace.NodeID{"n1"}) || len(a.lacking("y")) > 0 {
			t.Errorf("absent on %v", got)
		}
		time.Sleep(absentFor + 1) // virtual
		if got := a.lacking("x"); len(got) > 0 {
			t.Errorf("still absent on %v", got)
		}
	})
}

// A refusal for nodes that are away says where to look for them; one for
// overload does not.
func TestARefusalSaysWhereToLook(t *testing.T) {
	for why, looks := range map[string]bool{MissUnreachable: true, MissNoReplica: true, MissOverloaded: false, MissTimeout: false} {
		err := new(Asking).Nothing(Outcome{Missing: map[millrace.Partition]string{1: why, 2: why}})
		if got := strings.Contains(err.Error(), "millrace cluster show"); got != looks {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// What nodes lack is forgotten where it would be too much, and refusals are told apart by
// reason and field.
func TestAbsencesAreBounded(t *testing.T) {
	var a absent
	for i := range maxAbsents {
		a.note("n0", string(rune(i)))
	}
	if n := len(a.mu.until); n != maxAbsents {
		t.Errorf("%d are kept", n)
	}
	if a.note("n1", "x"); len(a.mu.until) != 1 {
		t.Errorf("%d are kept", len(a.mu.until))
	}
	for _, c := range []struct {
		err                error
		weights, condemned bool
	}{
		{&millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights"}, true, false}, {&millrace.Error{Reason: millrace.ReasonUnknown, Field: "model"}, false, false},
		{&millrace.Error{Reason: millrace.ReasonInvalid, Field: "weights"}, false, false}, {&millrace.Error{Reason: millrace.ReasonCondemned}, false, true}, {nil, false, false},
	} {
		if LacksWeights(c.err) != c.weights || IsCondemned(c.err) != c.condemned {
			t.Errorf("%v: %t, %t", c.err, LacksWeights(c.err), IsCondemned(c.err))
		}
	}
}
