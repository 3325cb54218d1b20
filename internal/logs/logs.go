// Package logs decides what a process logs: from which level on, by package, and
// in which form. The levels of packages can be changed while it runs, for a
// while.
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
)

// Setting is from which level on a process logs, and its packages where they
// differ.
type Setting struct {
	Level    slog.Level
	Packages map[string]slog.Level // such as broker or internal/kafka; all below one, too
}

// MarshalText returns the form that UnmarshalText reads.
func (s Setting) MarshalText() ([]byte, error) {
	text := []byte(s.Level.String())
	for _, p := range slices.Sorted(maps.Keys(s.Packages)) {
		text = fmt.Appendf(text, ",%s=%s", p, s.Packages[p])
	}
	return text, nil
}

// UnmarshalText reads a level and those of packages: WARN,broker=DEBUG.
func (s *Setting) UnmarshalText(text []byte) error {
	read := Setting{Packages: map[string]slog.Level{}}
	for i, one := range strings.Split(string(text), ",") {
		name, level, named := strings.Cut(one, "=")
		if !named {
			name, level = "", one
		}
		var l slog.Level
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return fmt.Errorf("%.40q is no level: write DEBUG, INFO, WARN or ERROR", level)
		}
		switch {
		case named && checkPackage(name) == nil:
			read.Packages[name] = l
		case !named && i == 0:
			read.Level = l
		default:
			return fmt.Errorf("%.60q: write a level, and those of packages behind it, such as WARN,broker=DEBUG", one)
		}
	}
	*s = read
	return nil
}

// module stands before the packages' names in what the runtime calls them.
const module = "github.com/millrace/millrace/"

// maxPackage bounds the name of a package, and maxChanges how many are changed
// at a time.
const (
	maxPackage = 100
	maxChanges = 100
)

func checkPackage(name string) error {
	if name == "" || len(name) > maxPackage || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789/_-.") != "" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "package", Detail: fmt.Sprintf("%.40q is no package", name), WayOut: "name one as its folder is, such as broker or internal/kafka"}
	}
	return nil
}

// Levels are the levels of a process, which can be changed.
type Levels struct {
	start    Setting
	mu       sync.Mutex
	changes  map[string]Change // by package; "" is all that have none
	current  atomic.Pointer[levels]
	packages sync.Map // of a place in the code: uintptr to string
	floods   floods
}

// Change is a level that counts for a while.
type Change struct {
	Package string     `json:"package"` // empty: all that are not named
	Level   slog.Level `json:"level"`
	Until   *time.Time `json:"until,omitempty"` // nil: as the process was started
}

// levels are what counts at a moment.
type levels struct {
	of    map[string]slog.Level // by package; "" is of all others
	least slog.Level
	ends  time.Time // when it no longer counts; zero: never
}

// NewLevels returns levels as a process is started with.
func NewLevels(s Setting) *Levels {
	l := &Levels{start: s, changes: map[string]Change{}}
	l.count(time.Now())
	return l
}

// count sets what counts now. The caller holds mu, or is alone.
func (l *Levels) count(now time.Time) *levels {
	next := &levels{of: maps.Clone(l.start.Packages)}
	if next.of == nil {
		next.of = map[string]slog.Level{}
	}
	next.of[""] = l.start.Level
	for name, c := range l.changes {
		if !c.Until.After(now) {
			delete(l.changes, name)
			continue
		}
		next.of[name] = c.Level
		if next.ends.IsZero() || c.Until.Before(next.ends) {
			next.ends = *c.Until
		}
	}
	next.least = slices.Min(slices.Collect(maps.Values(next.of)))
	l.current.Store(next)
	return next
}

func (l *Levels) now() *levels {
	n := l.current.Load()
	if n.ends.IsZero() || time.Now().Before(n.ends) {
		return n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count(time.Now())
}

// The times of a change.
const (
	defaultChange = time.Hour
	maxChange     = 24 * time.Hour
)

// Set has a package log from a level on, for a while; package "" is all that are
// not named. The error is a [*millrace.Error].
func (l *Levels) Set(name string, level slog.Level, lasts time.Duration) (Change, error) {
	if err := checkChange(name, lasts); err != nil {
		return Change{}, err
	}
	now := time.Now()
	until := now.Add(lasts)
	c := Change{name, level, &until}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(now)
	if _, there := l.changes[name]; !there && len(l.changes) >= maxChanges {
		return Change{}, &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "package", Detail: fmt.Sprintf("%d packages have other levels already", maxChanges), WayOut: "wait until some end"}
	}
	l.changes[name] = c
	l.count(now)
	return c, nil
}

// checkChange refuses a change of no package, or of a time that it cannot have.
func checkChange(name string, lasts time.Duration) error {
	if name != "" {
		if err := checkPackage(name); err != nil {
			return err
		}
	}
	if lasts <= 0 || lasts > maxChange {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "for", Detail: fmt.Sprintf("%s is out of range", lasts), WayOut: fmt.Sprintf("write a time of at most %s, such as 10m", maxChange)}
	}
	return nil
}

// All returns the levels that count now, by package.
func (l *Levels) All() (all []Change) {
	l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.count(time.Now())
	for _, name := range slices.Sorted(maps.Keys(n.of)) {
		c := Change{Package: name, Level: n.of[name]}
		if changed, is := l.changes[name]; is {
			c.Until = changed.Until
		}
		all = append(all, c)
	}
	return all
}

// packageOf returns the package of a place in the code, without the module.
func (l *Levels) packageOf(pc uintptr) string {
	if name, ok := l.packages.Load(pc); ok {
		return name.(string)
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	name := strings.TrimPrefix(frame.Function, module)
	if slash := strings.LastIndexByte(name, '/'); slash >= 0 {
		dot := strings.IndexByte(name[slash:], '.')
		name = name[:slash+max(dot, 0)]
	} else {
		name, _, _ = strings.Cut(name, ".")
	}
	l.packages.Store(pc, name)
	return name
}

// levelOf returns the level of a package: its own, or that of the nearest above
// it.
func (n *levels) levelOf(name string) slog.Level {
	for name != "" {
		if level, ok := n.of[name]; ok {
			return level
		}
		name = name[:max(strings.LastIndexByte(name, '/'), 0)]
	}
	return n.of[""]
}

// Formats of a log.
const (
	Text = "text"
	JSON = "json"
)

// New returns a handler that writes what levels say, entries of an audit log, and
// whatever a context is always logged of. Of one place in the code it writes no more than
// 100 lines in ten seconds, DEBUG apart: the next line says how many were left out. An
// unknown format is an error.
func New(w io.Writer, format string, l *Levels, always func(context.Context) bool) (slog.Handler, error) {
	all := &slog.HandlerOptions{Level: slog.Level(-1 << 20)} // what is let through here is written
	switch format {
	case Text:
		return handler{slog.NewTextHandler(w, all), l, always}, nil
	case JSON:
		return handler{slog.NewJSONHandler(w, all), l, always}, nil
	}
	return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "log-format", Detail: fmt.Sprintf("%.40q is no form of a log", format), WayOut: "say text or json"}
}

type handler struct {
	slog.Handler
	levels *Levels
	always func(context.Context) bool
}

func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.levels.now().least || h.anyway(ctx)
}

func (h handler) anyway(ctx context.Context) bool {
	return audit.IsEntry(ctx) || h.always(ctx)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if n := h.levels.now(); len(n.of) > 1 && r.Level < n.levelOf(h.levels.packageOf(r.PC)) && !h.anyway(ctx) {
		return nil
	}
	if !h.anyway(ctx) && !h.levels.floods.take(&r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.levels, h.always}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.levels, h.always}
}
