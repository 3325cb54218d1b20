// Package clitest has what tests of several packages of the command line use: waiting
// with a bound, free ports and files, a [Stage] (an etcd without index nodes, where a
// test says what nodes answer), and exposures, which are records of answers.
package clitest

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/freeport"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
)

// Patience is how long a test waits at most. What it waits for takes seconds on an idle
// machine, but other tests run beside it. So a broken test ends, and says what it waits
// for.
const Patience = 5 * time.Minute

// WaitFor calls done every 20 ms until it returns true, and ends the test after Patience.
// what names it for the message. done itself must return soon.
func WaitFor(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("nothing of it within %v", Patience))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// StartsProcesses skips a test in a short run. Other processes do the work of such a
// test: they are slow to start, and the race detector does not see them.
func StartsProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
}

// Bounded returns a context that ends after 15 minutes, so that a test that hangs ends.
// No test takes so long, even beside others.
func Bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// FreeAddr returns a loopback address that nobody listens on.
func FreeAddr(t *testing.T) string {
	t.Helper()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// WriteConfig writes a role's configuration file, name.yaml, and returns its path.
func WriteConfig(t *testing.T, name, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Written writes a role's configuration file with this text, and returns its path. Only
// its owner may read the file.
func Written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "role.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Lines yields the lines as a reader of a file of records does. The errors are nil.
func Lines(all ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, line := range all {
			if !yield([]byte(line), nil) {
				return
			}
		}
	}
}

// SaysReady returns the text of /readyz at admin, the host:port of an admin port, or the
// text of the error.
func SaysReady(admin string) string {
	resp, err := http.Get("http://" + admin + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // callers ask again if the text is incomplete
	return string(text)
}

// ShownAt returns the exposure (record) of the answer id with the items ids. Two models,
// home and next, drafted its page: they chose its items in turns, and each item has a team,
// the model that chose it, or -1. The first item's score is infinite.
func ShownAt(id, viewer string, at time.Time, ids ...string) *exposure.Record {
	r := &exposure.Record{
		ID: id, Time: millrace.TimeOf(at), Viewer: viewer, Feed: "home", FeedVersion: 3, Broker: "b1", AsOf: millrace.TimeOf(at), ServedBefore: 20,
		TimelinesAsked: 5, TimelinesAnswered: 4, Millis: 1.5, HeldOut: []string{"ads"},
		Experiments:  []exposure.Experiment{{Layer: "ranking", Experiment: "new", Variant: "b", Unit: viewer, Checksum: "c0", Probability: 0.25, ProbabilityInside: 0.5}},
		Interleaving: &exposure.Interleaving{Experiment: "new", Seed: 1 << 63, Teams: []string{"home", "next"}},
		Models:       []exposure.Model{{Name: "home", Version: "1", Checksum: "aa"}, {Name: "next", Version: "2", Checksum: "bb", Features: []string{"age", "kind", "likes"}}},
	}
	for i, id := range ids {
		it := exposure.Item{Place: i + 1, ID: id, Entity: "member:9", Type: "post", Score: 1 / float64(i), Model: i % 2, Team: i%3 - 1}
		if it.Model == 1 {
			it.Features = []exposure.Value{exposure.Number(0.5), exposure.Text("post"), exposure.Missing()}
		}
		r.Items = append(r.Items, it)
	}
	return r
}

// WriteExposures writes records to the topic exposures of the Kafka at addr, and waits
// until the topic has at least as many.
func WriteExposures(ctx context.Context, t *testing.T, addr string, records ...*exposure.Record) {
	t.Helper()
	log, stop, err := exposures.OpenLog(kafka.At(addr), "exposures", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, r := range records {
		log.Add(r)
	}
	WaitFor(ctx, t, "the exposures to be written", func() bool {
		n := 0
		if _, _, err := exposures.Read(ctx, kafka.At(addr), "exposures", 0, func(*exposure.Record) { n++ }); err != nil {
			return false
		}
		return n >= len(records)
	})
}

// Exists reports whether there is a file or a directory at path.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
