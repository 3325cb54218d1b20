package millrace

import (
	"go/ast"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	inputRow = regexp.MustCompile(`(?m)^\| (\d+) \|.*$`)
	testName = regexp.MustCompile("`(Test\\w+|Fuzz\\w+)`")
)

// Every test that docs/hostile-inputs.md names exists, and every input has one
// row at most.
func TestHostileInputsHaveTests(t *testing.T) {
	page, err := os.ReadFile("docs/hostile-inputs.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range files(t, 0) {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test {
				there[fn.Name.Name] = true
			}
		}
	}
	for _, name := range testName.FindAllSubmatch(page, -1) {
		if !there[string(name[1])] {
			t.Errorf("there is no %s", name[1])
		}
	}
	last := 0
	for _, row := range inputRow.FindAllSubmatch(page, -1) {
		n, err := strconv.Atoi(string(row[1]))
		if err != nil || n <= last || n > 115 {
			t.Errorf("input %d is not behind input %d, or there is no such input", n, last)
		}
		last = n
		if !testName.Match(row[0]) && !strings.Contains(string(row[0]), "there are none yet") {
			t.Errorf("input %d has no test", n)
		}
	}
	if last == 0 {
		t.Error("the page has no row")
	}
}
