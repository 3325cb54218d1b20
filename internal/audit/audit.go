// Package audit writes down what somebody has done to a cluster: who did what to what, and
// how that was before and after. It writes down no reads.
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
	Who    string    `json:"who"`             // an identity; "anybody" where nothing says who may do what
	Act    string    `json:"act"`             // such as condemn
	On     string    `json:"on"`              // such as partition 17 of node-1
	Before string    `json:"before"`          // how it was
	After  string    `json:"after"`           // how the act leaves it
	Fault  string    `json:"fault,omitempty"` // why the act was not done; empty: it was
}

// maxWhoBytes bounds who, with the reason that a node or a coordinator gives there.
const maxWhoBytes = 400

// Shortened returns the first maxWhoBytes of who, with a "?" for what is not UTF-8.
func Shortened(who string) string {
	return strings.ToValidUTF8(who[:min(len(who), maxWhoBytes)], "?")
}

// Log is a file of entries, a line of JSON each, that only grows. Each entry is also in the
// process's log, whatever that log's level. A nil Log writes to the process's log alone.
type Log struct {
	name string
	mu   sync.Mutex
	file file
	torn bool // the file ends in the middle of a line, as after a full disk
}

// file is what a Log uses of an *os.File.
type file interface {
	io.WriteCloser
	Stat() (os.FileInfo, error)
	Sync() error
}

// entryKey marks the context by which an entry goes to the process's log.
type entryKey struct{}

// IsEntry reports whether a message to the process's log, by its context, is an entry. A
// log handler keeps such a message whatever its level.
func IsEntry(ctx context.Context) bool { return ctx.Value(entryKey{}) != nil }

// Open opens the file of a Log, or makes it. Only its owner may read a file that it makes.
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

// reopenMoved opens the file anew if it was removed or moved away, as a rotation of logs
// does. The caller holds mu.
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

// Write writes an entry, with the present time. The entry is on disk when Write returns
// nil. Call it before the act, and do not act if it fails: what cannot be written down must
// not be done. The process's log has the entry in any case, with the failure in its Fault.
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
	if l.torn { // end the line that is torn, so that this entry is a line of its own
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

// Close closes the file. A nil Log has none.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}
