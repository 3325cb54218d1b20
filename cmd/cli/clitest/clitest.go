// Package clitest is what tests of several packages of the command line use: how
// they wait, the ports and files that they need, a stage of etcd alone whose nodes
// say what a test has them say, and exposures.
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

// Patience is how long a test waits for what takes seconds on an idle machine,
// with other tests beside it, so that one that is broken says what it waits for.
const Patience = 5 * time.Minute

// WaitFor asks again and again until done, which must not take for ever, but no
// longer than Patience.
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

// StartsProcesses leaves a test out of a short run: its work is done by other
// processes, which are slow to start and which the race detector does not see.
func StartsProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
}

// Bounded is for a test that hangs: several run side by side, and none takes so
// long.
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

// WriteConfig writes a role's configuration file.
func WriteConfig(t *testing.T, name, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Written is a file of a role with a text.
func Written(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "role.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Lines are lines of a file of records.
func Lines(all ...string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, line := range all {
			if !yield([]byte(line), nil) {
				return
			}
		}
	}
}

// SaysReady is what /readyz of an admin port says.
func SaysReady(admin string) string {
	resp, err := http.Get("http://" + admin + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // what is missing is asked for again
	return string(text)
}

// ShownAt is an answer of a draft, at a time.
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

// WriteExposures writes them to the topic exposures, and waits until they are there.
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

// Exists reports whether there is such a file.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
