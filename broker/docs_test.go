package broker

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/findings"
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
			if _, err := feeds.Parse(text); err != nil {
				t.Error(err)
			}
			continue
		}
		path := "/v1/feed"
		if bytes.Contains(text, []byte(`"record"`)) {
			path = "/v1/why"
		}
		if status, _, answer := post(t, s.URL+path, curl, string(text)); status != 200 {
			t.Errorf("%s\n%d %s", text, status, answer)
		}
	}
	for _, stage := range append([]string{findings.Unanswered, findings.Never}, findings.Stages...) {
		if !bytes.Contains(page, []byte("| `"+stage+"` |")) {
			t.Errorf("the page does not tell what %s means", stage)
		}
	}
	if counts["json"] != 3 || counts["yaml"] != 2 {
		t.Errorf("the page shows %v", counts)
	}
}
