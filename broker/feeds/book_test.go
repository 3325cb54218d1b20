package feeds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/secrets"
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
	book := openBook(t, d, anyFeed, Feed{Name: "file", Model: "m", Limit: 7})
	served := func(want ...string) {
		t.Helper()
		if got := servedOf(settled(book)); !slices.Equal(got, want) {
			t.Errorf("serves %v, want %v", got, want)
		}
	}
	served("file", "home", "recent")

	if f := book.Current()["file"]; f.Limit != 7 {
		t.Errorf("file is %+v", f)
	}
	d.Serve("jobs", 5, "name: jobs\nmodel: j1\nlimit: 8")
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
	if f := book.Current()["jobs"]; f.Model != "j1" || f.Version != 5 || f.Limit != 8 {
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
	var told strings.Builder
	book := NewBook(BuiltIn(), d, anyFeed, slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelError})))
	book.take(t.Context())
	for i := range maxDefinitions + 50 {
		name := fmt.Sprintf("f%04d", i)
		d.Serve(name, 1, "name: "+name+"\nmodel: m")
	}
	book.take(t.Context())
	all := book.Current()
	if n := len(servedOf(all)); all["z"].refused || n != maxDefinitions+len(book.fixed)+1 || !strings.Contains(told.String(), "left_out=50") {
		t.Errorf("%d feeds, z is left out: %t; %s", n, all["z"].refused, told.String())
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

// A page goes by the definition of its first page, as far as that is there and what serves
// now allows it.
func TestPagesGoByTheirDefinition(t *testing.T) {
	keys := pagetoken.NewRing(func() []secrets.Generation { return []secrets.Generation{{Secret: []byte("0123456789abcdef")}} }).Signing(time.Now())
	d := feedstest.New()
	d.Serve("jobs", 1, "name: jobs\nmodel: j1")
	d.Serve("other", 1, "name: other\nmodel: o1")
	book := openBook(t, d, anyFeed, Feed{Name: "file", Model: "m", Forbid: Forbid{Filter: true}})
	first := settled(book)
	d.Serve("jobs", 2, "name: jobs\nmodel: j2\nforbid: {explain: true}")
	d.Serve("file", 3, "name: file\nmodel: m2\nforbid: {model: true}")
	d.Serve("closed", 1, "name: closed\nmodel: c1\nprivate: true")
	d.Serve("hidden", 1, "name: hidden\nmodel: h1\nprivate: true")
	now := settled(book)
	d.Serve("hidden", 2, "name: hidden\nmodel: h2\nprivate: true")
	later := settled(book)
	of := func(f Feed) *pagetoken.Cursor {
		return &pagetoken.Cursor{Keys: keys, Feed: f.edition.Version, FeedSum: keys.Definition(f.edition.Sum, f.Private)}
	}
	const another, gone = "it is of another feed than ", "no longer there"
	d.Read = func(artefacts.Version) error { return errors.New("what was read once is not read again") }
	for name, c := range map[string]struct {
		now    Feed
		cursor *pagetoken.Cursor
		model  string // "": refused
		why    string
	}{
		"what serves":                      {now["jobs"], of(now["jobs"]), "j2", ""},
		"what served":                      {now["jobs"], of(first["jobs"]), "j1", ""},
		"what came with the broker":        {now["file"], of(first["file"]), "m", ""},
		"what serves and is built in":      {now["home"], of(now["home"]), "home", ""},
		"what serves and is private":       {later["hidden"], of(later["hidden"]), "h2", ""},
		"what served and is private":       {later["hidden"], of(now["hidden"]), "", "feed hidden is private"},
		"the plain sum of what is private": {later["hidden"], &pagetoken.Cursor{Keys: keys, Feed: "2", FeedSum: later["hidden"].edition.Sum}, "", "feed hidden is private"},
		"another version of the same sum":  {now["jobs"], &pagetoken.Cursor{Keys: keys, Feed: "7", FeedSum: now["jobs"].edition.Sum}, "", gone},
		"another feed's":                   {now["jobs"], of(now["other"]), "", another + "jobs"},
		"a built-in feed's":                {now["jobs"], of(now["home"]), "", another + "jobs"},
		"a private feed's":                 {now["jobs"], of(now["closed"]), "", gone},
		"nobody's":                         {now["jobs"], &pagetoken.Cursor{Keys: keys, Feed: "1", FeedSum: "?"}, "", gone},
		"nobody's of those built in":       {now["home"], &pagetoken.Cursor{Keys: keys, FeedSum: "?"}, "", gone},
		"a version of a built-in feed":     {now["jobs"], &pagetoken.Cursor{Keys: keys, Feed: "7", FeedSum: now["home"].edition.Sum}, "", gone},
	} {
		f, err := book.Edition(c.now, c.cursor)
		if f.Model != c.model || (err == nil) != (c.model != "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		if no, is := c.now.Forbids(), f.Forbids(); c.model != "" && is.Or(no) != is {
			t.Errorf("%s: it forbids %+v, and what serves %+v", name, is, no)
		}
	}
	if f, err := book.Edition(now["file"], of(first["file"])); err != nil || !f.Forbid.Filter || !f.Forbid.Model {
		t.Errorf("%+v, %v", f, err)
	}
	alone := NewBook(BuiltIn(), nil, anyFeed, slog.New(slog.DiscardHandler))
	if _, err := alone.Edition(now["home"], of(now["jobs"])); err == nil || !strings.Contains(err.Error(), gone) || len(alone.Current()) != 2 || alone.Defined("jobs") {
		t.Errorf("without a cluster: %v, of %v", err, alone.Current())
	}
}

// A definition that a page needs and nobody has read yet is read once for all that wait, and
// not waited for longer than editionWait.
func TestPagesReadTheirDefinition(t *testing.T) {
	keys := pagetoken.NewRing(func() []secrets.Generation { return []secrets.Generation{{Secret: []byte("0123456789abcdef")}} }).Signing(time.Now())
	synctest.Test(t, func(t *testing.T) {
		d := feedstest.New()
		d.Serve("jobs", 1, "name: jobs\nmodel: j1")
		d.Serve("jobs", 2, "name: jobs\nmodel: j2")
		book := openBook(t, d, anyFeed)
		now, page := settled(book)["jobs"], &pagetoken.Cursor{Keys: keys, Feed: "1", FeedSum: "name: jobs\nmodel: j1"}
		refused := func(why string) {
			t.Helper()
			var e *millrace.Error
			if f, err := book.Edition(now, page); !errors.As(err, &e) || e.Reason != millrace.ReasonUnavailable || e.Field != "page_token" || !strings.Contains(err.Error(), why) {
				t.Errorf("%+v, %v", f, err)
			}
		}
		d.Read = func(artefacts.Version) error { return errors.New("etcd is away") }
		refused("etcd is away")
		free := make(chan struct{})
		d.Read = func(artefacts.Version) error { <-free; return nil }
		before, began := d.Reads, time.Now()
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() { refused("not read within 2s") })
		}
		waiting.Wait()
		if took := time.Since(began); took != editionWait {
			t.Errorf("pages waited %v", took)
		}
		close(free)
		synctest.Wait()
		for range 2 {
			if f, err := book.Edition(now, page); err != nil || f.Model != "j1" || f.Limit != DefaultLimit || f.Version != 1 {
				t.Errorf("%+v, %v", f, err)
			}
		}
		if n := d.Reads - before; n != 1 {
			t.Errorf("it was read %d times", n)
		}
		const bad = "name: jobs\nmodel: 1/2"
		d.Serve("jobs", 3, bad)
		page.Feed, page.FeedSum = "3", bad
		refused("is not the name of a model")
		settled(book)
		// What a broker served before a restart makes pages after it, without being read.
		book.Close()
		d.Serve("jobs", 4, "name: jobs\nmodel: j4")
		d.Read = func(v artefacts.Version) error {
			if v.Version == "2" {
				return errors.New("its bytes are gone")
			}
			return nil
		}
		book = openBook(t, d, anyFeed)
		page.Feed, page.FeedSum = "2", "name: jobs\nmodel: j2"
		if f, err := book.Edition(settled(book)["jobs"], page); err != nil || f.Model != "j2" {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

// Of the definitions that are kept, the one that was read longest ago goes first.
func TestEditionsAreBounded(t *testing.T) {
	var e editions
	of := func(i int) artefacts.Version { return artefacts.Version{Name: "a", Version: fmt.Sprint(i)} }
	for i := range maxEditions {
		e.keep(Feed{edition: of(i)})
	}
	for range maxEditions {
		e.keep(Feed{edition: of(0)})
	}
	e.keep(Feed{edition: of(maxEditions)})
	for i := range maxEditions + 1 {
		if _, kept := e.find(of(i)); kept != (i != 1) {
			t.Errorf("%d is kept: %t", i, kept)
		}
	}
}

// A definition that is not taken over is tried again after a while, without a change, and
// never again once it is.
func TestFaultsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := feedstest.New()
		d.Serve("jobs", 1, "name: jobs\nmodel: j1")
		var tried atomic.Int32
		var has, ended atomic.Bool
		book := openBook(t, d, func(ctx context.Context, f Feed) (bool, error) {
			tried.Add(1)
			if f.Model == "slow" {
				<-ctx.Done()
				ended.Store(true)
			}
			if has.Load() {
				return true, nil
			}
			return true, errors.New("no such model yet")
		})
		time.Sleep(2*definitionRetry + time.Second)
		synctest.Wait()
		if tried.Load() != 3 || len(book.Current()) != 2 {
			t.Errorf("it was tried %d times, and there are %v", tried.Load(), book.Current())
		}
		has.Store(true)
		time.Sleep(10 * definitionRetry)
		synctest.Wait()
		if tried.Load() != 4 || len(servedOf(book.Current())) != 3 {
			t.Errorf("it was tried %d times, and %v serve", tried.Load(), servedOf(book.Current()))
		}
		if !book.Defined("jobs") || !book.Defined("home") || book.Defined("none") {
			t.Error("what is defined is not known")
		}
		d.Serve("jobs", 2, "name: jobs\nmodel: slow")
		synctest.Wait()
		if book.Close(); !ended.Load() {
			t.Error("it is closed while a definition is tried")
		}
	})
}

// What changes is logged once, with the feed and what it is about.
func TestWhatIsToldOfDefinitions(t *testing.T) {
	var told strings.Builder
	d := feedstest.New()
	book := NewBook([]Feed{{Name: "file", Model: "m"}}, d, anyFeed, slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "err" {
			return slog.Attr{}
		}
		return a
	}})))
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, ""},
		{func() { d.Serve("jobs", 1, "name: jobs\nmodel: j1") }, "level=INFO msg=\"feed defined\" feed=jobs version=1\n"},
		{func() { d.Serve("jobs", 2, "nme: jobs") }, "level=ERROR msg=\"a feed definition is not taken over\" feed=jobs last_good=1\n"},
		{func() {}, ""},
		{func() { d.Serve("jobs", 3, "name: j") }, "level=ERROR msg=\"a feed definition is not taken over\" feed=jobs last_good=1\n"},
		{func() { d.Serve("file", 1, "name: file\nmodel: m2") }, "level=INFO msg=\"feed defined\" feed=file version=1\nlevel=WARN msg=\"the definition of the cluster covers a feed that came with the broker\" feed=file version=1\n"},
		{func() { d.Serve("jobs", 4, "name: jobs\nmodel: j4") }, "level=INFO msg=\"feed defined\" feed=jobs version=4\n"},
		{func() { d.Drop("jobs"); d.Drop("file") }, ""},
	} {
		told.Reset()
		c.change()
		if book.take(t.Context()); told.String() != c.want {
			t.Errorf("got\n%swant\n%s", told.String(), c.want)
		}
	}
	if got := feedstest.FaultsOf(t, book.bad); len(got) > 0 {
		t.Errorf("faults are told of %v", got)
	}
	// A pass that was ended changes nothing.
	d.Serve("jobs", 5, "name: jobs\nmodel: j5")
	ended, end := context.WithCancel(t.Context())
	end()
	if book.take(ended); len(book.Current()) != 1 {
		t.Errorf("%v serve", book.Current())
	}
}

// What is known of a definition that is not taken over holds: one that forbids nothing closes
// nothing, and one whose newest version nobody can read is taken for private.
func TestWhatABadDefinitionCloses(t *testing.T) {
	for name, c := range map[string]struct {
		versions []string
		want     Forbid
		there    bool
	}{
		"it forbids nothing":      {[]string{"filter: x"}, Forbid{}, false},
		"it forbids one thing":    {[]string{"filter: x\nforbid: {model: true}"}, Forbid{Model: true}, true},
		"it is private":           {[]string{"filter: x\nprivate: true"}, Forbid{Explain: true, Why: true, Window: true, Recent: true}, true},
		"it forbids no more":      {[]string{"filter: x\nforbid: {model: true}", "filter: x"}, Forbid{}, false},
		"nobody can read it":      {[]string{"limit: x"}, Forbid{Explain: true, Why: true, Window: true, Recent: true}, true},
		"nobody can read the new": {[]string{"filter: x", "limit: x"}, Forbid{Explain: true, Why: true, Window: true, Recent: true}, true},
	} {
		d := feedstest.New()
		for i, body := range c.versions {
			d.Serve("a", i+1, "name: a\nmodel: m\n"+body)
		}
		book := openBook(t, d, func(context.Context, Feed) (bool, error) { return true, errors.New("no filter") })
		f, there := settled(book)["a"]
		if there != c.there || f.refused != c.there || f.Forbids() != c.want {
			t.Errorf("%s: %+v, %t", name, f, there)
		}
	}
}

// Where the newest good version is too old, none serves; and what names no number is none.
func TestOlderVersionsAreFew(t *testing.T) {
	for bad, want := range map[int]int64{maxOlder: 1, maxOlder + 1: 0} {
		d := feedstest.New()
		d.Serve("jobs", 1, "name: jobs\nmodel: j1")
		for i := range bad {
			d.Serve("jobs", 2+i, fmt.Sprintf("name: jobs\nmodel: [%d", i))
		}
		if f := settled(openBook(t, d, anyFeed))["jobs"]; f.Version != want {
			t.Errorf("after %d bad versions %+v serves", bad, f)
		}
	}
	for body, want := range map[string]string{
		"name: a\nmodel: b": `version "x" of a is no number`, "name: b\nmodel: b": `the definition under "a" is named "b"`, "name: a\nmodel: 1/2": "is not the name of a model",
	} {
		if f, err := parseVersion(artefacts.Version{Name: "a", Version: "x"}, []byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", body, f, err)
		}
	}
}
