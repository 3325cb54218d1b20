// Package audit writes down what is done to a cluster by request of somebody:
// who, what, to what, and how it was before and after. Reading is not written.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// Entry is one act.
type Entry struct {
	Time   time.Time `json:"time"`
	Who    string    `json:"who"`    // an identity; "anybody" where nothing says who may do what
	Act    string    `json:"act"`    // such as condemn
	On     string    `json:"on"`     // such as partition 17 of node-1
	Before string    `json:"before"` // how it was
	After  string    `json:"after"`  // how it is
	Fault  string    `json:"fault,omitempty"`
}

// maxWhoBytes bounds who, with the reason of what a node or a coordinator did.
const maxWhoBytes = 400

// Shortened bounds what an act says of who did it.
func Shortened(who string) string {
	return strings.ToValidUTF8(who[:min(len(who), maxWhoBytes)], "?")
}

// Log is a file of entries, a line of JSON each, that only grows. Each is in the
// process's log, too, whatever its level. A nil Log is the process's log alone.
type Log struct {
	name string
	mu   sync.Mutex
	file *os.File
}

type entryKey struct{}

// IsEntry reports whether what is logged by a context is an entry.
func IsEntry(ctx context.Context) bool { return ctx.Value(entryKey{}) != nil }

// Open opens a file, or makes it. Nobody but its owner may read it.
func Open(name string) (*Log, error) {
	f, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return &Log{name: name, file: f}, nil
}

func open(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}

// there opens the file anew if it was moved away, as who rotates logs does, or
// removed. The caller holds mu.
func (l *Log) there() error {
	have, err := l.file.Stat()
	if err != nil {
		return err
	}
	if is, err := os.Stat(l.name); err == nil && os.SameFile(have, is) {
		return nil
	}
	f, err := open(l.name)
	if err != nil {
		return err
	}
	_ = l.file.Close() // what is in it is on disk
	l.file = f
	return nil
}

// Write writes an entry, and gives it the time. It is on disk when Write returns
// nil: write before the act, what cannot be written down must not be done.
func (l *Log) Write(e Entry) error {
	e.Time = time.Now().UTC()
	slog.InfoContext(context.WithValue(context.Background(), entryKey{}, true), "audit", "who", e.Who, "act", e.Act, "on", e.On, "before", e.Before, "after", e.After, "fault", e.Fault)
	if l == nil {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err = l.there(); err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// Close closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
