package broker

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

func TestParseFeed(t *testing.T) {
	got, err := ParseFeed([]byte(`
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
`))
	want := Feed{
		Name: "jobs", Types: []millrace.ContentType{"job", "share"}, Filter: "record.language == viewer.language", Window: 168 * time.Hour,
		Model: "jobs-v2", DistinctObjects: true, CapPerEntity: 2, Limit: 50, Spacing: Spacing{Entity: 2, Type: 1},
		Shadow: []string{"jobs-v3", "recency"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestBadFeeds(t *testing.T) {
	for file, want := range map[string][]string{
		"name: a\nmodel: b\nwindw: 1h": {"windw", "unknown field"},
		"name: a\nmodel: b\nname: c":   {"already defined"},
		"name: a\nmodel: b\nlimit: x":  {"limit"},
		"":                             {"EOF"},
		"name: a\nmodel: b\ncap_per_entity: 2147483648\ntypes: [" + strings.Join(distinct(101), ",") + "]": {"types: 101 of them", "cap_per_entity: 2147483648"},
		"name: a\nmodel: b\n" + strings.Repeat("#", 64<<10):                                                {"more than 65536"},
		"name: a\nmodel: b\nshadow: [b, c, c, \"\", d, e, f, g, h]": {
			"shadow[0]: \"b\" is there twice", "shadow[2]: \"c\" is there twice", "shadow[3]: \"\" is not the name", "shadow: 9 models, more than 8",
		},
		"name: 1/2\nmodel: \"\"\ntypes: [post, post, \"\"]\nfilter: \"\\0\"\nwindow: -1h\ncap_per_entity: -1\nlimit: 1001\nspacing: {entity: -1, type: 11}": {
			"name: want", "model: \"\"", "types[1]: \"post\" is there twice", "types[2]: it is empty", "filter: a NUL", "window: -1h", "cap_per_entity: -1", "limit: 1001", "spacing.entity: -1", "spacing.type: 11",
		},
	} {
		_, err := ParseFeed([]byte(file))
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

func FuzzParseFeed(f *testing.F) {
	f.Add("name: a\nmodel: b\n")
	f.Add("name: a\nmodel: b\nwindow: 1h\ntypes: [x]\n")
	f.Add("&a [*a]")
	f.Fuzz(func(t *testing.T, s string) {
		if feed, err := ParseFeed([]byte(s)); err == nil && feed.Validate() != nil {
			t.Fatal("parsed but not valid")
		}
	})
}
