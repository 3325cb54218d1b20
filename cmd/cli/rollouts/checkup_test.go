package rollouts

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// A document that cannot be read may be dropped; one in an etcd that is away or has
// lost its past may be good.
func TestNothingIsDroppedInDoubt(t *testing.T) {
	bad := errors.New("experiments x: not JSON")
	if lines, err := unread(bad, "drop it"); err != nil || len(lines) != 1 || !strings.Contains(lines[0], "removed by drop it") {
		t.Errorf("%q, %v", lines, err)
	}
	for _, doubt := range []error{keyspace.ErrNothing, fmt.Errorf("of models: %w", cluster.ErrAway), errors.Join(bad, cluster.ErrAway)} {
		if lines, err := unread(doubt, "drop it"); !errors.Is(err, doubt) || len(lines) > 0 {
			t.Errorf("%v: %q, %v", doubt, lines, err)
		}
	}
	if lines, err := unread(nil, "drop it"); len(lines) > 0 || err != nil {
		t.Errorf("%q, %v", lines, err)
	}
}

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
