package topics

import (
	"strings"
	"testing"
	"time"
)

// A group that has proven nothing yet has no age, in years or otherwise.
func TestAGroupThatHasProvenNothing(t *testing.T) {
	through := time.Now().Add(-time.Minute)
	for want, g := range map[string]groupShown{
		"ago; nothing is proven to be partitioned yet\n": {Group: "g", Instance: "one", At: time.Now()},
		"ago; everything from before 1m0":                {Group: "g", Instance: "one", At: time.Now(), Through: &through},
	} {
		var out strings.Builder
		if err := (&topicsShown{Groups: []groupShown{g}}).write(&out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, which lacks %q", out.String(), want)
		}
	}
}

// A letter's record is shown field by field, each harmless.
func TestALetterIsShownByLines(t *testing.T) {
	var out strings.Builder
	if err := (letterShown{Record: map[string]any{"id": "post:1", "text": "right\u202eleft"}}).write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "record: {\n  \"id\": \"post:1\",\n  \"text\": \"right\\u202eleft\"\n}\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

// A transaction that is open is named with what waits behind it, as far as Kafka tells.
func TestOpenTransactionsAreShown(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	for want, in := range map[string]inputShown{
		"posts  12   12           0\n": {Name: "posts", End: 12, Stable: 12},
		"posts: 2 entries wait behind a transaction that is open, and are read once it has ended\n" +
			"  the oldest is of transactional id \"writer\", open for 1h0m0s, from offset 5 of partition 3\n": {
			Name: "posts", End: 12, Stable: 10, Waiting: 2, Open: &openShown{ID: "writer", ProducerID: 7, Partition: 3, Offset: 5, Since: &since},
		},
		"  the oldest is of producer 7, since when is not known, from offset 5 of partition 3\n  posts: not all is known: refused\n": {
			Name: "posts", End: 12, Stable: 10, Waiting: 2, Open: &openShown{ProducerID: 7, Partition: 3, Offset: 5}, Unknown: "refused",
		},
	} {
		var out strings.Builder
		if err := (&topicsShown{Inputs: []inputShown{in}}).write(&out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, which lacks %q", out.String(), want)
		}
	}
}
