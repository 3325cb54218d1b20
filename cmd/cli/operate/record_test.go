package operate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// What is kept as a proof names each record that was not found, and says where an earlier
// version was not looked for.
func TestDeletionNamesWhatIsNowhere(t *testing.T) {
	found := &sightings{spots: []spot{{"post:1", "member:1", "post"}, {"post:2", "member:2", "post"}}}
	wanted := []*nodev1.WantedRecord{{Id: "post:1", Entity: "member:1"}, {Id: "post:2"}, {Id: "post:1", Entity: "member:2"}, {Id: "gone"}, {Id: "gone"}}
	none := found.nowhere(wanted)
	if !slices.Equal(none, []wantedShown{{"post:1", "member:2"}, {"gone", ""}}) {
		t.Errorf("nowhere are %v", none)
	}
	text := func(s deletionShown) string {
		var out strings.Builder
		s.writeLeft(&out)
		return out.String()
	}
	if got := text(deletionShown{NotFound: none}); !strings.Contains(got, `2 of the records named: "post:1" of "member:2", "gone"`+"\n") || !strings.Contains(got, "--everywhere") {
		t.Errorf("printed %s", got)
	}
	if got := text(deletionShown{Everywhere: true}); got != "" {
		t.Errorf("of all, in all timelines, it prints %s", got)
	}
	for i := range 5 {
		none = append(none, wantedShown{ID: fmt.Sprint("more:", i)})
	}
	if got := text(deletionShown{NotFound: none}); !strings.Contains(got, "7 of the records") || !strings.Contains(got, "and 2 more, which -o json names") || strings.Contains(got, "more:3") {
		t.Errorf("of many it prints %s", got)
	}
}
