package bench

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/schemas"
)

// fill writes the world's records into the log, and then the file done. If that file exists
// already, it does nothing.
func fill(ctx context.Context, c *Config, w *world, b *rig.Backing, done string) error {
	if have, err := os.ReadFile(done); err == nil {
		c.say("the log is filled already: %s", bytes.TrimSpace(have))
		return nil
	}
	began := time.Now()
	var entities atomic.Int64
	stop := c.every(2*time.Second, func() { c.say("  %d of %d entities written", entities.Load(), w.entities) })
	defer stop()
	records, err := b.Fill(ctx, schemas.Activity(), w.bodies(&entities))
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d records of %d entities", records, w.entities)
	c.say("%s written in %.1f s", what, time.Since(began).Seconds())
	return os.WriteFile(done, []byte(what+"\n"), 0o644)
}

// bodies yields all records of the world, and counts the entities that it has finished.
func (w *world) bodies(entities *atomic.Int64) iter.Seq2[rig.Body, error] {
	return func(yield func(rig.Body, error) bool) {
		for i := range w.entities {
			for _, x := range w.records(i) {
				body, err := w.body(&x)
				if !yield(rig.Body{Entity: entityName(i), Avro: body}, err) {
					return
				}
			}
			entities.Add(1)
		}
	}
}

// every calls do each d until stop is called. stop waits for a call in progress.
func (c *Config) every(d time.Duration, do func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	tick := time.NewTicker(d)
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick.C:
				do()
			case <-done:
				return
			}
		}
	}()
	return func() { tick.Stop(); close(done); <-ended }
}
