package secrets

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The names that etcd has of the generations of a secret are read as they were written,
// newest first; what no rotation wrote is left out, and so is what one that is alone revoked
// before it took its place.
func TestGenerationsOf(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.UnixMilli(1e12).Add(d) }
	first, one, two := Generation{Secret: []byte("0")}, Generation{Secret: []byte("1"), From: at(0)}, Generation{Secret: []byte("2"), From: at(time.Hour)}
	alone := func(d time.Duration) Generation { return Generation{Secret: []byte("a"), From: at(d), Alone: true} }
	twin := Generation{Secret: []byte("3"), From: at(0)}
	for _, c := range []struct {
		name string
		in   []Generation
		want []Generation
	}{
		{"newest first", []Generation{one, first, two}, []Generation{two, one, first}},
		{"of one time", []Generation{first, twin, alone(0)}, []Generation{twin, alone(0), first}},
		{"revoked before its time", []Generation{first, two, alone(time.Hour - Ahead + time.Millisecond)}, []Generation{alone(time.Hour - Ahead + time.Millisecond), first}},
		{"made after the revocation", []Generation{first, two, alone(time.Hour - Ahead)}, []Generation{two, alone(time.Hour - Ahead), first}},
		{"of the same time", []Generation{first, two, alone(time.Hour)}, []Generation{two, alone(time.Hour), first}},
		{"two that are alone", []Generation{first, alone(0), alone(time.Second)}, []Generation{alone(time.Second), alone(0), first}},
	} {
		names := map[string][]byte{"pages.x": nil, "pages.": nil, "pages.1x.alone": nil}
		for _, g := range c.in {
			names[g.name("pages")] = g.Secret
		}
		got := generationsOf("pages", names)
		if !slices.EqualFunc(got, c.want, func(a, b Generation) bool {
			return string(a.Secret) == string(b.Secret) && a.From.Equal(b.From) && a.Alone == b.Alone
		}) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if name := first.name("pages"); name != "pages" {
		t.Errorf("the first is called %q", name)
	}
	if name := alone(1500 * time.Millisecond).name("pages"); name != "pages.1000000001500.alone" {
		t.Errorf("one that is alone is called %q", name)
	}
	if signsFrom(first) != "the first" || !strings.HasPrefix(signsFrom(one), "from 2001-09-09T01:46:40Z") {
		t.Errorf("%q, %q", signsFrom(first), signsFrom(one))
	}
}

// A generation is valid until the next has been there for some time, or one that is alone
// comes.
func TestUntil(t *testing.T) {
	at := func(h int) time.Time { return time.Unix(1e9, 0).Add(time.Duration(h) * time.Hour) }
	all := []Generation{{From: at(9)}, {From: at(6), Alone: true}, {From: at(5)}, {From: at(1)}, {}}
	for i, want := range []time.Time{{}, at(11), at(6), at(6), at(3)} {
		if got := Until(all, i, 2*time.Hour); !got.Equal(want) {
			t.Errorf("generation %d is valid until %v, want %v", i, got, want)
		}
	}
}
