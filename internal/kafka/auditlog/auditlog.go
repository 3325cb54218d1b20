// Package auditlog copies the audit log of a process from its file to a Kafka topic. The
// audit log says who had the process do what. A person who can change the file cannot
// change what is in the topic.
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

// Config says what is copied to where.
type Config struct {
	File    string // the audit log, a line of JSON for each entry; File + ".sent" says how far it is copied
	Brokers kafka.Brokers
	Topic   string // created, with one partition, if it does not exist
	By      string // names the process: the key of its entries in the topic
	Log     *slog.Logger
}

// Copier copies the entries of the file to the topic, in their order. Each entry is copied
// once; if the process dies while it copies, some may be copied twice. The entries that
// are not copied then are copied when the process runs again.
type Copier struct {
	cfg  Config
	file *os.File     // nil: it is not open, or does not exist yet
	at   atomic.Int64 // the offset up to which the file is copied
	told string       // the text of the fault that was logged last; "": entries were copied since, or there was none
}

const (
	lookEvery  = time.Second      // how often the file is looked at for more
	againAfter = 5 * time.Second  // the pause after a failure
	tellAfter  = 10 * time.Second // how long Kafka may take entries without an answer until that is logged
	// pieceBytes is how much of the file is read at a time. No entry is longer.
	pieceBytes = 1 << 20
	// endWithin is how long entries that are on their way may take when the process
	// ends.
	endWithin = 2 * time.Second
)

// New returns a copier. Call Run to have it copy.
func New(c Config) *Copier { return &Copier{cfg: c} }

// Unsent returns how many bytes of the file are not copied yet; 0 if the file cannot be
// looked at. For a nil Copier it is 0.
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

// Collector returns the metric of Unsent.
func (c *Copier) Collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_audit_unsent_bytes", Help: "Bytes of the audit log that are not in its topic yet; 0 where there is no topic.",
	}, func() float64 { return float64(c.Unsent()) })
}

// Run copies until ctx ends. Failures of Kafka or of the file are logged, and it goes on.
// It returns earlier only if no producer can be made from the configuration.
func (c *Copier) Run(ctx context.Context) {
	tell := func(err error) { c.tell(err) }
	if err := kafka.EnsureContentTopic(ctx, c.cfg.Brokers, c.cfg.Topic, 1, tell); err != nil {
		c.tell(err) // the topic may exist all the same: this process may only lack the right to create it
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

// tell logs a fault, unless it is the one that was logged last. A nil err is no fault.
func (c *Copier) tell(err error) {
	if err != nil && err.Error() != c.told {
		c.told = err.Error()
		c.cfg.Log.Warn("the audit log is not copied to its topic; its file has everything", "topic", c.cfg.Topic, "file", c.cfg.File, "unsent", c.Unsent(), "err", err)
	}
}

// step copies the next entries of the file, at most a piece, and reports whether there
// were any.
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
	case whole == 0: // no entry is so long: pass over the piece
		whole = n
	}
	last, err := c.send(ctx, to, piece[:whole])
	if err != nil {
		return false, err
	}
	return true, c.keep(c.at.Add(int64(whole)), last)
}

// send sends lines to the topic, waits until they are there, and returns the last. If ctx
// ends meanwhile, it goes on for endWithin: otherwise these lines would be copied again
// later.
func (c *Copier) send(ctx context.Context, to *kafka.Producer, lines []byte) (last []byte, err error) {
	sends, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endWithin, cancel) })()
	for line := range bytes.Lines(lines) {
		if entry := bytes.TrimSuffix(line, []byte("\n")); json.Valid(entry) { // else the entry was cut while it was written, and its act was not done
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

// follow looks whether another file has the name by now, as after a rotation of logs, or
// whether the file was cut. If so, the next step goes on at the beginning of the file of
// that name. torn says that the old file ends in the middle of an entry, of which the rest
// will not come.
func (c *Copier) follow(torn bool) error {
	have, err := c.file.Stat()
	if err != nil {
		return err
	}
	is, err := os.Stat(c.cfg.File)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && os.SameFile(have, is) && is.Size() >= c.at.Load():
		return nil // it is the same file, or there is none: the process creates one with the next entry
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

// place says up to which offset a file is copied. It also identifies the line that ends
// there, so that another file of the same name is recognized.
type place struct {
	Offset int64  `json:"offset"` // in bytes
	Length int    `json:"length"` // of the line, in bytes
	Sum    string `json:"sum"`    // SHA-256 of the line, in hex
}

func sumOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

// keep notes that the file is copied up to an offset, in memory and in File + ".sent".
// last is the line that ends at the offset.
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

// open opens the file, if there is one, and finds how far it is copied. If the place in
// File + ".sent" is of another file, copying begins at the file's beginning.
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
