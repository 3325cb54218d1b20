// Package logs decides what a process logs: from which level on, by package, and in which form.
// The level of a package can be changed for some time while the process runs. It also bounds
// how much one place in the code writes.
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

// Setting is the level from which on a process logs, and the levels of packages that have
// another one.
type Setting struct {
	Level    slog.Level
	Packages map[string]slog.Level // by package, such as broker or internal/kafka; a level counts for the packages below, too
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

// module is the path that the names of this module's packages begin with.
const module = "github.com/millrace/millrace/"

const (
	maxPackage = 100 // bytes of the name of a package
	maxChanges = 100 // changes that count at the same time
)

func checkPackage(name string) error {
	if name == "" || len(name) > maxPackage || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789/_-.") != "" {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "package", Detail: fmt.Sprintf("%.40q is no package", name), WayOut: "name one as its folder is, such as broker or internal/kafka"}
	}
	return nil
}

// Levels are the levels of a process. Its methods may be called concurrently.
type Levels struct {
	start    Setting
	mu       sync.Mutex             // guards changes
	changes  map[string]Change      // by package; "" is for packages without a level of their own
	current  atomic.Pointer[levels] // the levels that count until its time ends has come
	packages sync.Map               // the package of a place in the code: program counter (uintptr) to string
	floods   floods
}

// Change is the level of a package.
type Change struct {
	Package string     `json:"package"` // empty: all packages without a level of their own
	Level   slog.Level `json:"level"`
	Until   *time.Time `json:"until,omitempty"` // when the change ends; nil: the process was started with this level
}

// levels are the levels that count at some time.
type levels struct {
	of    map[string]slog.Level // by package; "" is for all others
	least slog.Level            // the lowest of all of them
	ends  time.Time             // when the first change ends, and other levels count; zero: never
}

// NewLevels returns the levels of a process that is started with s.
func NewLevels(s Setting) *Levels {
	l := &Levels{start: s, changes: map[string]Change{}}
	l.count(time.Now())
	return l
}

// count sets and returns the levels that count now, and forgets changes that have ended. The
// caller holds l.mu, or is the only one to have l.
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

// now returns the levels that count now.
func (l *Levels) now() *levels {
	n := l.current.Load()
	if n.ends.IsZero() || time.Now().Before(n.ends) {
		return n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count(time.Now())
}

// How long a change lasts: if the request does not say, and at most.
const (
	defaultChange = time.Hour
	maxChange     = 24 * time.Hour
)

// Set sets the level from which on a package logs, for some time. The name "" stands for all
// packages without a level of their own. The error is a [*millrace.Error].
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

// checkChange returns an error if name cannot be a package or "", or a change cannot last so
// long.
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

// All returns the levels that count now, in the order of packages.
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

// packageOf returns the package of a place in the code, without the path of the module.
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

// New returns a handler that writes lines to w in a format, [Text] or [JSON]. It writes the
// lines that the levels in l allow. Whatever the levels, it writes the entries of an audit log,
// and all lines in a context for which always returns true. Of other lines it writes no more
// than 100 of one place in the code in ten seconds, DEBUG apart; the next line of that place
// says how many were left out. The error is about the format.
func New(w io.Writer, format string, l *Levels, always func(context.Context) bool) (slog.Handler, error) {
	all := &slog.HandlerOptions{Level: slog.Level(-1 << 20)} // lower than any: this package decides what is written
	switch format {
	case Text:
		return handler{slog.NewTextHandler(w, all), l, always}, nil
	case JSON:
		return handler{slog.NewJSONHandler(w, all), l, always}, nil
	}
	return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "log-format", Detail: fmt.Sprintf("%.40q is no form of a log", format), WayOut: "say text or json"}
}

// handler decides what the handler in it writes.
type handler struct {
	slog.Handler
	levels *Levels
	always func(context.Context) bool
}

func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.levels.now().least || h.anyway(ctx)
}

// anyway reports whether lines in ctx are written whatever the levels.
func (h handler) anyway(ctx context.Context) bool {
	return audit.IsEntry(ctx) || h.always(ctx)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	// If all packages have one level, Enabled has checked it already.
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
