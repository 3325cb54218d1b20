package millrace

import (
	"go/ast"
	"os"
	"regexp"
	"strings"
	"testing"
)

// make race runs the tests of every package that starts goroutines.
func TestRaceRunsWhatIsConcurrent(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	listed := regexp.MustCompile(`(?m)^RACE = (.*)$`).FindSubmatch(makefile)
	if listed == nil {
		t.Fatal("the Makefile has no RACE")
	}
	raced := func(dir string) bool {
		for _, pattern := range strings.Fields(string(listed[1])) {
			pkg, below := strings.CutSuffix(strings.TrimPrefix(pattern, "./"), "/...")
			if dir == pkg || below && strings.HasPrefix(dir, pkg+"/") {
				return true
			}
		}
		return false
	}
	for _, f := range files(t, 0) {
		if f.test || raced(f.dir) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, isCall := n.(*ast.CallExpr)
			_, starts := n.(*ast.GoStmt)
			if isCall {
				method, ok := call.Fun.(*ast.SelectorExpr)
				starts = ok && method.Sel.Name == "Go" // of an errgroup, or a sync.WaitGroup
			}
			if starts {
				t.Errorf("%s starts a goroutine, and make race leaves %s out", f.name, f.dir)
			}
			return !starts
		})
	}
}
