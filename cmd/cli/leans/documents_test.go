package leans

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// A document that cannot be read may be dropped; one in an etcd that is away or has
// lost its past may be good.
func TestNothingIsDroppedInDoubt(t *testing.T) {
	bad := errors.New("experiments x: not JSON")
	if lines, err := Unread(bad, "drop it"); err != nil || len(lines) != 1 || !strings.Contains(lines[0], "removed by drop it") {
		t.Errorf("%q, %v", lines, err)
	}
	for _, doubt := range []error{keyspace.ErrNothing, fmt.Errorf("of models: %w", cluster.ErrAway), errors.Join(bad, cluster.ErrAway)} {
		if lines, err := Unread(doubt, "drop it"); !errors.Is(err, doubt) || len(lines) > 0 {
			t.Errorf("%v: %q, %v", doubt, lines, err)
		}
	}
	if lines, err := Unread(nil, "drop it"); len(lines) > 0 || err != nil {
		t.Errorf("%q, %v", lines, err)
	}
}
