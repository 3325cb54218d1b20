package filter

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/schemas"
)

// TestDocs compiles every filter of docs/filters.md, and holds the faults it
// shows to what is reported.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	env := expr.Env{
		Record: []*column.Layout{schemas.Activity().Layout()},
		Entity: []*column.Layout{mustLayout(t, []column.Field{{Name: "followers", Kind: column.Int}})},
	}
	filters := 0
	for _, block := range regexp.MustCompile("(?s)```cel\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for src := range strings.Lines(block[1]) {
			filters++
			if _, err := Compile(strings.TrimSpace(src), env); err != nil {
				t.Errorf("%s%v", src, err)
			}
		}
	}
	if filters < 10 {
		t.Errorf("found %d filters", filters)
	}
	_, err = Compile(`record.langauge == "en" && record.likes > "5"`, env)
	var faults *expr.Error
	if !errors.As(err, &faults) || !strings.Contains(string(page), "```\n"+faults.Error()+"\n```") {
		t.Errorf("the page does not show\n%v", err)
	}
}
