package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// chunk is some consecutive lines of the file, and the records that they become. Chunks
// are encoded in parallel and delivered in their order, so that the records of one entity
// stay in order.
type chunk struct {
	text    []byte           // the text of all lines, one after the other
	lines   []line           // where the lines are in text
	done    chan struct{}    // closed when records and refused are complete
	records []kafka.Outgoing // in the order of the lines
	refused []refusal        // in the order of the lines
}

// line is a place in the text of a chunk.
type line struct {
	number   int   // the line's number in the file, from 1
	from, to int   // the line is text[from:to] of the chunk
	fault    error // why the line was refused when it was read; nil: it was not
}

// refusal is a line that does not fit the schema, or is too long.
type refusal struct {
	number int
	text   []byte
	why    error
}

const (
	chunkBytes = 256 << 10 // a chunk of at least so many bytes, or of chunkLines lines, is full
	chunkLines = 2000
)

// pass encodes the lines of the file and hands their records to the producer. It returns
// when all are handed over, or with the first error. If the file cannot be read on at
// some place, the lines before it are handed over all the same.
func (l *loader) pass(ctx context.Context) error {
	g, life := errgroup.WithContext(ctx)
	workers := runtime.GOMAXPROCS(0)
	// read puts a chunk into ordered first, and then into work. So the chunk that is
	// delivered next is always being encoded, or will be.
	ordered, work := make(chan *chunk, 2*workers), make(chan *chunk, 2*workers)
	var unread error
	g.Go(func() error {
		defer close(ordered)
		defer close(work)
		unread = l.read(life, ordered, work)
		return nil
	})
	for range workers {
		g.Go(func() error {
			for c := range work {
				l.encode(c)
				close(c.done)
			}
			return nil
		})
	}
	g.Go(func() error {
		for c := range ordered {
			select {
			case <-c.done:
			case <-life.Done():
				return life.Err()
			}
			if err := l.deliver(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return unread
}

// read splits the file into chunks, and puts each into ordered and work, until the file
// or ctx ends.
func (l *loader) read(ctx context.Context, ordered, work chan<- *chunk) error {
	for {
		c := &chunk{text: make([]byte, 0, chunkBytes+chunkBytes/8), done: make(chan struct{})}
		err := l.fill(c)
		if len(c.lines) > 0 {
			for _, to := range []chan<- *chunk{ordered, work} {
				select {
				case to <- c:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("load: read %s after line %d: %w", l.o.File, l.in.number, err)
		}
	}
}

// fill reads the next lines that are not blank into c, until it is full. io.EOF comes
// after the last line; c may then have lines.
func (l *loader) fill(c *chunk) (err error) {
	for len(c.text) < chunkBytes && len(c.lines) < chunkLines {
		from := len(c.text)
		c.text, err = l.in.next(c.text)
		var refused *schemas.Error
		if err != nil && !errors.As(err, &refused) {
			return err
		}
		if err == nil && len(bytes.TrimSpace(c.text[from:])) == 0 {
			c.text = c.text[:from]
			continue
		}
		c.lines = append(c.lines, line{l.in.number, from, len(c.text), err})
	}
	return nil
}

// encode turns the lines of a chunk into records. It makes the check that partitioners
// make, so that a record whose bytes they would refuse is not sent. Records of one entity
// go to one partition of the topic, so that the entity's changes stay in order.
func (l *loader) encode(c *chunk) {
	now, values := millrace.TimeOf(time.Now()), make([]byte, 0, len(c.text))
	c.records = make([]kafka.Outgoing, 0, len(c.lines))
	for _, x := range c.lines {
		text, from, err := c.text[x.from:x.to], len(values), x.fault
		var env schemas.Envelope
		if err == nil {
			values, env, err = l.accept(values, text, now)
		}
		if err != nil {
			values = values[:from]
			c.refused = append(c.refused, refusal{x.number, text, err})
			continue
		}
		key := []byte(env.Entity)
		c.records = append(c.records, kafka.Outgoing{
			Topic: l.o.Topic, Partition: int32(partition.OfBytes(key)) % l.partitions, Key: key, Value: values[from:len(values):len(values)],
		})
	}
}

// accept appends a line as the value of a record: the fingerprint of its schema, then its
// Avro body. now is the arrival of the record. The error says why the line does not fit.
func (l *loader) accept(dst, text []byte, now millrace.Time) ([]byte, schemas.Envelope, error) {
	dst = schemas.AppendFrame(dst, l.o.Schema.Fingerprint())
	body := len(dst)
	dst, err := l.o.Schema.AppendJSON(dst, text)
	if err != nil {
		return dst, schemas.Envelope{}, err
	}
	env, err := l.o.Schema.Accept(dst[body:], now, l.future)
	return dst, env, err
}
