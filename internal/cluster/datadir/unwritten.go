package datadir

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// writeAgain is the pause before what could not be written is written again.
const writeAgain = 5 * time.Second

// NewWriter returns a Writer that has nothing left to write.
func NewWriter(log *slog.Logger, run func(do func(until context.Context))) *Writer {
	return &Writer{log: log, run: run}
}

// Writer writes files of the data directory, and keeps those that could not be
// written, since the disk is full, say, to write them later: a process that starts
// while etcd is away would go by older state.
type Writer struct {
	log     *slog.Logger
	run     func(do func(until context.Context)) // in a goroutine that its owner waits for
	writing sync.Mutex                           // one writes at a time, so that none is replaced by an older one

	mu struct {
		sync.Mutex
		again map[string]func() error // by file: writes it
		since time.Time               // when the first of them failed
	}
}

// Write writes a file of the data directory, and goes on trying where that fails.
func (u *Writer) Write(file string, write func() error) {
	u.writing.Lock()
	defer u.writing.Unlock()
	err := write()
	if err != nil {
		u.log.Error("the last good state could not be kept, trying again; until then a restart while etcd is away goes by an older one", "file", file, "err", err)
	}
	if u.note(file, write, err) {
		u.run(u.rewrite)
	}
}

// note notes how the writing of a file ended. It reports whether this is the first
// that is to be written again.
func (u *Writer) note(file string, write func() error, err error) (first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil {
		if delete(u.mu.again, file); len(u.mu.again) == 0 {
			u.mu.since = time.Time{}
		}
		return false
	}
	if first = len(u.mu.again) == 0; first {
		u.mu.again, u.mu.since = map[string]func() error{}, time.Now()
	}
	u.mu.again[file] = write
	return first
}

// Left returns what writes the files that are to be written again.
func (u *Writer) Left() map[string]func() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.mu.again)
}

// Since is when what is not on disk first could not be written; zero: all is.
func (u *Writer) Since() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.since
}

// rewrite writes what could not be written, until nothing is left or its
// owner ends. What was written meanwhile is not written again.
func (u *Writer) rewrite(until context.Context) {
	for {
		select {
		case <-until.Done():
			return
		case <-time.After(writeAgain):
		}
		for file := range u.Left() {
			u.writing.Lock()
			if write := u.Left()[file]; write != nil {
				u.note(file, write, write())
			}
			u.writing.Unlock()
		}
		if len(u.Left()) == 0 {
			u.log.Info("the last good state is kept on disk again")
			return
		}
	}
}

// Save writes a document to disk, whole or not at all.
func (u *Writer) Save(file string, doc any) {
	body, err := json.Marshal(doc)
	u.Write(file, func() error {
		if err != nil {
			return err
		}
		return Replace(file, body, 0o644)
	})
}
