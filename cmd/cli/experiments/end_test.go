package experiments

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
)

// Who cannot end an experiment is told what is left, whatever is wrong with etcd, and of
// other refusals nothing of it.
func TestWhatGoesOnWithoutEtcd(t *testing.T) {
	const left = "callers get none that ask another feed"
	full := &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: "out of space", WayOut: "free some"}
	for _, err := range []error{fmt.Errorf("x: %w", cluster.ErrAway), cluster.ErrLost, full} {
		if told := goesOn(err); !errors.Is(told, err) || !strings.HasPrefix(told.Error(), strings.TrimSuffix(err.Error(), "; free some")) || !strings.Contains(told.Error(), left) {
			t.Errorf("%v: %v", err, told)
		}
	}
	if told := goesOn(full); !strings.HasSuffix(told.Error(), "; free some") {
		t.Errorf("no way out: %v", told)
	}
	for _, err := range []error{nil, errors.New("there is no experiment"), &millrace.Error{Field: "name", Detail: "x"}} {
		if told := goesOn(err); told != err {
			t.Errorf("%v: %v", err, told)
		}
	}
}
