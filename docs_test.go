package millrace_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/millrace/millrace/schemas"
)

var block = regexp.MustCompile("(?ms)^```avro\n(.*?)^```")

// The schemas that the pages show are ones that Millrace takes.
func TestSchemasShown(t *testing.T) {
	page, err := os.ReadFile("docs/schemas.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := block.FindAllSubmatch(page, -1)
	if len(shown) != 2 {
		t.Errorf("%d schemas on the page, want 2", len(shown))
	}
	for _, s := range shown {
		if _, err := schemas.Parse(s[1]); err != nil {
			t.Errorf("%v\n%s", err, s[1])
		}
	}
}
