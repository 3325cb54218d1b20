package sample

import (
	"encoding/json"
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
