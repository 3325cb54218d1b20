package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// filling is a file on a disk that takes some bytes more.
type filling struct {
	*os.File
	takes int // negative: all
}

func (f *filling) Write(p []byte) (int, error) {
	if f.takes < 0 || len(p) <= f.takes {
		return f.File.Write(p)
	}
	n, err := f.File.Write(p[:f.takes])
	f.takes -= n
	return n, errors.Join(err, errors.New("no space left"))
}

// An entry of which a full disk took a part takes none behind it along, in this
// process and in the next one, and the process's log says that it is not written
// down.
func TestATornEntryIsAlone(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	name := filepath.Join(t.TempDir(), "audit.ndjson")
	write := func(l *Log, act string, fails bool) {
		t.Helper()
		log.Reset()
		if err := l.Write(Entry{Act: act}); (err != nil) != fails {
			t.Fatalf("%s: %v", act, err)
		}
		if told := strings.Contains(log.String(), "no space left"); told != fails || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: the log says %s", act, &log)
		}
		if fails {
			return
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		var last Entry
		if err := json.Unmarshal([]byte(lines[len(lines)-2]), &last); err != nil || last.Act != act || lines[len(lines)-1] != "" {
			t.Errorf("behind %s the file ends %q: %v", act, lines[len(lines)-2:], err)
		}
	}
	fill := func(l *Log, takes int) {
		if f, ok := l.file.(*filling); ok {
			f.takes = takes
			return
		}
		l.file = &filling{l.file.(*os.File), takes}
	}
	l, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	write(l, "first", false)
	fill(l, 10)
	write(l, "second", true)
	fill(l, 0)
	write(l, "third", true)
	fill(l, -1)
	write(l, "fourth", false)
	fill(l, 10)
	write(l, "fifth", true)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(name); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(l, "sixth", false)
	write(l, "seventh", false)
	if text, _ := os.ReadFile(name); bytes.Count(text, []byte("\n")) != 6 { // four, and what there was of two
		t.Errorf("the file has %s", text)
	}
}
