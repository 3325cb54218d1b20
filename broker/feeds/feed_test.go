package feeds

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
)

func TestParse(t *testing.T) {
	got, err := Parse([]byte(`
name: jobs
types: [job, share]
filter: record.language == viewer.language
window: 168h
model: jobs-v2
distinct_objects: true
cap_per_entity: 2
limit: 50
spacing: {entity: 2, type: 1}
shadow: [jobs-v3, recency]
shadow_share: 0.25
`))
	want := Feed{
		Name: "jobs", Types: []millrace.ContentType{"job", "share"}, Filter: "record.language == viewer.language", Window: 168 * time.Hour,
		Model: "jobs-v2", DistinctObjects: true, CapPerEntity: 2, Limit: 50, Spacing: Spacing{Entity: 2, Type: 1},
		Shadow: []string{"jobs-v3", "recency"}, ShadowShare: 0.25,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestBadFeeds(t *testing.T) {
	for file, want := range map[string][]string{
		"name: a\nmodel: b\nwindw: 1h": {"line 3, column 1: windw: there is no such field"},
		"name: a\nmodel: b\nname: c":   {"line 3, column 1: name: it stands twice"},
		"name: a\nmodel: b\nlimit: x":  {"line 3, column 8: limit: this is a text"},
		"":                             {"name: want a letter"},
		"name: a\nmodel: b\ncap_per_entity: 2147483648\ntypes: [" + strings.Join(manyTypes(101), ",") + "]": {"types: 101 of them", "cap_per_entity: 2147483648"},
		"name: a\nmodel: b\n" + strings.Repeat("#", 64<<10):                                                 {"more than 65536"},
		"name: a\nmodel: b\nshadow: [b, c, c, \"\", d, e, f, g, h]": {
			"shadow[0]: \"b\" is there twice", "shadow[2]: \"c\" is there twice", "shadow[3]: \"\" is not the name", "shadow: 9 models, more than 8",
		},
		"name: a\nmodel: b\nshadow: [c]\nshadow_share: 1.5":  {"shadow_share: 1.5 is not between 0 and 1"},
		"name: a\nmodel: b\nshadow: [c]\nshadow_share: .nan": {"shadow_share"},
		"name: a\nmodel: b\nshadow_share: 0.5":               {"shadow_share: there are no models in shadow"},
		"name: 1/2\nmodel: \"\"\ntypes: [post, post, \"\"]\nfilter: \"\\0\"\nwindow: -1h\ncap_per_entity: -1\nlimit: 1001\nspacing: {entity: -1, type: 11}": {
			"name: want", "model: \"\"", "types[1]: \"post\" is there twice", "types[2]: it is empty", "filter: a NUL", "window: -1h", "cap_per_entity: -1", "limit: 1001", "spacing.entity: -1", "spacing.type: 11",
		},
	} {
		_, err := Parse([]byte(file))
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%q: want %q in %v", file, w, err)
			}
		}
	}
	for _, f := range BuiltIn() {
		if err := f.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestAliasBombInADefinition: 440 bytes that stand for 9^11 texts are refused
// and cost nothing. A child process reads them, with two seconds of processor
// time, since the parser that expands them takes all memory.
func TestAliasBombInADefinition(t *testing.T) {
	if os.Getenv("MILLRACE_BOMB") != "" {
		bomb := "name: bomb\nmodel: recency\ntypes: *a10\n"
		for i := 10; i > 0; i-- {
			bomb = fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 8), i-1) + bomb
		}
		_, err := Parse([]byte("a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + bomb))
		fmt.Println("refused:", err)
		return
	}
	child := exec.Command("sh", "-c", `ulimit -t 2; exec "$0" -test.run '^TestAliasBombInADefinition$'`, os.Args[0])
	child.Env = append(os.Environ(), "MILLRACE_BOMB=1")
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "refused: feed: line 1, column 5: the anchor &a0") {
		t.Fatalf("%v\n%.2000s", err, out)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("name: a\nmodel: b\n")
	f.Add("name: a\nmodel: b\nwindow: 1h\ntypes: [x]\n")
	f.Add("&a [*a]")
	f.Fuzz(func(t *testing.T, s string) {
		if feed, err := Parse([]byte(s)); err == nil && feed.Validate() != nil {
			t.Fatal("parsed but not valid")
		}
	})
}

func manyTypes(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("x", i)
	}
	return names
}

// What is exactly as large as it may be is taken.
func TestFeedsAtTheirLimits(t *testing.T) {
	name := strings.Repeat("n", 63)
	shadow := manyTypes(8)
	for what, file := range map[string]string{
		"a file":     "name: a\nmodel: b\n" + strings.Repeat("#", maxFeedBytes-len("name: a\nmodel: b\n")),
		"names":      fmt.Sprintf("name: %s\nmodel: %[1]s\nshadow: [%s]", name, strings.Join(shadow, ",")),
		"types":      "name: a\nmodel: b\ntypes: [" + strings.Join(manyTypes(100), ",") + "]",
		"a share":    "name: a\nmodel: b\nshadow: [c]\nshadow_share: 1",
		"no share":   "name: a\nmodel: b\nshadow: [c]\nshadow_share: 0",
		"few":        "name: a\nmodel: b\nwindow: 0s\ncap_per_entity: 0\nlimit: 0\nspacing: {entity: 0, type: 0}",
		"many":       "name: a\nmodel: b\ncap_per_entity: 2147483647\nlimit: 1000\nspacing: {entity: 10, type: 10}",
		"a filter":   "name: a\nmodel: b\nfilter: " + strings.Repeat("x", 8000),
		"type names": "name: a\nmodel: b\ntypes: [" + strings.Repeat("t", millrace.MaxTypeBytes) + "]",
	} {
		if _, err := Parse([]byte(file)); err != nil {
			t.Errorf("%s: %.200v", what, err)
		}
	}
	for what, file := range map[string]string{
		"a name": "name: " + name + "n\nmodel: b", "a model": "name: a\nmodel: " + name + "n", "shadows": "name: a\nmodel: b\nshadow: [" + strings.Join(manyTypes(9), ",") + "]",
		"a share": "name: a\nmodel: b\nshadow: [c]\nshadow_share: -0.1", "a filter": "name: a\nmodel: b\nfilter: " + strings.Repeat("x", 8001),
		"spacing of entities": "name: a\nmodel: b\nspacing: {entity: 11}", "spacing of types": "name: a\nmodel: b\nspacing: {type: -1}",
		"type names": "name: a\nmodel: b\ntypes: [" + strings.Repeat("t", millrace.MaxTypeBytes+1) + "]",
	} {
		if _, err := Parse([]byte(file)); err == nil {
			t.Errorf("%s beyond its limit is taken", what)
		}
	}
}

// A definition with a fault is not stored. (There is no store here to ask.)
func TestNoFaultIsDefined(t *testing.T) {
	for file, want := range map[string]string{"name: [": "feed: ", "name: a\nmodel: nosuch": `no model "nosuch" serves`} {
		if _, err := Define(t.Context(), nil, Checks{Models: []string{"recency"}}, []byte(file), "ann"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", file, err)
		}
	}
}

// A feed that is private, or forbids them, closes the built-in feeds that no definition
// covers.
func TestWhatDefinitionsClose(t *testing.T) {
	for _, c := range []struct {
		feed    Feed
		defined string
		want    []string
	}{
		{Feed{Name: "a"}, "", nil},
		{Feed{Name: "a", Private: true}, "", []string{"recent", "home"}},
		{Feed{Name: "a", Forbid: Forbid{Recent: true}}, "", []string{"recent", "home"}},
		{Feed{Name: "a", Forbid: Forbid{Filter: true, Explain: true, Why: true, Model: true, Window: true}}, "", nil},
		{Feed{Name: "home", Private: true}, "", []string{"recent"}},
		{Feed{Name: "a", Private: true}, "recent", []string{"home"}},
	} {
		if got := closes(c.feed, map[string]artefacts.Version{c.defined: {}}); !slices.Equal(got, c.want) {
			t.Errorf("%+v closes %v, want %v", c.feed, got, c.want)
		}
	}
}

// A variant sets what it says and nothing else, leaves the definition as it was, and is known
// to change what is shown where it does.
func TestVariantsOfFeeds(t *testing.T) {
	was := Feed{Name: "a", Model: "m", Shadow: []string{"s", "n"}, Filter: "true", Window: time.Hour, Types: []millrace.ContentType{"post"}, CapPerEntity: 2, Spacing: Spacing{Entity: 1}}
	with := func(change func(*Feed)) Feed {
		f := was
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		set     experiment.Sets
		want    Feed
		changes bool
	}{
		"nothing":         {experiment.Sets{}, was, false},
		"the same":        {experiment.Sets{Model: "m", Filter: new("true"), Window: new(time.Hour), Types: was.Types, CapPerEntity: new(2), Spacing: &experiment.Spacing{Entity: 1}}, was, false},
		"a model":         {experiment.Sets{Model: "o"}, with(func(f *Feed) { f.Model = "o" }), true},
		"a shadow":        {experiment.Sets{Model: "n"}, with(func(f *Feed) { f.Model, f.Shadow = "n", []string{"s"} }), true},
		"two models":      {experiment.Sets{Interleave: []string{"s", "o"}}, with(func(f *Feed) { f.Model, f.interleaved, f.Shadow = "s", "o", []string{"n"} }), true},
		"the same turns":  {experiment.Sets{Interleave: []string{"m", "o"}}, with(func(f *Feed) { f.interleaved = "o" }), true},
		"weights":         {experiment.Sets{Weights: map[string]float64{"a": 1}}, was, true},
		"no filter":       {experiment.Sets{Filter: new("")}, with(func(f *Feed) { f.Filter = "" }), true},
		"no window":       {experiment.Sets{Window: new(time.Duration(0))}, with(func(f *Feed) { f.Window = 0 }), true},
		"types":           {experiment.Sets{Types: []millrace.ContentType{"like"}}, with(func(f *Feed) { f.Types = []millrace.ContentType{"like"} }), true},
		"no cap":          {experiment.Sets{CapPerEntity: new(0)}, with(func(f *Feed) { f.CapPerEntity = 0 }), true},
		"spacing":         {experiment.Sets{Spacing: &experiment.Spacing{Type: 3}}, with(func(f *Feed) { f.Spacing = Spacing{Type: 3} }), true},
		"a limit":         {experiment.Sets{Limit: 7}, with(func(f *Feed) { f.Limit = 7 }), true},
		"the usual limit": {experiment.Sets{Limit: DefaultLimit}, with(func(f *Feed) { f.Limit = DefaultLimit }), false},
	} {
		f := was
		f.Shadow = slices.Clone(was.Shadow)
		shadow := f.Shadow
		if got := f.Changes(c.set); got != c.changes || !reflect.DeepEqual(f, was) {
			t.Errorf("%s: changes: %t, of %+v", name, got, f)
		}
		if f.Set(c.set); !reflect.DeepEqual(f, c.want) || !slices.Equal(shadow, was.Shadow) {
			t.Errorf("%s: got %+v, want %+v", name, f, c.want)
		}
	}
}

// Whether a limit changes what is shown is judged by the one that holds without it.
func TestVariantsOfLimits(t *testing.T) {
	for _, c := range []struct {
		was, set int
		want     bool
	}{{0, 20, false}, {0, 30, true}, {20, 20, false}, {30, 20, true}, {30, 30, false}, {30, 0, false}} {
		if got := (&Feed{Limit: c.was}).Changes(experiment.Sets{Limit: c.set}); got != c.want {
			t.Errorf("%d in place of %d changes: %t", c.set, c.was, got)
		}
	}
}

// What a feed or its broker forbids is refused, each by its field, and nothing else.
func TestForbidden(t *testing.T) {
	feed := &Feed{Name: "f", Model: "m"}
	asked := map[string]*feedv1.GetFeedRequest{
		"as_of": {AsOf: timestamppb.Now()}, "filter": {Filter: "true"}, "explain": {Explain: true}, "model": {Model: "other"}, "": {Model: "m"},
	}
	for _, c := range []struct {
		no    Forbid
		field string
	}{
		{Forbid{Window: true}, "as_of"}, {Forbid{Filter: true}, "filter"}, {Forbid{Explain: true}, "explain"}, {Forbid{Model: true}, "model"},
		{Forbid{Recent: true}, "none"}, {Forbid{Why: true}, "none"},
	} {
		for field, req := range asked {
			var e *millrace.Error
			err := Permitted(c.no, feed, req)
			if refused := errors.As(err, &e); refused != (field == c.field) || refused && (e.Field != field || e.Reason != millrace.ReasonForbidden) {
				t.Errorf("%+v of a request with %q: %v", c.no, field, err)
			}
		}
		if a, b := c.no.Or(Forbid{}), (Forbid{}).Or(c.no); a != c.no || b != c.no {
			t.Errorf("%+v or nothing is %+v and %+v", c.no, a, b)
		}
		own := Feed{Forbid: c.no}
		if got := own.Forbids(); got != c.no {
			t.Errorf("%+v forbids %+v", own, got)
		}
		if private := (Feed{Private: true, Forbid: c.no}); private.Forbids() != c.no.Or(Forbid{Explain: true, Why: true, Window: true, Recent: true}) {
			t.Errorf("%+v forbids %+v", private, private.Forbids())
		}
	}
	if e := BuiltInRefused("home"); e.Reason != millrace.ReasonForbidden || e.Field != "feed" || !strings.Contains(e.Detail, "home") {
		t.Errorf("%+v", e)
	}
}

// Of a private feed, a refusal of the filter says nothing of fields; other refusals are as
// they were.
func TestDiscreet(t *testing.T) {
	open, private := Feed{Name: "f"}, Feed{Name: "f", Private: true}
	filter, model := &millrace.Error{Reason: millrace.ReasonFilter, Detail: "no field secret"}, &millrace.Error{Reason: millrace.ReasonUnknown, Detail: "no model"}
	for _, err := range []error{filter, model, errors.New("lost")} {
		if got := open.Discreet(err); got != err {
			t.Errorf("%v is %v", err, got)
		}
		if got := private.Discreet(err); (got == err) != (err != error(filter)) || strings.Contains(got.Error(), "secret") {
			t.Errorf("%v of a private feed is %v", err, got)
		}
	}
	var e *millrace.Error
	if err := private.Discreet(fmt.Errorf("node: %w", filter)); !errors.As(err, &e) || e.Reason != millrace.ReasonFilter || e.Field != "filter" || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
