package millrace_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/expr"
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

var filterLimits = regexp.MustCompile(`(?m)^## Limits\n\n([\d,]+) bytes, ([\d,]+) parts, ([\d,]+) levels, and a cost of ([\d,]+):`)

// The page of filters says how large one may be: its bytes are bounded where
// feeds and requests are read, and all else where the expression is parsed.
func TestLimitsOfFilters(t *testing.T) {
	page, err := os.ReadFile("docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	m := filterLimits.FindStringSubmatch(string(page))
	if m == nil {
		t.Fatalf("the page does not begin its limits as %s", filterLimits)
	}
	for i, want := range []int{limits.MaxFilterBytes, expr.MaxNodes, expr.MaxDepth, expr.MaxCost} {
		if got := strings.ReplaceAll(m[i+1], ",", ""); got != strconv.Itoa(want) {
			t.Errorf("%q says %s, and it is %d", m[0], m[i+1], want)
		}
	}
}
