package feeds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// anyFeed finds nothing wrong with a definition.
func anyFeed(context.Context, Feed) (bool, error) { return true, nil }

func openBook(t *testing.T, d *feedstest.Definitions, try tries, fixed ...Feed) *Book {
	b := NewBook(append(BuiltIn(), fixed...), d, try, slog.New(slog.DiscardHandler))
	b.Start()
	t.Cleanup(b.Close)
	return b
}

// settled returns the feeds once all changes until now are taken over.
func settled(b *Book) Set {
	b.defs.(*feedstest.Definitions).Settle()
	return b.Current()
}

// servedOf returns the names of the feeds that answer.
func servedOf(all Set) (names []string) {
	for name, f := range all {
		if !f.refused {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestDefinedFeeds(t *testing.T) {
	d := feedstest.New()
	book := openBook(t, d, anyFeed, Feed{Name: "file", Model: "m"})
	served := func(want ...string) {
		t.Helper()
		if got := servedOf(settled(book)); !slices.Equal(got, want) {
			t.Errorf("serves %v, want %v", got, want)
		}
	}
	served("file", "home", "recent")

	d.Serve("jobs", 5, "name: jobs\nmodel: j1")
	d.Serve("file", 6, "name: file\nmodel: m2")
	served("file", "home", "jobs", "recent")
	if f := book.Current()["file"]; f.Model != "m2" || f.Version != 6 || f.Limit != DefaultLimit {
		t.Errorf("file is %+v", f)
	}

	// Bad ones change nothing: the last good one stays, a new one is not there.
	before := book.Current()
	d.Serve("jobs", 7, "name: jobs\nmodle: x")
	d.Serve("other", 1, "name: another\nmodel: x")
	served("file", "home", "jobs", "recent")
	if f := book.Current()["jobs"]; f.Model != "j1" || f.Version != 5 {
		t.Errorf("jobs is %+v", f)
	}
	if before["jobs"].Version != 5 || len(before) != 4 {
		t.Error("a set that was handed out has changed")
	}
	if got := feedstest.FaultsOf(t, book.bad); !slices.Equal(got, []string{"jobs", "other"}) {
		t.Errorf("faults are told of %v", got)
	}

	// One that is dropped uncovers what came with the broker.
	d.Drop("file")
	d.Drop("other")
	d.Serve("jobs", 8, "name: jobs\nmodel: j8")
	served("file", "home", "jobs", "recent")
	if f := book.Current()["file"]; f.Model != "m" || f.Version != 0 {
		t.Errorf("file is %+v", f)
	}
	if got := feedstest.FaultsOf(t, book.bad); len(got) > 0 {
		t.Errorf("faults are still told of %v", got)
	}
}

// Whether a feed is private is not known where a broker that has no last good definition
// cannot read the one that serves: it is taken for private, so that what shows everything is
// not served, until somebody can read it.
func TestWhatCannotBeReadIsTakenForPrivate(t *testing.T) {
	d := feedstest.New()
	d.Read = func(v artefacts.Version) error {
		if v.Name == "gone" {
			return errors.New("its bytes are gone")
		}
		return nil
	}
	d.Serve("gone", 1, "name: gone\nmodel: m")
	d.Serve("malformed", 1, "name: malformed\nmodel: [")
	d.SetUnread("later")
	book := openBook(t, d, anyFeed)
	closed := func(want ...string) {
		t.Helper()
		all := settled(book)
		var got []string
		for name, f := range all {
			if f.refused && f.Forbids().Recent {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if faults := feedstest.FaultsOf(t, book.bad); !slices.Equal(got, want) || !slices.Equal(faults, want) {
			t.Errorf("%v are closed and %v told, want %v", got, faults, want)
		}
	}
	closed("gone", "later", "malformed")
	d.SetUnread("good") // the last good one of which serves
	d.Serve("good", 1, "name: good\nmodel: m")
	if all := settled(book); all["good"].refused {
		t.Errorf("what was read before is %+v", all["good"])
	}
	if faults := feedstest.FaultsOf(t, book.bad); !slices.Contains(faults, "good") {
		t.Errorf("%v are told", faults)
	}
	d.Drop("good")
	d.SetUnread()
	d.Serve("malformed", 2, "name: malformed\nmodel: m")
	d.Drop("gone")
	closed()
	if got := servedOf(book.Current()); !slices.Equal(got, []string{"home", "malformed", "recent"}) {
		t.Errorf("serves %v", got)
	}
}

// TestABadDefinitionKeepsTheLastGoodAcrossRestarts: a broker that starts while
// a bad version serves takes the newest before it that is good.
func TestABadDefinitionKeepsTheLastGoodAcrossRestarts(t *testing.T) {
	d := feedstest.New()
	d.Serve("jobs", 1, "name: jobs\nmodel: j1")
	d.Serve("jobs", 2, "name: jobs\nmodel: j2\nfilter: bad")
	d.Serve("jobs", 3, "name: jobs\nmodel: [")
	refuse := func(_ context.Context, f Feed) (bool, error) {
		if f.Filter != "" {
			return true, errors.New("no filter")
		}
		return true, nil
	}
	book := openBook(t, d, refuse)
	if f := settled(book)["jobs"]; f.Version != 1 {
		t.Errorf("serves %+v", f)
	}
	if got := feedstest.FaultsOf(t, book.bad); !slices.Equal(got, []string{"jobs"}) {
		t.Errorf("faults are told of %v", got)
	}
}

// TestWhatIsAwayIsWaitedForOnce: a broker that starts while etcd or all index
// nodes hang does not wait for them once a definition.
// A broker that is restarted while a version cannot be read serves what it served,
// be that older than the versions before it or dropped meanwhile.
func TestARestartServesTheLastGoodDefinition(t *testing.T) {
	d := feedstest.New()
	d.Serve("jobs", 1, "name: jobs\nmodel: j1")
	book := openBook(t, d, anyFeed)
	settled(book)
	d.Mu.Lock()
	d.Read = func(artefacts.Version) error { return errors.New("no etcd") }
	d.Versions["jobs"] = nil
	d.Mu.Unlock()
	d.Serve("jobs", 7, "name: jobs\nmodel: j7")
	settled(book)
	book.Close()
	for range 2 {
		book := openBook(t, d, anyFeed)
		if f := book.Current()["jobs"]; f.Model != "j1" || f.Version != 1 || len(book.faults) != 1 {
			t.Errorf("jobs is %+v, faults %v", f, book.faults)
		}
		book.Close()
	}
}

func TestWhatIsAwayIsWaitedForOnce(t *testing.T) {
	d := feedstest.New()
	for i := range 100 {
		name := fmt.Sprintf("f%d", i)
		d.Serve(name, 1, "name: "+name+"\nmodel: m\nfilter: record.a")
	}
	asked := 0
	book := NewBook(BuiltIn(), d, func(context.Context, Feed) (bool, error) { asked++; return false, nil }, slog.New(slog.DiscardHandler))
	if book.take(t.Context()); asked != 1 || len(book.Current()) != 102 {
		t.Errorf("nodes were asked %d times, for %d feeds", asked, len(book.Current()))
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		d.Read = func(v artefacts.Version) error {
			if v.Name != "f7" {
				time.Sleep(definitionTime / 2)
			}
			return errors.New("etcd is away")
		}
		book := NewBook(BuiltIn(), d, anyFeed, slog.New(slog.DiscardHandler))
		if book.take(t.Context()); time.Since(began) != definitionTime || len(servedOf(book.Current())) != 2 {
			t.Errorf("it took %v, for %d feeds", time.Since(began), len(servedOf(book.Current())))
		}
		// One alone that can't be read holds up nobody.
		d.Read = func(v artefacts.Version) error {
			if v.Name == "f0" {
				return errors.New("its bytes are lost")
			}
			return nil
		}
		if book.take(t.Context()); len(servedOf(book.Current())) != 101 {
			t.Errorf("%d feeds", len(servedOf(book.Current())))
		}
	})
}

// TestUpdatesOfDefinitionsCoalesce (input 83): a thousand versions that come
// while one is read cost one more read.
func TestUpdatesOfDefinitionsCoalesce(t *testing.T) {
	d := feedstest.New()
	book := openBook(t, d, anyFeed)
	settled(book)
	begun, free := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.Mu.Lock()
	d.Read = func(artefacts.Version) error {
		once.Do(func() {
			close(begun)
			<-free
		})
		return nil
	}
	d.Mu.Unlock()
	d.Serve("jobs", 1, "name: jobs\nmodel: m1")
	<-begun
	for i := range 1000 {
		d.Serve("jobs", i+2, fmt.Sprintf("name: jobs\nmodel: m%d", i+2))
	}
	close(free)
	if f := settled(book)["jobs"]; f.Version != 1001 {
		t.Errorf("serves version %d", f.Version)
	}
	if d.Reads > 2 {
		t.Errorf("%d versions are read", d.Reads)
	}
}

// TestDefinitionsAreBounded: a broker takes no more than its bound, and those
// that it has stay.
func TestDefinitionsAreBounded(t *testing.T) {
	d := feedstest.New()
	d.Serve("z", 1, "name: z\nmodel: m")
	book := openBook(t, d, anyFeed)
	for i := range maxDefinitions + 50 {
		name := fmt.Sprintf("f%04d", i)
		d.Serve(name, 1, "name: "+name+"\nmodel: m")
	}
	all := settled(book)
	if n := len(servedOf(all)); all["z"].refused || n > maxDefinitions+len(book.fixed)+1 {
		t.Errorf("%d feeds, z is left out: %t", n, all["z"].refused)
	}
	if f := all["f1049"]; !f.refused || !f.Private {
		t.Errorf("of one that nobody has read it is not known whether it is private: %+v", f)
	}
}

// A feed counts once among those that a broker takes, though its definition has a
// fault and the last good one serves.
func TestADefinitionWithAFaultCountsOnce(t *testing.T) {
	d := feedstest.New()
	for i := range maxDefinitions/2 + 1 {
		name := fmt.Sprintf("f%04d", i)
		d.Serve(name, 1, "name: "+name+"\nmodel: m")
	}
	book := openBook(t, d, anyFeed)
	for i := range maxDefinitions/2 + 1 {
		name := fmt.Sprintf("f%04d", i)
		d.Serve(name, 2, "name: "+name+"\nmodle: m")
	}
	settled(book)
	d.Serve("z", 1, "name: z\nmodel: m")
	if f, taken := settled(book)["z"]; !taken || f.refused {
		t.Error("one more is left out")
	}
}
