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

// NewWriter returns a Writer that has nothing left to write. run must call do in a goroutine
// that its owner waits for, and end until when the owner ends.
func NewWriter(log *slog.Logger, run func(do func(until context.Context))) *Writer {
	return &Writer{log: log, run: run}
}

// Writer writes files of the data directory. It remembers those that could not be written,
// on a full disk for example, and writes them later: otherwise a process that starts while
// etcd is away would go by older state.
type Writer struct {
	log     *slog.Logger
	run     func(do func(until context.Context)) // see NewWriter
	writing sync.Mutex                           // one file is written at a time, so that no older state replaces a newer one

	mu struct {
		sync.Mutex
		again map[string]func() error // by file: writes it
		since time.Time               // when the first of them failed
	}
}

// Write calls write, which writes a file of the data directory. If that fails it calls it
// again every writeAgain until it succeeds, or until another Write of the same file does.
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

// note notes how the writing of a file ended. It reports whether this is now the only file
// that is to be written again, so that rewrite has to be started.
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

// Left returns a function for each file that is to be written again, which writes it.
func (u *Writer) Left() map[string]func() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.mu.again)
}

// Since returns since when some file could not be written; the zero time if all are.
func (u *Writer) Since() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.since
}

// rewrite writes the files that could not be written, until none is left or until is done.
// It leaves out files that Write has written meanwhile.
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

// Save writes doc to a file as JSON, whole or not at all, as Write does.
func (u *Writer) Save(file string, doc any) {
	body, err := json.Marshal(doc)
	u.Write(file, func() error {
		if err != nil {
			return err
		}
		return Replace(file, body, 0o644)
	})
}
