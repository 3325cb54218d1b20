package auditlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka/auditlog"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// copied is an audit log, what copies it, and a reader of the topic.
type copied struct {
	t      *testing.T
	cfg    auditlog.Config
	acts   *audit.Log
	reader *kgo.Client
	end    func() // of what copies
	have   []string
	wrote  int
}

func newCopied(t *testing.T) *copied {
	t.Helper()
	k := kafkatest.Fake(t)
	c := &copied{t: t, cfg: auditlog.Config{File: filepath.Join(t.TempDir(), "audit"), Brokers: k.Brokers, Topic: "acts", By: "host:audit", Log: slog.New(slog.DiscardHandler)}}
	var err error
	c.reader, err = kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.ConsumeTopics("acts"), kgo.UnknownTopicRetries(-1), kgo.MetadataMinAge(50*time.Millisecond))
	kafkatest.Must(t, err)
	t.Cleanup(c.reader.Close)
	c.acts, err = audit.Open(c.cfg.File)
	kafkatest.Must(t, err)
	t.Cleanup(func() { _ = c.acts.Close() })
	return c
}

// write writes entries, each with its number.
func (c *copied) write(n int) {
	c.t.Helper()
	for range n {
		c.wrote++
		kafkatest.Must(c.t, c.acts.Write(audit.Entry{Who: "ops", Act: "act", On: fmt.Sprint(c.wrote)}))
	}
}

func (c *copied) start() {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		auditlog.New(c.cfg).Run(ctx)
	}()
	c.end = func() { cancel(); <-done }
	c.t.Cleanup(c.end)
}

// reads returns when the topic has so many entries.
func (c *copied) reads(n int) {
	c.t.Helper()
	ctx := kafkatest.Deadline(c.t)
	for len(c.have) < n {
		c.reader.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			var e audit.Entry
			kafkatest.Must(c.t, json.Unmarshal(r.Value, &e))
			if string(r.Key) != "host:audit" || e.Who != "ops" {
				c.t.Errorf("%s: %s", r.Key, r.Value)
			}
			c.have = append(c.have, e.On)
		})
		kafkatest.Must(c.t, ctx.Err())
	}
}

// all is the numbers of all entries that were written.
func (c *copied) all() (all []string) {
	for n := range c.wrote {
		all = append(all, fmt.Sprint(n+1))
	}
	return all
}

// What is written comes to the topic in its order, once: also what was written
// before and between two processes, and what is in a file that was moved away or in
// the one that is made in its place.
func TestEntriesComeOnce(t *testing.T) {
	c := newCopied(t)
	c.write(5)
	c.start()
	c.write(5)
	c.reads(10)
	c.end()
	c.write(5)
	c.start()
	c.reads(15)
	kafkatest.Must(t, os.Rename(c.cfg.File, c.cfg.File+".1"))
	c.write(5)
	c.reads(20)
	c.write(1)
	c.reads(21)
	c.end()
	kafkatest.Must(t, os.Rename(c.cfg.File, c.cfg.File+".2"))
	c.write(3) // a shorter file, and a longer one, of the name
	c.start()
	c.reads(24)
	c.end()
	kafkatest.Must(t, os.Rename(c.cfg.File, c.cfg.File+".3"))
	c.write(50)
	c.start()
	c.reads(74)
	if want := c.all(); !slices.Equal(c.have, want) {
		t.Errorf("the topic has %v", c.have)
	}
	if n := auditlog.New(c.cfg).Unsent(); n == 0 {
		t.Error("one that has not begun has nothing to do")
	}
}

// The beginning of an entry is of what was not done. Who does not know how far the
// file was copied copies it again.
func TestTornEntriesAndPlaces(t *testing.T) {
	c := newCopied(t)
	c.write(2)
	f, err := os.OpenFile(c.cfg.File, os.O_APPEND|os.O_WRONLY, 0o600)
	kafkatest.Must(t, err)
	_, err = f.WriteString("{\"who\":\"ops\",\"act\":\"to")
	kafkatest.Must(t, err)
	kafkatest.Must(t, f.Close())
	c.start()
	c.reads(2)
	c.end()
	f, err = os.OpenFile(c.cfg.File, os.O_APPEND|os.O_WRONLY, 0o600)
	kafkatest.Must(t, err)
	_, err = f.WriteString("\n")
	kafkatest.Must(t, err)
	kafkatest.Must(t, f.Close())
	c.write(2)
	c.start()
	c.reads(4)
	c.end()
	if want := c.all(); !slices.Equal(c.have, want) {
		t.Errorf("the topic has %v", c.have)
	}
	for _, text := range []string{"", "nonsense", `{"offset":10,"length":20}`, `{"offset":1e3,"length":5,"sum":""}`} {
		kafkatest.Must(t, os.WriteFile(c.cfg.File+".sent", []byte(text), 0o600))
		c.have = nil
		c.start()
		c.reads(4)
		c.end()
		if want := c.all(); !slices.Equal(c.have, want) {
			t.Errorf("after %q the topic has %v", text, c.have)
		}
	}
}
