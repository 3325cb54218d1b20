package cluster

import (
	"maps"
	"sync"
	"time"
)

// writeAgain is the pause before what could not be written is written again.
const writeAgain = 5 * time.Second

// unwritten is what the data directory should have and has not, since its disk is
// full, say. A process that starts while etcd is away would go by older state.
type unwritten struct {
	writing sync.Mutex // one writes at a time, so that none is replaced by an older one

	mu struct {
		sync.Mutex
		again map[string]func() error // by file: writes it
		since time.Time               // when the first of them failed
	}
}

// write writes a file of the data directory, and goes on trying where that fails.
func (c *Client) write(file string, write func() error) {
	u := &c.unwritten
	u.writing.Lock()
	defer u.writing.Unlock()
	err := write()
	if err != nil {
		c.log.Error("the last good state could not be kept, trying again; until then a restart while etcd is away goes by an older one", "file", file, "err", err)
	}
	if u.note(file, write, err) {
		c.wg.Go(c.rewrite)
	}
}

// note notes how the writing of a file ended. It reports whether this is the first
// that is to be written again.
func (u *unwritten) note(file string, write func() error, err error) (first bool) {
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

// left returns what is to be written again, by file.
func (u *unwritten) left() map[string]func() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.mu.again)
}

// sinceWhen is when what is not on disk first could not be written; zero: all is.
func (u *unwritten) sinceWhen() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.since
}

// rewrite writes what could not be written, until nothing is left or the client is
// closed. What was written meanwhile is not written again.
func (c *Client) rewrite() {
	u := &c.unwritten
	for wait(c.ctx, writeAgain) == nil {
		for file := range u.left() {
			u.writing.Lock()
			if write := u.left()[file]; write != nil {
				u.note(file, write, write())
			}
			u.writing.Unlock()
		}
		if len(u.left()) == 0 {
			c.log.Info("the last good state is kept on disk again")
			return
		}
	}
}
