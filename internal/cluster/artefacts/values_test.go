package artefacts

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

func sum(n int) string { return fmt.Sprintf("%064x", n) }

// versions is a ledger whose versions have served one after the other.
func versions(serve ...int) *ledger.Ledger {
	l := &ledger.Ledger{}
	for _, n := range serve {
		e := ledger.Edition{Version: fmt.Sprint(n), Sum: sum(n), Bytes: 10}
		if _, has := l.Find(e.Sum); !has {
			l.Publish(e, func(ledger.Edition) ledger.Care { return ledger.Spared }, "ann")
		}
		l.Serve(e, "ann")
	}
	return l
}

// What a watcher says of its ledgers, and by which of them its process goes.
func TestLedgersOfAKind(t *testing.T) {
	v := func(name string, n int) Version { return Version{name, fmt.Sprint(n), sum(n)} }
	dropped := versions(1)
	dropped.Drop(dropped.Versions[0], "ann")
	bad := versions(4)
	bad.Bad, bad.At = io.EOF, 9
	a := &Kind{kind: "models", docs: documents.Of(nil, "models"), state: keyspace.NewLatest(map[string]*ledger.Ledger{"m": versions(1, 2, 1, 3), "gone": dropped, "bad": bad})}
	a.heard.Store(7)
	if got := a.Serving(); !maps.Equal(got, map[string]Version{"m": v("m", 3), "bad": v("bad", 4)}) {
		t.Errorf("serve: %v", got)
	}
	if got, ok := a.Served("m"); !ok || got != v("m", 3) || got.String() != "m 3" {
		t.Errorf("m serves %v, %v", got, ok)
	}
	for _, name := range []string{"gone", "none"} {
		if _, ok := a.Served(name); ok {
			t.Errorf("%s serves", name)
		}
	}
	if got := a.Before("m"); !slices.Equal(got, []Version{v("m", 1), v("m", 2)}) || a.Before("none") != nil {
		t.Errorf("before: %v", got)
	}
	if !a.Has(v("m", 2)) || a.Has(v("m", 4)) || a.Has(v("none", 1)) || a.Has(Version{"m", "x", sum(2)}) {
		t.Error("it has other versions")
	}
	if !slices.Equal(a.Names(), []string{"bad", "m"}) || len(a.All()["m"]) != 3 || len(a.Histories()["gone"]) != 3 {
		t.Errorf("names %q, all %v", a.Names(), a.All())
	}
	if a.Gone("gone").IsZero() || !a.Gone("m").IsZero() || !a.Gone("none").IsZero() {
		t.Error("others are gone")
	}
	if a.Revision() != 9 || a.Fault() != nil {
		t.Errorf("revision %d, %v", a.Revision(), a.Fault())
	}
	for _, c := range []struct {
		used map[string]Version
		not  []string
	}{
		{nil, []string{"bad"}}, {map[string]Version{"m": v("m", 3), "bad": v("bad", 4)}, []string{"bad"}}, {map[string]Version{"m": v("m", 2)}, []string{"bad", "m"}},
		{map[string]Version{}, []string{"bad", "m"}}, {map[string]Version{"m": v("m", 3), "gone": v("gone", 1)}, []string{"bad", "gone"}}, {map[string]Version{"m": v("m", 3), "none": v("none", 1)}, []string{"bad", "none"}},
	} {
		a.used.versions = c.used
		if kind, by := a.GoesBy(); kind != "models" || by.Revision != 9 || !slices.Equal(by.Not, c.not) {
			t.Errorf("uses %v: %s, %+v, want %q", c.used, kind, by, c.not)
		}
	}
	if !a.used.has(sum(3)) || a.used.has(sum(2)) {
		t.Error("others are used")
	}
	ledgers, _ := a.state.Get()
	a.state.Set(ledgers, keyspace.ErrGone)
	if _, by := a.GoesBy(); by.Revision != 0 || by.Not != nil {
		t.Errorf("of a lost etcd: %+v", by)
	}
}

// Why a version may not be dropped, and what there is to roll back to.
func TestDroppable(t *testing.T) {
	a := &Kind{kind: "models", state: keyspace.NewLatest(map[string]*ledger.Ledger{"m": {}})}
	l := versions(1, 2)
	users := func(by ...string) func(Version, bool) []string { return func(Version, bool) []string { return by } }
	for _, c := range []struct {
		l    *ledger.Ledger
		v    Version
		uses func(Version, bool) []string
		want error
		say  string
	}{
		{l, Version{"m", "1", sum(1)}, nil, nil, ""}, {l, Version{"m", "1", sum(1)}, users(), nil, ""}, {l, Version{"m", "1", sum(1)}, users("a", "b"), ErrInUse, "model m 1 is in use by a, b"},
		{l, Version{"m", "2", sum(2)}, nil, ErrInUse, "model m 2 serves"}, {versions(2), Version{"m", "2", sum(2)}, nil, nil, ""},
		{l, Version{"m", "1", sum(9)}, nil, ErrNoVersion, `model m has no version "1" with these bytes`}, {l, Version{"m", "x", sum(1)}, nil, ErrNoVersion, ""}, {l, Version{"other", "x", sum(1)}, nil, ErrNoVersion, `there is no model "other"`},
	} {
		e, err := a.droppable(c.l, c.v, c.uses)
		if !errors.Is(err, c.want) || c.want == nil && (err != nil || e.Bytes != 10) || err != nil && !strings.Contains(err.Error(), c.say) {
			t.Errorf("%v: %v", c.v, err)
		}
	}
	if v, err := a.before(l, "m"); err != nil || v != (Version{"m", "1", sum(1)}) {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := a.before(versions(1), "m"); !errors.Is(err, ErrNothingBefore) || !errors.Is(err, ErrNoVersion) {
		t.Errorf("%v", err)
	}
	for is, want := range map[string]string{"": "has the bytes of version 7", sum(1): "has the bytes of version 7", sum(9): "a version never changes"} {
		if err := a.otherBytes(Version{"m", "1", sum(1)}, is, ledger.Edition{Version: "7"}); !errors.Is(err, ErrOtherBytes) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p := PartsThere{"m/" + sum(1): 2}
	for bytes, want := range map[int]bool{1: true, 2 * keyspace.MaxDocumentBytes: true, 2*keyspace.MaxDocumentBytes + 1: false} {
		if p.Hold("m", ledger.Edition{Sum: sum(1), Bytes: bytes}) != want || p.Hold("n", ledger.Edition{Sum: sum(1), Bytes: bytes}) {
			t.Errorf("%d bytes are held: %v", bytes, !want)
		}
	}
	if !Unsteady(fmt.Errorf("x: %w", errUnsteady)) || Unsteady(io.EOF) || Unsteady(cluster.ErrAway) {
		t.Error("what is unsteady is told otherwise")
	}
}

// Lists of condemned versions are read if all in them are versions, and changed as a whole.
func TestCondemnedLists(t *testing.T) {
	one, two := Condemnation{Version: "1", Sum: sum(1)}, Condemnation{Version: "2", Sum: sum(2)}
	both, err := editing(func(all []Condemnation) []Condemnation { return append(all, one, two) })("")
	if err != nil {
		t.Fatal(err)
	}
	left, err := editing(without(Version{"m", "1", sum(1)}))(both)
	if all, bad := parseCondemned(left); err != nil || bad != nil || len(all) != 1 || all[0].Version != "2" {
		t.Errorf("%s, %v", left, err)
	}
	if left, err = editing(without(Version{"m", "2", sum(2)}))(left); err != nil || left != "" {
		t.Errorf("an empty list is %q, %v", left, err)
	}
	for _, bad := range []string{"{", `[{"version":"1","sum":"x"}]`, `[{"version":"","sum":"` + sum(1) + `"}]`} {
		if _, err := parseCondemned(bad); err == nil {
			t.Errorf("%s is read", bad)
		}
		if _, err := editing(without(Version{}))(bad); err == nil {
			t.Errorf("%s is changed", bad)
		}
	}
}
