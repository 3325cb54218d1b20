package steering

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Documents that have changed are written, within their bounds; others are not judged.
func TestDocumentOps(t *testing.T) {
	largest := strings.Repeat("x", keyspace.MaxDocumentBytes)
	for name, c := range map[string]struct {
		before, after map[string]string
		ops           int
		want          string
	}{
		"nothing":                 {nil, nil, 0, ""},
		"the same":                {map[string]string{"a": "x", "../b": ""}, map[string]string{"a": "x", "../b": ""}, 0, ""},
		"one is new":              {nil, map[string]string{"a": ""}, 1, ""},
		"one is another":          {map[string]string{"a": "x"}, map[string]string{"a": "y"}, 1, ""},
		"one is gone":             {map[string]string{"a": "x"}, nil, 0, ""},
		"a name that is none":     {nil, map[string]string{"../b": "x"}, 0, "is not an id"},
		"as many bytes as may be": {nil, map[string]string{"a": largest}, 1, ""},
		"one more":                {nil, map[string]string{"a": largest + "x"}, 0, "more than 1048576"},
	} {
		ops, err := documentOps(&cluster.Client{}, c.before, c.after)
		if len(ops) != c.ops || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d operations, %v", name, len(ops), err)
		}
		if len(ops) == 1 && (string(ops[0].KeyBytes()) != "steer/a" || string(ops[0].ValueBytes()) != c.after["a"]) {
			t.Errorf("%s: writes %s", name, ops[0].KeyBytes())
		}
	}
}

// The next assignment is above the highest epoch that anybody may have seen, by so many at
// most, and is judged by the present one.
func TestAccepts(t *testing.T) {
	spread := func(nodes int, epoch int64) *topology.Assignment {
		ids := []millrace.NodeID{"a", "b", "c", "d", "e"}
		a, err := topology.Spread(ids[:nodes], 1)
		if err != nil {
			t.Fatal(err)
		}
		a.Epoch = epoch
		return &a
	}
	known := map[millrace.NodeID]bool{"a": true, "b": true, "c": true, "d": true}
	p := &Present{Assignment: spread(4, 7), epoch: 9, known: known}
	for _, c := range []struct {
		p    *Present
		a    *topology.Assignment
		want error
	}{
		{p, spread(4, 9), ErrEpoch}, {p, spread(4, 10), nil}, {p, spread(4, 9+topology.MaxEpochStep), nil}, {p, spread(4, 10+topology.MaxEpochStep), ErrEpoch},
		{p, spread(3, 10), topology.ErrShrink}, {p, spread(5, 10), topology.ErrUnknownOwner}, {&Present{known: known}, spread(1, 1), nil}, {&Present{}, spread(1, 1), topology.ErrUnknownOwner}, {&Present{}, spread(1, 0), ErrEpoch},
	} {
		c.a.Past = []topology.Step{{Epoch: 99}}
		err := c.p.accepts(c.a)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("epoch %d: %v, want %v", c.a.Epoch, err, c.want)
		}
		if err == nil && (len(c.a.Past) != 0) != (c.p.Assignment != nil) {
			t.Errorf("epoch %d has the past %v", c.a.Epoch, c.a.Past)
		}
	}
	if got := p.String(); got != "epoch 7: 4 nodes, 1 replicas" || (&Present{}).String() != "no assignment" || p.Epoch() != 9 {
		t.Errorf("%q", got)
	}
	if ops, err := nextEpoch(&cluster.Client{}, p, *spread(4, 1)); err != nil || len(ops) != 2 || !strings.Contains(string(ops[0].ValueBytes()), `"epoch":10`) || string(ops[0].KeyBytes()) != "map/assignment" || string(ops[1].KeyBytes()) != "map/last" {
		t.Errorf("%d operations, %v", len(ops), err)
	}
	if _, err := nextEpoch(&cluster.Client{}, p, topology.Assignment{}); err == nil {
		t.Error("one without owners is written")
	}
}
