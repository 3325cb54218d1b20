package auditlog

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// Each step copies the whole entries that are there, and knows how far it is. It follows a
// file that is moved away or cut, passes over what is too long to be an entry, and tells what
// it cannot read or keep.
func TestSteps(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	to, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer to.Close()
	var log strings.Builder
	c := New(Config{File: filepath.Join(t.TempDir(), "audit"), Brokers: k.Brokers, Topic: k.Topics.DeadLetters, By: "me", Log: slog.New(slog.NewTextHandler(&log, nil))})
	sent := c.cfg.File + ".sent"
	write := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		kafkatest.Must(t, err)
		_, err = f.WriteString(text)
		kafkatest.Must(t, err)
		kafkatest.Must(t, f.Close())
	}
	step := func(what string, copied, fails bool, unsent int64) {
		t.Helper()
		got, err := c.step(ctx, to)
		if got != copied || (err != nil) != fails || c.Unsent() != unsent {
			t.Errorf("%s: copied %v, %v, and %d bytes are not", what, got, err, c.Unsent())
		}
	}
	again := func() { // as another process
		t.Helper()
		if c.file != nil {
			kafkatest.Must(t, c.file.Close())
		}
		c = New(c.cfg)
	}
	step("no file", false, false, 0)
	write(c.cfg.File, "[1]\n[2]\n[3")
	step("two entries", true, false, 2)
	step("a part of one", false, false, 2)
	write(c.cfg.File, "]\n")
	step("the rest of it", true, false, 0)
	step("nothing", false, false, 0)
	again()
	step("another process", false, false, 0)
	write(c.cfg.File, "[4")
	kafkatest.Must(t, os.Rename(c.cfg.File, c.cfg.File+".1"))
	step("moved away, and none in its place", false, false, 0)
	write(c.cfg.File, "[5]\n")
	if step("another in its place", false, false, 4); !strings.Contains(log.String(), "ends in the middle of an entry") {
		t.Errorf("it said %s", &log)
	}
	step("what is in it", true, false, 0)
	kafkatest.Must(t, os.Truncate(c.cfg.File, 0))
	step("cut", false, false, 0)
	write(c.cfg.File, "[6]\n")
	step("and written again", true, false, 0)
	write(c.cfg.File, strings.Repeat("x", pieceBytes)+"]\n[7]\n")
	step("too long", true, false, 6)
	step("what is behind it", true, false, 0)
	// Faults.
	kafkatest.Must(t, os.Mkdir(sent+".new", 0o700))
	write(c.cfg.File, "[8]\n")
	step("how far it is cannot be kept", true, true, 0)
	kafkatest.Must(t, os.Remove(sent+".new"))
	kafkatest.Must(t, os.Remove(sent))
	kafkatest.Must(t, os.Mkdir(sent, 0o700))
	again()
	size := c.Unsent()
	step("how far it is cannot be read", false, true, size)
	kafkatest.Must(t, os.Remove(sent))
	kafkatest.Must(t, os.WriteFile(c.cfg.File, []byte("[9]\n"), 0o600))
	for text, unsent := range map[string]int64{
		`{"offset":4,"length":4,"sum":"` + sumOf([]byte("[9]\n")) + `"}`: 0, `{"offset":4,"length":4,"sum":"x"}`: 4, `{"offset":9,"length":4,"sum":""}`: 4, `{"offset":4,"length":5,"sum":""}`: 4,
		`{"offset":4,"length":-1,"sum":""}`: 4, `{"offset":2000000,"length":1048577,"sum":""}`: 4, `{"offset":0,"length":0,"sum":"` + sumOf(nil) + `"}`: 4, "nonsense": 4,
	} {
		kafkatest.Must(t, os.WriteFile(sent, []byte(text), 0o600))
		again()
		if err := c.open(); err != nil || c.Unsent() != unsent {
			t.Errorf("%s: %d bytes are not copied, %v", text, c.Unsent(), err)
		}
	}
	again()
	c.cfg.File = filepath.Join(c.cfg.File, "x") // below a file
	step("no place for a file", false, true, 0)
	c.cfg.File = t.TempDir()
	if _, err := c.step(ctx, to); err == nil {
		t.Error("a directory is copied")
	}
	ended, stop := context.WithCancel(ctx)
	stop()
	log.Reset()
	c.cfg.Brokers = kafka.Brokers{}
	if c.Run(ctx); strings.Count(log.String(), "brokers: none given") != 1 { // returns by itself
		t.Errorf("without Kafka it said %s", &log)
	}
	c.cfg.Brokers = k.Brokers
	c.Run(ended)
	if n := (*Copier)(nil).Unsent(); n != 0 || testutil.ToFloat64(c.Collector()) != float64(c.Unsent()) {
		t.Errorf("nobody has %d bytes to copy", n)
	}
	// The topic has each entry, in order.
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.ConsumeTopics(k.Topics.DeadLetters))
	kafkatest.Must(t, err)
	defer cl.Close()
	var got string
	for strings.Count(got, "[") < 7 {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if got += string(r.Value); string(r.Key) != "me" {
				t.Errorf("it is by %s", r.Key)
			}
		})
		kafkatest.Must(t, ctx.Err())
	}
	if got != "[1][2][3][5][6][7][8]" {
		t.Errorf("the topic has %s", got)
	}
}
