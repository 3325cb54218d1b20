package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// frontPages are where readers begin: who calls feeds, who makes rankings, and who
// runs a cluster.
var frontPages = []string{"docs/for-services.md", "docs/for-models.md", "docs/for-operators.md"}

// TestFrontPages does what each of the front pages says.
func TestFrontPages(t *testing.T) {
	clitest.StartsProcesses(t)
	for _, name := range frontPages {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			p := newPage(clitest.Bounded(t), t, name)
			p.carryOut(p.blocks())
		})
	}
}

// A front page is two screens at most, and what it names in the tree is there.
func TestFrontPagesAreShort(t *testing.T) {
	const screens = 2 * 50
	named := regexp.MustCompile("`((?:broker|client|cmd|codegen|compute|coordinator|docs|indexnode|internal|ops|relevance|schemas)/[a-z_./]+)`")
	for _, name := range append(frontPages, "ARCHITECTURE.md") {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > screens && name != "ARCHITECTURE.md" {
			t.Errorf("%s has %d lines", name, n)
		}
		for _, m := range named.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", "..", string(m[1]))); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
