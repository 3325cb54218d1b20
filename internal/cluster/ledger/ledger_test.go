package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// edition is a version that has a sum by its number.
func edition(n int) Edition {
	return Edition{Version: fmt.Sprint(n), Sum: fmt.Sprintf("%064x", n), Bytes: 10}
}

// of returns a ledger with so many versions, the first of which serves.
func of(versions int) *Ledger {
	l := &Ledger{Format: format}
	for n := range versions {
		l.Publish(edition(n+1), func(Edition) Care { return Unneeded }, "ann")
	}
	l.Serve(edition(1), "ann")
	return l
}

// A ledger is read as it was written, up to its bounds; one that contradicts itself is not.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Ledger)
		want   string
	}{
		{"as it is", func(*Ledger) {}, ""},
		{"another format", func(l *Ledger) { l.Format = 2 }, "format 1"},
		{"32 versions", func(l *Ledger) { l.Versions = versions(32) }, ""},
		{"33 versions", func(l *Ledger) { l.Versions = versions(33) }, "format 1"},
		{"100 events", func(l *Ledger) { l.History = make([]Event, 100) }, ""},
		{"101 events", func(l *Ledger) { l.History = make([]Event, 101) }, "format 1"},
		{"32 served before", func(l *Ledger) { l.Before = make([]string, 32) }, ""},
		{"33 served before", func(l *Ledger) { l.Before = make([]string, 33) }, "format 1"},
		{"no name", func(l *Ledger) { l.Versions[1].Version = "" }, "is not the name"},
		{"no sum", func(l *Ledger) { l.Versions[1].Sum = "ff" }, "malformed"},
		{"1 byte", func(l *Ledger) { l.Versions[1].Bytes = 1 }, ""},
		{"no bytes", func(l *Ledger) { l.Versions[1].Bytes = 0 }, "malformed"},
		{"as many bytes as may be", func(l *Ledger) { l.Versions[1].Bytes = keyspace.MaxPartedBytes }, ""},
		{"one more", func(l *Ledger) { l.Versions[1].Bytes = keyspace.MaxPartedBytes + 1 }, "malformed"},
		{"a sum twice", func(l *Ledger) { l.Versions[1].Sum = l.Versions[0].Sum }, "there twice"},
		{"a name twice", func(l *Ledger) { l.Versions[1].Version = "1" }, "there twice"},
		{"it served before what is not there", func(l *Ledger) { l.Before = []string{edition(9).Sum} }, "it points at"},
		{"it serves what is not there", func(l *Ledger) { l.Serving = edition(9).Sum }, "it points at"},
	} {
		l := of(3)
		c.change(l)
		body, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(string(body))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if again := (*Ledger)(nil); err == nil {
			if body, err := got.Encode(); err != nil {
				t.Error(err)
			} else if again, err = Parse(body); err != nil || fmt.Sprint(again) != fmt.Sprint(got) {
				t.Errorf("%s: written and read again as %+v, %v", c.name, again, err)
			}
		}
	}
	body, _ := of(1).Encode()
	for bytes, good := range map[int]bool{maxLedgerBytes: true, maxLedgerBytes + 1: false} {
		if _, err := Parse(body + strings.Repeat(" ", bytes-len(body))); (err == nil) != good {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	for _, bad := range []string{"", "{", `{"format":1,"more":2}`} {
		if l, err := Parse(bad); err == nil || l != nil {
			t.Errorf("%q is read", bad)
		}
	}
	if k, h := ParseBoth(body, "{"); k == nil || h != nil {
		t.Errorf("of two bodies: %v, %v", k, h)
	}
}

func versions(n int) (all []Edition) {
	for i := range n {
		all = append(all, edition(i+1))
	}
	return all
}

// A ledger that is too long loses its oldest events, and no more of them than it must.
func TestEncodeLeavesOutTheOldest(t *testing.T) {
	l := of(1)
	l.History = nil
	for i := range 50 {
		l.History = append(l.History, Event{What: Served, Version: fmt.Sprint(i), Who: strings.Repeat("x", 4000)})
	}
	body, err := l.Encode()
	got, bad := Parse(body)
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	n := len(got.History)
	if len(body) > maxLedgerBytes || len(body) < maxLedgerBytes-5000 || got.History[n-1].Version != "49" || got.History[0].Version != fmt.Sprint(50-n) {
		t.Errorf("%d bytes, with the events from %s on", len(body), got.History[0].Version)
	}
	l.Before = []string{strings.Repeat("x", maxLedgerBytes)}
	if _, err := l.Encode(); err == nil {
		t.Error("one that is too long without a history is written")
	}
}

// Publication makes room: the version that is needed least goes first, the oldest of such;
// never the new one, what serves, what served before it, or what is spared.
func TestPublishMakesRoom(t *testing.T) {
	names := func(l *Ledger) (all string) {
		for _, e := range l.Versions {
			all += e.Version + " "
		}
		return all
	}
	l := of(MaxVersions)
	l.Serve(edition(2), "ann") // 1 served before it
	care := map[string]Care{"3": Spared, "4": Wanted, "5": Unneeded}
	needed := func(e Edition) Care { return care[e.Version] }
	want := names(l)
	for i, goes := range []string{"5", "6"} {
		l.Publish(edition(100+i), needed, "ann")
		want = strings.Replace(want, " "+goes+" ", " ", 1) + fmt.Sprint(100+i, " ")
		if got := names(l); got != want {
			t.Errorf("%s is to go, and the versions are %s", goes, got)
		}
	}
	if e := l.History[len(l.History)-1]; e.What != Dropped || e.Version != "6" || e.Who != "to make room" {
		t.Errorf("the history says %+v", e)
	}
	all := func(n Care) func(Edition) Care { return func(Edition) Care { return n } }
	l.Publish(edition(200), all(Spared), "ann")
	if len(l.Versions) != MaxVersions+1 {
		t.Errorf("%d versions where all are spared", len(l.Versions))
	}
	l.Publish(edition(201), all(Wanted), "ann")
	if got := names(l); len(l.Versions) != MaxVersions || strings.Contains(got, " 3 ") || !strings.HasPrefix(got, "1 2 ") || !strings.HasSuffix(got, "200 201 ") {
		t.Errorf("where all are wanted: %s", got)
	}

	l = of(MaxVersions)
	for _, n := range []int{2, 3} {
		l.Serve(edition(n), "ann")
	}
	if l.Publish(edition(300), all(Unneeded), "ann"); !strings.HasPrefix(names(l), "2 3 4 ") {
		t.Errorf("the first may go, and the versions are %s", names(l))
	}

	l = of(2)
	for i, bytes := range []int{maxKeptBytes - 20, 1} { // 20 bytes are there
		e := edition(10 + i)
		e.Bytes = bytes
		l.Publish(e, all(Unneeded), "ann")
		if got := names(l); (got == "1 2 10 ") != (i == 0) || i == 1 && got != "1 10 11 " {
			t.Errorf("%d bytes more: %s", bytes, got)
		}
	}
}

// What serves, and what a rollback goes back to.
func TestServeRollbackAndDrop(t *testing.T) {
	l := of(3)
	state := func(want string) {
		t.Helper()
		got := l.Serves() + " before"
		for _, sum := range l.Before {
			e, _ := l.Find(sum)
			got += " " + e.Version
		}
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	last := func(what Change, version, who string) {
		t.Helper()
		e := l.History[len(l.History)-1]
		if e.What != what || e.Version != version || e.Who != who || e.When.Location() != time.UTC || e.When.Nanosecond()%1e6 != 0 || time.Since(e.When) > time.Hour {
			t.Errorf("the history says %+v", e)
		}
	}
	state("version 1 before")
	l.Serve(edition(2), "bob")
	last(Served, "2", "bob")
	l.Serve(edition(3), "bob")
	state("version 3 before 1 2")
	l.Rollback("cat")
	last(RolledBack, "2", "cat")
	state("version 2 before 1")
	l.Serve(edition(3), "bob")
	l.Serve(edition(1), "bob")
	state("version 1 before 1 2 3")
	l.Drop(edition(3), "dan")
	last(Dropped, "3", "dan")
	state("version 1 before 1 2")
	l.Drop(edition(2), "dan") // 1 served before itself then
	state("version 1 before")
	l.Drop(edition(1), "dan")
	state("no version before")
	if len(l.Versions) != 0 {
		t.Errorf("%v are left", l.Versions)
	}
	l = of(2)
	for i := range 2 * maxServed {
		l.Serve(edition(1+i%2), "ann")
	}
	if len(l.Before) != maxServed || l.Before[maxServed-1] != edition(1).Sum {
		t.Errorf("%d served before", len(l.Before))
	}
	for range 2 * maxEvents {
		l.Note(Failed, edition(1), "ann")
	}
	if len(l.History) != maxEvents {
		t.Errorf("%d events", len(l.History))
	}
}

// One ledger continues another if it has the other's last change of what serves, and a later
// one.
func TestPrecedes(t *testing.T) {
	served := of(3)
	again := served.Clone()
	again.Note(Published, edition(4), "ann") // changes nothing of what serves
	later := again.Clone()
	later.Serve(edition(2), "ann")
	back := later.Clone()
	back.Rollback("ann")
	dropped, none := served.Clone(), &Ledger{}
	dropped.Drop(edition(2), "ann") // did not serve
	gone := served.Clone()
	gone.Drop(edition(1), "ann")
	for i, c := range []struct {
		l, o *Ledger
		want bool
	}{
		{served, served, false}, {served, again, false}, {served, later, true}, {again, later, true}, {later, served, false}, {later, back, true},
		{served, back, true}, {served, dropped, false}, {served, gone, true}, {none, later, false}, {served, none, false}, {gone, later, false},
	} {
		if got := c.l.Precedes(c.o); got != c.want {
			t.Errorf("%d: %v", i, got)
		}
	}
	e := served.History[0]
	for _, change := range []func(*Event){func(e *Event) { e.What = Failed }, func(e *Event) { e.Version = "x" }, func(e *Event) { e.Sum = "x" }, func(e *Event) { e.Who = "x" }, func(e *Event) { e.When = e.When.Add(1) }} {
		o := e
		if change(&o); e.Same(o) || !e.Same(e) {
			t.Errorf("%+v and %+v", e, o)
		}
	}
	if got := served.Lacks("ranker", &Ledger{Versions: []Edition{edition(2), edition(7)}}); !slices.Equal(got, []string{"ranker 7"}) {
		t.Errorf("it lacks %q", got)
	}
}

// What a ledger knows of versions that it has, and had.
func TestVersionsOfALedger(t *testing.T) {
	l := of(3)
	l.Drop(edition(3), "ann")
	l.Note(Published, Edition{Version: "named", Sum: "s"}, "ann")
	if l.NextNumber() != "4" || (&Ledger{}).NextNumber() != "1" || (&Ledger{Versions: versions(2)}).NextNumber() != "3" {
		t.Errorf("the next number is %s", l.NextNumber())
	}
	for version, want := range map[string]string{"2": edition(2).Sum, "3": edition(3).Sum, "named": "s", "x": ""} {
		if got := l.SumOf(version); got != want {
			t.Errorf("the sum of %s is %q", version, got)
		}
	}
	if e, ok := l.Find(edition(2).Sum); !ok || e != edition(2) {
		t.Errorf("%+v, %v", e, ok)
	}
	if e, ok := l.Find(edition(3).Sum); ok || e != (Edition{}) {
		t.Errorf("%+v, %v", e, ok)
	}
	c := l.Clone()
	c.Versions[0].Version, c.History[0].Who = "x", "x"
	if l.Versions[0].Version == "x" || l.History[0].Who == "x" {
		t.Error("a copy shares what it has")
	}
	first := Event{What: Published, Version: "1"}
	for i, c := range []struct {
		history []Event
		want    bool
	}{{nil, false}, {[]Event{first}, true}, {[]Event{{What: Published, Version: "2"}, first}, false}, {[]Event{{What: Served, Version: "1"}}, false}} {
		if Whole(c.history) != c.want {
			t.Errorf("%d: the history is whole: %v", i, !c.want)
		}
	}
}

// Names of versions, strict where they are made and less so where they are read; and sums.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", maxVersionLen)
	for name, want := range map[string]struct{ made, read bool }{
		"1": {true, true}, "v1.2_3+4-5": {true, true}, long: {true, true}, long + "x": {}, "": {}, "-v": {false, true}, ".": {false, true},
		"é": {false, true}, "a b": {}, "a\x00": {}, "\xff": {}, "a\u2028": {},
	} {
		if CheckNewVersion(name) == nil != want.made || CheckVersion(name) == nil != want.read {
			t.Errorf("%q: made: %v, read: %v", name, CheckNewVersion(name), CheckVersion(name))
		}
	}
	for s, want := range map[string]bool{edition(1).Sum: true, edition(1).Sum[1:]: false, edition(1).Sum + "0": false, strings.Repeat("F", 64): false, strings.Repeat("f", 64): true} {
		if IsSum(s) != want {
			t.Errorf("%q is a sum: %v", s, !want)
		}
	}
}
