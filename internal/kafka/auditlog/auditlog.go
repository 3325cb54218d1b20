// Package auditlog copies the audit log of a process to a topic of Kafka, where
// whoever may write its file cannot take anything back.
package auditlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/kafka"
)

// Config says what is copied where to.
type Config struct {
	File    string // of the audit log; how far it is copied is kept in File + ".sent"
	Brokers kafka.Brokers
	Topic   string // is made, with one partition, where it is missing
	By      string // the process, which is the key of its entries
	Log     *slog.Logger
}

// Copier copies. What is in the file comes to the topic in its order, once; entries
// may come twice where a process died on the way. What is left is copied when the
// process is back: the file is the truth.
type Copier struct {
	cfg  Config
	file *os.File // nil: there was none yet
	at   atomic.Int64
	told string // the last fault
}

const (
	lookEvery  = time.Second
	againAfter = 5 * time.Second
	tellAfter  = 10 * time.Second // that Kafka takes nothing
	// pieceBytes is how much is read at a time. No entry is longer.
	pieceBytes = 1 << 20
	// endWithin is how long what is on its way may take when the process ends.
	endWithin = 2 * time.Second
)

// New returns a copier, which begins with Run.
func New(c Config) *Copier { return &Copier{cfg: c} }

// Unsent is how many bytes of the file are not in the topic. A nil Copier copies
// nothing, and is never behind.
func (c *Copier) Unsent() int64 {
	if c == nil {
		return 0
	}
	is, err := os.Stat(c.cfg.File)
	if err != nil {
		return 0
	}
	return max(0, is.Size()-c.at.Load())
}

// Collector tells how far the topic is behind.
func (c *Copier) Collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_audit_unsent_bytes", Help: "Bytes of the audit log that are not in its topic yet; 0 where there is no topic.",
	}, func() float64 { return float64(c.Unsent()) })
}

// Run copies until ctx ends, whatever happens to Kafka and to the file.
func (c *Copier) Run(ctx context.Context) {
	tell := func(err error) { c.tell(err) }
	if err := kafka.EnsureContentTopic(ctx, c.cfg.Brokers, c.cfg.Topic, 1, tell); err != nil {
		c.tell(err) // it may be there all the same, and this process not allowed to make it
	}
	to, err := kafka.NewProducer(c.cfg.Brokers, "", c.cfg.Log)
	if err != nil {
		c.tell(err)
		return
	}
	defer to.Close()
	for ctx.Err() == nil {
		copied, err := c.step(ctx, to)
		pause := lookEvery
		switch {
		case err != nil && ctx.Err() == nil:
			c.tell(err)
			pause = againAfter
		case copied:
			c.told = ""
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	if c.file != nil {
		_ = c.file.Close()
	}
}

// tell tells a fault once, for as long as it lasts.
func (c *Copier) tell(err error) {
	if err != nil && err.Error() != c.told {
		c.told = err.Error()
		c.cfg.Log.Warn("the audit log is not copied to its topic; its file has everything", "topic", c.cfg.Topic, "file", c.cfg.File, "unsent", c.Unsent(), "err", err)
	}
}

// step copies what is there, at most a piece, and reports whether there was
// anything.
func (c *Copier) step(ctx context.Context, to *kafka.Producer) (bool, error) {
	if c.file == nil {
		if err := c.open(); err != nil || c.file == nil {
			return false, err
		}
	}
	piece := make([]byte, pieceBytes)
	n, err := c.file.ReadAt(piece, c.at.Load())
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	piece = piece[:n]
	whole := bytes.LastIndexByte(piece, '\n') + 1
	switch {
	case whole == 0 && n < pieceBytes:
		return false, c.follow(n > 0)
	case whole == 0: // no entry is so long
		whole = n
	}
	last, err := c.send(ctx, to, piece[:whole])
	if err != nil {
		return false, err
	}
	return true, c.keep(c.at.Add(int64(whole)), last)
}

// send returns the last of some lines when they are in the topic. It goes on a little
// when ctx has ended: otherwise they would come twice.
func (c *Copier) send(ctx context.Context, to *kafka.Producer, lines []byte) (last []byte, err error) {
	sends, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endWithin, cancel) })()
	for line := range bytes.Lines(lines) {
		if entry := bytes.TrimSuffix(line, []byte("\n")); json.Valid(entry) { // else it is the beginning of one, of what was not done
			to.Produce(sends, kafka.Outgoing{Topic: c.cfg.Topic, Key: []byte(c.cfg.By), Value: entry})
		}
		last = line
	}
	slow := time.AfterFunc(tellAfter, func() {
		c.cfg.Log.Warn("Kafka takes nothing of the audit log; its file has everything", "topic", c.cfg.Topic, "file", c.cfg.File, "unsent", c.Unsent())
	})
	defer slow.Stop()
	return last, to.Flush(sends)
}

// follow goes on with the file that has the name now, if that is another one, as who
// rotates logs makes. torn says that this one ends in the middle of an entry, which
// nobody goes on with then.
func (c *Copier) follow(torn bool) error {
	have, err := c.file.Stat()
	if err != nil {
		return err
	}
	is, err := os.Stat(c.cfg.File)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && os.SameFile(have, is) && is.Size() >= c.at.Load():
		return nil // it is made anew at the next act
	case err != nil:
		return err
	}
	if torn {
		c.cfg.Log.Warn("the audit log that was moved away ends in the middle of an entry", "file", c.cfg.File)
	}
	_ = c.file.Close()
	c.file = nil
	return c.keep(0, nil)
}

// place is how far a file is copied: its offset, and which line ends there, so that
// another file of the name is known as such.
type place struct {
	Offset int64  `json:"offset"`
	Length int    `json:"length"` // of the line
	Sum    string `json:"sum"`    // SHA-256
}

func sumOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// keep notes how far the file is copied.
func (c *Copier) keep(offset int64, last []byte) error {
	c.at.Store(offset)
	text, err := json.Marshal(place{offset, len(last), sumOf(last)})
	if err != nil {
		return err
	}
	name := c.cfg.File + ".sent"
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// open opens the file, if there is one, and finds how far it is copied.
func (c *Copier) open() error {
	f, err := os.Open(c.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	c.file = f
	c.at.Store(0)
	text, err := os.ReadFile(c.cfg.File + ".sent")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var p place
	if err := json.Unmarshal(text, &p); err != nil || p.Length < 0 || p.Length > pieceBytes || int64(p.Length) > p.Offset {
		return c.keep(0, nil) // entries come twice rather than not at all
	}
	last := make([]byte, p.Length)
	if _, err := f.ReadAt(last, p.Offset-int64(p.Length)); err == nil && sumOf(last) == p.Sum {
		c.at.Store(p.Offset)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", c.cfg.File, err)
	}
	return nil
}
