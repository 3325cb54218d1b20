package millrace

import (
	"go/ast"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// inputs is how many hostile inputs there are.
const inputs = 115

var (
	inputRow = regexp.MustCompile(`(?m)^\| (\d+) \|.*$`)
	testName = regexp.MustCompile("`(Test\\w+|Fuzz\\w+)`")
)

// Every test that docs/hostile-inputs.md names exists, and every input has a row
// with a test.
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
		if err != nil || n != last+1 {
			t.Errorf("input %d follows input %d", n, last)
		}
		last = n
		if !testName.Match(row[0]) {
			t.Errorf("input %d has no test", n)
		}
	}
	if last != inputs {
		t.Errorf("the last input is %d, not %d", last, inputs)
	}
}
