package logs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/audit"
)

func never(context.Context) bool { return false }

// A package logs from its own level on, or else from that of what it is below,
// or else of all; for as long as it was said.
func TestLevelsByPackage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Setting
		if err := s.UnmarshalText([]byte("WARN,internal=ERROR")); err != nil {
			t.Fatal(err)
		}
		l := NewLevels(s)
		var out bytes.Buffer
		h, err := New(&out, Text, l, never)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(h).With("a", 1).WithGroup("g")
		written := func(write func(string, ...any)) bool {
			out.Reset()
			write("said")
			return strings.Contains(out.String(), "a=1")
		}
		check := func(when string, debug, warn, failed bool) {
			t.Helper()
			if d, w, e := written(log.Debug), written(log.Warn), written(log.Error); d != debug || w != warn || e != failed {
				t.Errorf("%s: DEBUG is written %v, WARN %v, ERROR %v", when, d, w, e)
			}
		}
		check("of what is above", false, false, true)
		if _, err := l.Set("internal/logs", slog.LevelDebug, time.Minute); err != nil {
			t.Fatal(err)
		}
		check("its own", true, true, true)
		if all := l.All(); len(all) != 3 || all[2].Package != "internal/logs" || all[2].Until == nil || all[0].Until != nil {
			t.Errorf("%+v", all)
		}
		time.Sleep(time.Minute)
		check("when its time is over", false, false, true)
		if all := l.All(); len(all) != 2 {
			t.Errorf("%+v", all)
		}
		if _, err := l.Set("", slog.LevelDebug, time.Minute); err != nil {
			t.Fatal(err)
		}
		check("of all, but it is below another", false, false, true)
	})
}

// What is always logged is logged whatever the level.
func TestAlways(t *testing.T) {
	var out bytes.Buffer
	h, err := New(&out, JSON, NewLevels(Setting{Level: slog.LevelError, Packages: map[string]slog.Level{"broker": slog.LevelError}}), func(ctx context.Context) bool { return ctx.Value(forced{}) != nil })
	if err != nil {
		t.Fatal(err)
	}
	slog.New(h).DebugContext(t.Context(), "not said")
	slog.New(h).DebugContext(context.WithValue(t.Context(), forced{}, 1), "said", "n", 2)
	var line struct {
		Msg string `json:"msg"`
		N   int    `json:"n"`
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Msg != "said" || line.N != 2 {
		t.Errorf("%s, %v", &out, err)
	}
}

type forced struct{}

func TestSettings(t *testing.T) {
	for text, want := range map[string]string{
		"INFO":                              "INFO",
		"warn,broker=debug,internal/a=INFO": "WARN,broker=DEBUG,internal/a=INFO",
		"":                                  "is no level",
		"LOUD":                              "is no level",
		"broker=DEBUG":                      "",
		"INFO,DEBUG":                        "write a level, and those of packages",
		"INFO,=DEBUG":                       "write a level, and those of packages",
		"INFO,Broker=DEBUG":                 "write a level, and those of packages",
	} {
		var s Setting
		err := s.UnmarshalText([]byte(text))
		got, _ := s.MarshalText()
		if text == "broker=DEBUG" { // the rest as by default
			want = "INFO,broker=DEBUG"
		}
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.Contains(string(got), want) {
			t.Errorf("%q: %s", text, got)
		}
	}
	if _, err := New(io.Discard, "xml", NewLevels(Setting{}), never); err == nil {
		t.Error("xml is written")
	}
}

// The door of operators: what is wrong names its field, what is done is written
// down.
func TestHandler(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	acts, err := audit.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer acts.Close()
	l := NewLevels(Setting{Level: slog.LevelWarn})
	s := httptest.NewServer(l.Handler(acts))
	defer s.Close()
	for what, c := range map[string]struct {
		method, query string
		status        int
		says          string
	}{
		"show":           {"GET", "", 200, `[{"package":"","level":"WARN"}]`},
		"another method": {"PUT", "?level=INFO", 405, "POST"},
		"no level":       {"POST", "?package=broker", 400, `"level"`},
		"no package":     {"POST", "?package=../x%20&level=INFO", 400, `"package"`},
		"no time":        {"POST", "?level=INFO&for=long", 400, `"for"`},
		"too long":       {"POST", "?level=INFO&for=48h", 400, `"for"`},
		"no time at all": {"POST", "?level=INFO&for=-1s", 400, `"for"`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+c.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(body), c.says) {
			t.Errorf("%s: %s %s", what, resp.Status, body)
		}
	}
	resp, err := http.Post(s.URL+"?package=broker&level=DEBUG&for=10m", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := l.now().levelOf("broker"); resp.StatusCode != 200 || got != slog.LevelDebug {
		t.Errorf("%s, and broker logs from %s on", resp.Status, got)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), `"who":"anybody","act":"log level"`) || !strings.Contains(string(text), `"after":"DEBUG for 10m0s"`) || strings.Count(string(text), "\n") != 1 {
		t.Errorf("%s, %v", text, err)
	}
	for i := range maxChanges { // one too many
		resp, err := http.Post(fmt.Sprintf("%s?package=x%d&level=DEBUG", s.URL, i), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	text, err := os.ReadFile(file)
	if lines := strings.Split(strings.TrimSpace(string(text)), "\n"); err != nil || len(lines) != maxChanges+2 || !strings.Contains(lines[len(lines)-1], `"after":"WARN","fault":"`) {
		t.Errorf("%d lines of %d acts, the last %s: %v", len(lines), maxChanges+1, lines[len(lines)-1], err)
	}
}

// How many packages have other levels is bounded.
func TestChangesAreBounded(t *testing.T) {
	l := NewLevels(Setting{})
	for i := range maxChanges {
		if _, err := l.Set(strings.Repeat("x", i+1), slog.LevelInfo, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Set("one-more", slog.LevelInfo, time.Hour); err == nil {
		t.Error("there is no bound")
	}
	if _, err := l.Set("x", slog.LevelDebug, time.Hour); err != nil {
		t.Errorf("one of them is changed: %v", err)
	}
}
