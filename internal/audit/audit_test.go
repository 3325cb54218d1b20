package audit_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/logs"
)

// Entries are in the file of the name, also after it was moved away or removed, and
// in the process's log whatever its level is.
func TestEntriesAreFound(t *testing.T) {
	var log bytes.Buffer
	h, err := logs.New(&log, logs.JSON, logs.NewLevels(logs.Setting{Level: slog.LevelError, Packages: map[string]slog.Level{"broker": slog.LevelDebug, "internal/audit": slog.LevelError}}), func(context.Context) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(h))
	name := filepath.Join(t.TempDir(), "audit.ndjson")
	l, err := audit.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write := func(act string) {
		t.Helper()
		if err := l.Write(audit.Entry{Who: "somebody", Act: act}); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(file string, acts ...string) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil || strings.Count(string(text), "\n") != len(acts) {
			t.Errorf("%s has %q: %v", filepath.Base(file), text, err)
		}
		for _, act := range acts {
			if !strings.Contains(string(text), act) {
				t.Errorf("%s lacks %s", filepath.Base(file), act)
			}
		}
	}
	write("first")
	write("second")
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	write("third")
	holds(name+".1", "first", "second")
	holds(name, "third")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	write("fourth")
	holds(name, "fourth")
	if err := os.RemoveAll(filepath.Dir(name)); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(audit.Entry{Act: "fifth"}); err == nil {
		t.Error("what cannot be written down is no error")
	}
	if n := strings.Count(log.String(), `"msg":"audit"`); n != 5 {
		t.Errorf("the log has %d entries:\n%s", n, &log)
	}
	slog.Info("something else")
	if strings.Contains(log.String(), "something else") {
		t.Error("what is no entry is logged below the level")
	}
}
