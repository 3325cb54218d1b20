package backups

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/backup"
)

// What is extra in a bucket is counted, and does not hide what is damaged.
func TestVerifyTellsTheVerdict(t *testing.T) {
	v := &verified{Whole: &backup.Restorable{}, bad: 1}
	for range 1000 {
		v.Damage = append(v.Damage, &backup.Damage{Object: "files/x", Kind: backup.Extra})
	}
	v.Damage = append(v.Damage, &backup.Damage{Object: "files/y", Kind: backup.Missing, Detail: "it is gone"})
	var out strings.Builder
	if err := v.write(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 4 || !strings.Contains(got, "files/y") || !strings.Contains(got, "1000 objects are extra") {
		t.Errorf("printed\n%s", got)
	}
}

// What somebody wrote into a bucket begins no line, and steers no terminal.
func TestVerifyShowsTextsOfOthers(t *testing.T) {
	v := &verified{Whole: &backup.Restorable{}, bad: 1, Damage: []*backup.Damage{{Object: "x\r\ny", Kind: backup.Missing, Detail: "of \x1b]0;mine\a"}}}
	var out strings.Builder
	if err := v.write(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 3 || strings.ContainsAny(got, "\x1b\a\r") || !strings.Contains(got, "mine") {
		t.Errorf("printed %q", got)
	}
}

// A cut is written down before it is taken: one that cannot be is not tried, and
// one that fails is told by the acts.
func TestACutIsNotedFirst(t *testing.T) {
	dir := t.TempDir()
	b, err := backup.Open(t.Context(), "file://"+dir, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Claim(t.Context(), backup.Identity{Name: "test", ID: "1"}); err != nil {
		t.Fatal(err)
	}
	cut := func(want string) {
		t.Helper()
		c := Command()
		c.SetArgs([]string{"cut", "--from", "file://" + dir, "--brokers", "127.0.0.1:1", "--name", "one"})
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, and not %q", err, want)
		}
	}
	acts := filepath.Join(dir, "acts")
	if err := os.WriteFile(acts, nil, 0o600); err != nil { // in which nothing can be written
		t.Fatal(err)
	}
	cut("acts")
	if err := os.Remove(acts); err != nil {
		t.Fatal(err)
	}
	cut("have no backup yet")
	all, err := b.Acts(t.Context(), 10)
	if err != nil || len(all) != 2 || all[0].On != "cut one" || !strings.Contains(all[0].Fault, "have no backup yet") || all[1].Fault != "" {
		t.Errorf("acts %+v, %v", all, err)
	}
}
