package logs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A place in the code writes 100 lines in ten seconds, and says then how many it left out;
// others, DEBUG and what is always logged are written whole.
func TestFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h, err := New(&out, Text, NewLevels(Setting{Level: slog.LevelDebug}), func(ctx context.Context) bool { return ctx.Value(forced{}) != nil })
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(h)
		flood := func(ctx context.Context, level slog.Level, lines int) (written int) {
			out.Reset()
			for range lines {
				log.Log(ctx, level, "a record is refused")
			}
			return strings.Count(out.String(), "\n")
		}
		traced := context.WithValue(t.Context(), forced{}, 1)
		for _, c := range []struct {
			ctx         context.Context
			level       slog.Level
			lines, want int
		}{
			{t.Context(), slog.LevelDebug, 500, 500}, {t.Context(), slog.LevelWarn, 500, 100}, {t.Context(), slog.LevelError, 5, 0}, {traced, slog.LevelWarn, 500, 500},
		} {
			if got := flood(c.ctx, c.level, c.lines); got != c.want {
				t.Errorf("%d of %d lines at %s, want %d", got, c.lines, c.level, c.want)
			}
		}
		out.Reset()
		if log.Warn("another"); !strings.Contains(out.String(), "another") {
			t.Errorf("another place writes %q", &out)
		}
		time.Sleep(linesEvery)
		if got := flood(t.Context(), slog.LevelWarn, 2); got != 2 || strings.Count(out.String(), "left_out=405") != 1 {
			t.Errorf("then %q", &out)
		}
	})
}
