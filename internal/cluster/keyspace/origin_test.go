package keyspace

import (
	"errors"
	"testing"
)

func TestJudge(t *testing.T) {
	first, other, second := Name{1, "a"}, Name{1, "b"}, Name{2, "c"}
	for name, c := range map[string]struct {
		s    Snapshot
		want error
	}{
		"on":                  {Snapshot{Cluster: 1, Revision: 11, Count: "720", Keyspace: first}, nil},
		"lost":                {Snapshot{Cluster: 1, Revision: 11, Keyspace: first}, ErrGone},
		"foreign":             {Snapshot{Cluster: 2, Revision: 11, Count: "720", Keyspace: first}, ErrForeign},
		"back":                {Snapshot{Cluster: 1, Revision: 9, Count: "720", Keyspace: first}, ErrBack},
		"count":               {Snapshot{Cluster: 1, Revision: 11, Count: "64", Keyspace: first}, ErrPartitions},
		"begun anew":          {Snapshot{Cluster: 1, Revision: 11, Count: "720", Keyspace: other}, ErrAnew},
		"begun anew, early":   {Snapshot{Cluster: 1, Revision: 2, Count: "720", Keyspace: other}, ErrAnew},
		"without a keyspace":  {Snapshot{Cluster: 1, Revision: 11, Count: "720"}, ErrAnew},
		"restored":            {Snapshot{Cluster: 1, Revision: 2, Count: "720", Keyspace: second}, nil},
		"restored elsewhere":  {Snapshot{Cluster: 2, Revision: 2, Count: "720", Keyspace: second}, nil},
		"restored, but count": {Snapshot{Cluster: 1, Revision: 2, Count: "64", Keyspace: second}, ErrPartitions},
	} {
		o := Origin{1, 10, first, 0}
		if err := o.Judge(&c.s); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if PastLost(c.want) != (c.want != nil && c.want != ErrPartitions && c.want != ErrNothing) {
			t.Errorf("%s: the past is lost: %v", name, PastLost(c.want))
		}
		if want := (Origin{c.s.Cluster, c.s.Revision, c.s.Keyspace, 0}); c.want == nil && o != want {
			t.Errorf("%s: moved to %+v", name, o)
		}
		var back int64
		if c.want == ErrBack {
			back = c.s.Revision
		}
		if c.want != nil && o != (Origin{1, 10, first, back}) {
			t.Errorf("%s: moved to %+v", name, o)
		}
	}
}

// An etcd that went back does not become good by being written to.
func TestAnEtcdThatWentBackStaysBack(t *testing.T) {
	first := Name{1, "a"}
	o := Origin{1, 10, first, 0}
	for _, revision := range []int64{9, 10, 11, 1000} {
		if err := o.Judge(&Snapshot{Cluster: 1, Revision: revision, Count: "720", Keyspace: first}); err != ErrBack {
			t.Errorf("at revision %d: %v", revision, err)
		}
	}
	if o.Back != 9 || o.Revision != 10 {
		t.Errorf("%+v", o)
	}
	if err := o.Judge(&Snapshot{Cluster: 1, Revision: 12, Count: "720", Keyspace: Name{2, "b"}}); err != nil || o.Back != 0 {
		t.Errorf("restored: %v, %+v", err, o)
	}
}

func TestKeyspace(t *testing.T) {
	k := New(7)
	if got := Parse(k.String()); got != k || len(k.ID) != 16 {
		t.Errorf("%q is read as %+v", k, got)
	}
	for _, bad := range []string{"", "7", "7 ", "0 a", "-1 a", "7 a b", "seven a", "7  a"} {
		if got := Parse(bad); got != (Name{}) {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}
