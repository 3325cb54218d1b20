package keyspace

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A keyspace comes before its restorations, and before no other.
func TestBefore(t *testing.T) {
	k := New(3)
	next := k.Next(5)
	if next.Generation != 5 || len(next.ID) != 16 || next.ID[:8] != k.ID[:8] || next.ID == k.ID {
		t.Errorf("%s is followed by %s", k, next)
	}
	if odd := (Name{1, "short"}).Next(2); len(odd.ID) != 16 {
		t.Errorf("an odd name is followed by %s", odd)
	}
	same := next
	same.Generation = k.Generation
	for _, c := range []struct {
		k, o Name
		want bool
	}{{k, next, true}, {next, k, false}, {k, k, false}, {k, same, false}, {k, New(9), false}, {Name{1, ""}, Name{2, ""}, false}, {Name{1, "a"}, Name{2, "aaaaaaaabbbbbbbb"}, false}} {
		if c.k.Before(c.o) != c.want {
			t.Errorf("%s before %s: %v", c.k, c.o, !c.want)
		}
	}
	if long := strings.Repeat("0", 45) + "7 aaaaaaaabbbbbbbb"; Parse(long) != (Name{}) || Parse("7 aaaaaaaabbbbbbbb") != (Name{7, "aaaaaaaabbbbbbbb"}) || Parse("1 "+strings.Repeat("a", 17)) != (Name{}) {
		t.Error("names are read otherwise")
	}
}

// An id has 1 to 63 characters, of which the first is a letter or digit.
func TestValidID(t *testing.T) {
	for s, want := range map[string]bool{"a": true, "0.a_B-": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "": false, "-a": false, "a/b": false, "a\n": false} {
		if (ValidID(s) == nil) != want {
			t.Errorf("%q: %v", s, ValidID(s))
		}
	}
}

// What a process remembers is lost if etcd has a lower epoch, a lower generation, or another
// keyspace of the same.
func TestLostBy(t *testing.T) {
	now := Name{2, "b"}
	for m, want := range map[Memory]bool{
		{}: false, {"2 b", 5}: false, {"2 b", 6}: true, {"2 x", 5}: true, {"1 x", 5}: false, {"3 b", 1}: true, {"no name", 5}: false,
	} {
		if m.LostBy(now, 5) != want {
			t.Errorf("%+v: %v", m, !want)
		}
	}
}

// A value is handed over with its fault, which has lasted since the first Set that had one.
func TestLatest(t *testing.T) {
	l := NewLatest("a")
	if v, err := l.Get(); v != "a" || err != nil {
		t.Errorf("%s, %v", v, err)
	}
	changed := l.Changed()
	select {
	case <-changed:
		t.Error("changed before a Set")
	default:
	}
	one, two := errors.New("one"), errors.New("two")
	l.Set("b", one)
	<-changed
	first, err := l.FaultSince()
	if err != one || first.IsZero() || time.Since(first) > time.Hour {
		t.Errorf("%v since %v", err, first)
	}
	l.Set("c", two)
	if v, err := l.Get(); v != "c" || err != two {
		t.Errorf("%s, %v", v, err)
	}
	if since, err := l.FaultSince(); err != two || since != first {
		t.Errorf("%v since %v, want since %v", err, since, first)
	}
	l.Set("d", nil)
	if since, err := l.FaultSince(); err != nil || !since.IsZero() {
		t.Errorf("%v since %v", err, since)
	}
	if SameFault(one, two) || !SameFault(one, errors.New("one")) || SameFault(nil, one) || !SameFault(nil, nil) {
		t.Error("faults are compared otherwise")
	}
}

// Of many faults a few are named.
func TestFew(t *testing.T) {
	var faults []error
	for n := range 7 {
		got, lines := Few(faults), min(n, 5)
		if n > 5 {
			lines++
		}
		if (got == nil) != (n == 0) || n > 0 && len(strings.Split(got.Error(), "\n")) != lines || strings.Contains(fmt.Sprint(got), fmt.Sprintf("and %d more", n-5)) != (n > 5) {
			t.Errorf("%d faults: %v", n, got)
		}
		faults = append(faults, errors.New("fault"))
	}
}

// A setback is read however malformed, and is of the caller's loss if who found it knew as
// much.
func TestSetback(t *testing.T) {
	if ParseSetback(nil) != nil {
		t.Error("none is one")
	}
	for value, want := range map[string]Setback{`{"of":"map","at":7,"generation":2}`: {Of: "map", At: 7, Generation: 2, Version: 9}, "{": {Of: "state", Version: 9}} {
		if got := ParseSetback([]*mvccpb.KeyValue{{Value: []byte(value), ModRevision: 9}, {Value: []byte(`{}`)}}); *got != want {
			t.Errorf("%s is read as %+v", value, got)
		}
	}
	var none *Setback
	if none.Since(Name{9, "a"}, Name{}) {
		t.Error("none is since")
	}
	for _, c := range []struct {
		of, has, remembered int64
		want                bool
	}{{2, 1, 2, true}, {1, 9, 2, false}, {0, 2, 2, true}, {0, 1, 2, false}, {3, 1, 2, true}} {
		if got := (&Setback{Generation: c.of}).Since(Name{Generation: c.has}, Name{Generation: c.remembered}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A process that remembers nothing takes over what it finds, also of an etcd that went back,
// but says so, and counts as older than all others.
func TestJudgeOfANewProcess(t *testing.T) {
	first := Name{1, "a"}
	var o Origin
	if err := o.Judge(&Snapshot{Cluster: 1, Revision: 3}); !errors.Is(err, ErrNothing) || o != (Origin{}) {
		t.Errorf("nothing: %v, %+v", err, o)
	}
	s := &Snapshot{Cluster: 1, Revision: 3, Count: "720", Keyspace: first, Setback: &Setback{At: 2}}
	if err := o.Judge(s); err != nil || !errors.Is(s.Fault, ErrBack) || o != (Origin{Cluster: 1, Keyspace: first}) {
		t.Errorf("an etcd that went back: %v, %v, %+v", err, s.Fault, o)
	}
	o = Origin{1, 10, first, 0}
	if err := o.Judge(&Snapshot{Cluster: 1, Revision: 12, Count: "720", Keyspace: first, Setback: &Setback{At: 2}}); !errors.Is(err, ErrBack) || o != (Origin{1, 10, first, 0}) {
		t.Errorf("another has found that it went back: %v, %+v", err, o)
	}
	k := New(1)
	o = Origin{1, 10, k.Next(2), 0}
	if err := o.Judge(&Snapshot{Cluster: 1, Revision: 12, Count: "720", Keyspace: k}); !errors.Is(err, ErrBack) || o.Back != 12 {
		t.Errorf("of before the restoration: %v, %+v", err, o)
	}
	s = &Snapshot{Cluster: 1, Revision: 10, Count: "720", Keyspace: first}
	if o = (Origin{1, 10, first, 0}); o.Judge(s) != nil || s.Fault != nil {
		t.Errorf("the same revision again: %v", s.Fault)
	}
}

// Origins are compared by generation, then by revision; one has moved if it is of another
// keyspace, or went back.
func TestOrigins(t *testing.T) {
	o := Origin{1, 10, Name{2, "b"}, 0}
	for p, want := range map[Origin]struct {
		compare int
		moved   bool
	}{
		o: {0, false}, {1, 9, Name{2, "b"}, 0}: {1, false}, {1, 11, Name{2, "b"}, 0}: {-1, false}, {1, 99, Name{1, "a"}, 0}: {1, true},
		{1, 1, Name{3, "c"}, 0}: {-1, true}, {1, 10, Name{2, "b"}, 9}: {0, true}, {1, 10, Name{2, "c"}, 0}: {0, true},
	} {
		if o.Compare(p) != want.compare || o.Moved(p) != want.moved {
			t.Errorf("%+v: %d, %v", p, o.Compare(p), o.Moved(p))
		}
	}
	s := &Snapshot{Values: map[string]Value{"key": {Data: make([]byte, 5)}, "k": {}}}
	if s.Size() != 9 {
		t.Errorf("a size of %d", s.Size())
	}
}
