package broker

import (
	"os"
	"regexp"
	"testing"
)

var shown = regexp.MustCompile("(?ms)^```(json|yaml)\n(.*?)^```")

// The requests and the definition that docs/feeds.md shows are accepted.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/feeds.md")
	if err != nil {
		t.Fatal(err)
	}
	s := served(t)
	counts := map[string]int{}
	for _, block := range shown.FindAllSubmatch(page, -1) {
		kind, text := string(block[1]), block[2]
		counts[kind]++
		if kind == "yaml" {
			if _, err := ParseFeed(text); err != nil {
				t.Error(err)
			}
			continue
		}
		if status, _, answer := post(t, s.URL+"/v1/feed", curl, string(text)); status != 200 {
			t.Errorf("%s\n%d %s", text, status, answer)
		}
	}
	if counts["json"] != 2 || counts["yaml"] != 1 {
		t.Errorf("the page shows %v", counts)
	}
}
