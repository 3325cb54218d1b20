// Package audit writes down what is done to a cluster by request of somebody:
// who, what, to what, and how it was before and after. Reading is not written.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	file file
	torn bool // the file ends in the middle of a line, as of a full disk
}

// file is an *os.File.
type file interface {
	io.WriteCloser
	Stat() (os.FileInfo, error)
	Sync() error
}

type entryKey struct{}

// IsEntry reports whether what is logged by a context is an entry.
func IsEntry(ctx context.Context) bool { return ctx.Value(entryKey{}) != nil }

// Open opens a file, or makes it. Nobody but its owner may read it.
func Open(name string) (*Log, error) {
	f, torn, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return &Log{name: name, file: f, torn: torn}, nil
}

// open opens a file, and reports whether it ends in the middle of a line.
func open(name string) (f *os.File, torn bool, err error) {
	if f, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, false, err
	}
	is, err := f.Stat()
	if err == nil && is.Size() > 0 {
		last := make([]byte, 1)
		_, err = f.ReadAt(last, is.Size()-1)
		torn = last[0] != '\n'
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	return f, torn, nil
}

// reopenMoved opens the file anew if it was moved away, as who rotates logs does, or
// removed. The caller holds mu.
func (l *Log) reopenMoved() error {
	have, err := l.file.Stat()
	if err != nil {
		return err
	}
	if is, err := os.Stat(l.name); err == nil && os.SameFile(have, is) {
		return nil
	}
	f, torn, err := open(l.name)
	if err != nil {
		return err
	}
	_ = l.file.Close() // what is in it is on disk
	l.file, l.torn = f, torn
	return nil
}

// Write writes an entry, and gives it the time. It is on disk when Write returns
// nil: write before the act, what cannot be written down must not be done. The
// process's log then has it with that for its fault.
func (l *Log) Write(e Entry) error {
	e.Time = time.Now().UTC()
	err := l.write(e)
	if err != nil {
		e.Fault = strings.TrimPrefix(e.Fault+"; cannot be written down: "+err.Error(), "; ")
		err = fmt.Errorf("audit: %w", err)
	}
	slog.InfoContext(context.WithValue(context.Background(), entryKey{}, true), "audit", "who", e.Who, "act", e.Act, "on", e.On, "before", e.Before, "after", e.After, "fault", e.Fault)
	return err
}

func (l *Log) write(e Entry) error {
	if l == nil {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.reopenMoved(); err != nil {
		return err
	}
	line = append(line, '\n')
	if l.torn { // the rest of that line is lost, and this one must not be with it
		line = append([]byte{'\n'}, line...)
	}
	n, err := l.file.Write(line)
	if n > 0 {
		l.torn = n < len(line)
	}
	if err != nil {
		return err
	}
	return l.file.Sync()
}

// Close closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
