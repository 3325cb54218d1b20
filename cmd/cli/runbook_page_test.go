package cli

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every command that the runbook names exists, with the flags that it names, and those to
// look with run as they stand.
func TestRunbookCommands(t *testing.T) {
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile("(?m)^millrace .*$|`millrace [^`]*`").FindAllString(string(page), -1)
	if len(lines) < 40 {
		t.Errorf("only %d commands on the page", len(lines))
	}
	top := root()
	for _, line := range lines {
		words := strings.Fields(strings.Trim(line, "`"))[1:]
		if words[0] == "help" {
			continue
		}
		c, rest, err := top.Find(words)
		if err != nil || c == top {
			t.Errorf("%s: there is no such command: %v", line, err)
			continue
		}
		// A group alone is not run; a word that it does not know is an argument to Find.
		if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "--") {
			t.Errorf("%s: %s has no command %s", line, c.CommandPath(), rest[0])
		}
		for _, w := range rest {
			name, flag := strings.CutPrefix(w, "--")
			if flag && c.Flag(name) == nil {
				t.Errorf("%s: %s has no flag %s", line, c.CommandPath(), w)
			}
		}
		if strings.HasPrefix(line, "`") {
			continue // it may be a mention, without what it needs
		}
		c, rest, _ = root().Find(words) // with no flags of the lines before
		if err := errors.Join(c.ParseFlags(rest), c.ValidateRequiredFlags(), c.ValidateArgs(c.Flags().Args())); err != nil {
			t.Errorf("%s does not run as it stands: %v", line, err)
		}
		if c.Parent().Name() == "backup" && !c.Flags().Changed("from") {
			t.Errorf("%s does not say of which bucket", line)
		}
	}
}
