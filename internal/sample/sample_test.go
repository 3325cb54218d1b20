package sample

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/millrace/millrace"
)

// record is what these tests read of a record.
type record struct {
	ID        string
	Actor     millrace.Entity
	Verb      string
	CreatedAt string `json:"created_at"`
	Object    string
	About     []millrace.Entity
	Text      string
	Likes     int
	Comments  int
}

func records(t *testing.T) []record {
	var all []record
	for line := range Records() {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestCounts(t *testing.T) {
	verbs, objects, edges := map[string]int{}, map[string]int{}, 0
	for _, r := range records(t) {
		verbs[r.Verb]++
		objects[r.Object]++
	}
	if want := map[string]int{"post": 5924, "comment": 2218, "like": 759 + 624}; !maps.Equal(verbs, want) {
		t.Errorf("records by verb: %v, want %v", verbs, want)
	}
	if len(objects) != 5924 {
		t.Errorf("%d objects, want the 5924 posts", len(objects))
	}
	for _, m := range Members() {
		edges += len(Follows(m))
	}
	if len(Members()) != 222 || edges != 2*825 {
		t.Errorf("%d members and %d follows, want 222 and 2*825", len(Members()), edges)
	}
}

func TestRecordsHangTogether(t *testing.T) {
	ids := map[string]bool{}
	last := ""
	for _, r := range records(t) {
		if ids[r.ID] {
			t.Errorf("%s twice", r.ID)
		}
		if ids[r.ID] = true; r.CreatedAt < last {
			t.Errorf("%s at %s comes after %s", r.ID, r.CreatedAt, last)
		}
		last = r.CreatedAt
		if !ids[r.Object] {
			t.Errorf("%s is about %s, which has not happened", r.ID, r.Object)
		}
		if (r.Verb == "post") != (r.ID == r.Object) {
			t.Errorf("%s %s has object %s", r.Verb, r.ID, r.Object)
		}
		if slices.Contains(r.About, r.Actor) {
			t.Errorf("%s is on the timeline of %s twice", r.ID, r.Actor)
		}
		for _, e := range append(r.About, r.Actor) {
			if Name(e) == string(e) {
				t.Errorf("%s: %s has no name", r.ID, e)
			}
		}
		if r.Text == "" {
			t.Errorf("%s has no text", r.ID)
		}
	}
}

// Every like of a post is counted once, and every comment once at its post.
func TestCountersAddUp(t *testing.T) {
	likes, comments := 0, 0
	for _, r := range records(t) {
		likes += r.Likes
		if r.Verb == "post" {
			comments += r.Comments
		}
	}
	if likes != 759+624 || comments != 2218 {
		t.Errorf("counters sum to %d likes and %d comments, want %d and 2218", likes, comments, 759+624)
	}
}

func TestFollowsGoBothWays(t *testing.T) {
	for _, m := range Members() {
		for _, f := range Follows(m) {
			if !slices.Contains(Follows(f), m) {
				t.Errorf("%s follows %s, who does not follow back", m, f)
			}
		}
	}
	if Follows("member:0") != nil {
		t.Error("member:0 is nobody and follows someone")
	}
}

func TestMembers(t *testing.T) {
	if Members()[0] != "member:1" || Members()[221] != "member:222" {
		t.Errorf("members run from %s to %s", Members()[0], Members()[221])
	}
	if n := Name("member:1"); n != "Baby Yang" {
		t.Errorf("member:1 is %q", n)
	}
	if n := Name("tag:unknown"); n != "tag:unknown" {
		t.Errorf("a tag without a name prints as %q", n)
	}
	posts := 0
	for _, r := range records(t) {
		if r.Actor == "member:1" {
			posts++
		}
	}
	if posts < 100 {
		t.Errorf("member:1 has %d records of its own; the first page wants some to show", posts)
	}
}

func TestTweets(t *testing.T) {
	n, shares, last := 0, 0, millrace.Time(0)
	for line, err := range Tweets() {
		if errors.Is(err, ErrAbsent) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		e := envelope(t, line)
		if n++; e.Record.Time < last {
			t.Fatalf("%s at %s comes after %s", e.Record.ID, e.Record.Time, last)
		}
		last = e.Record.Time
		if e.Type == "share" {
			shares++
		}
	}
	if n != 297462 || shares != 138554 {
		t.Errorf("%d tweets, %d of them shares; want 297462 and 138554", n, shares)
	}
}

func TestTweet(t *testing.T) {
	got, err := tweet("7\t60\t5\tGerman\tGermany\t\t0\t6\t106\t1\t2\t3\t41\t103\t22")
	want := `{"about":["member:6"],"actor":"member:5","country":"Germany","created_at":"1970-01-01T00:01:00Z","features":[106,1,2,3,41,103,22],"id":"post:7","impressions":103,"language":"German","verb":"post"}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	for _, bad := range []string{"", "7\t60", "7\tnoon\t5\tGerman\tGermany\t\t0\t6\t106\t1\t2\t3\t41\t103\t22"} {
		if _, err := tweet(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// An unset MILLRACE_SHARED skips, a wrong one fails.
func TestSharedDataAbsent(t *testing.T) {
	t.Setenv("MILLRACE_SHARED", t.TempDir())
	for _, err := range Tweets() {
		if err == nil || errors.Is(err, ErrAbsent) {
			t.Errorf("MILLRACE_SHARED names an empty folder: %v", err)
		}
	}
	t.Setenv("MILLRACE_SHARED", "")
	t.Chdir(t.TempDir())
	for _, err := range Tweets() {
		if !errors.Is(err, ErrAbsent) {
			t.Errorf("no shared data: %v", err)
		}
	}
}
