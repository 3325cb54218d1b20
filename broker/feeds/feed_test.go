package feeds

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
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
