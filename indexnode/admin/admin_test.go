package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/rpcerr"
)

// openNode opens the service of a node without a log or a cluster, on which
// every partition is ready: tests apply to it what the log would bring.
func openNode(t *testing.T) (*Server, *replica.Replicas) {
	t.Helper()
	s, all, _ := openCached(t)
	return s, all
}

// openCached is openNode, with what fills the cache.
func openCached(t *testing.T) (*Server, *replica.Replicas, *lookup.Lookup) {
	t.Helper()
	s, known := nodetest.OpenStore(t, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	c := cache.New(cache.Config{})
	t.Cleanup(c.Close)
	l := lookup.New(lookup.Config{Store: s, Cache: c, Schemas: known, Memory: memory.New(256<<20, "questions"), Panics: panics.NewTeller(slog.Default())})
	all := nodetest.Replicas(s, known, l, false)
	l.Over(all)
	rates := func(p millrace.Partition, t millrace.ContentType) (in, out float64) {
		return float64(p), float64(len(t))
	}
	return New(Config{Node: "test", Store: s, Cache: c, Schemas: known, Replicas: all, Forget: l.ForgetPartition, Rates: rates, Log: slog.Default()}), all, l
}

// errGone is the error of a stream whose caller has gone.
var errGone = errors.New("the caller has gone")

// sent is a stream that keeps the messages that are sent.
type sent[T any] struct {
	grpc.ServerStream
	ctx  context.Context
	all  []*T
	goes int // at which message the caller goes, counted from 1; 0: it stays
}

func (s *sent[T]) Context() context.Context { return s.ctx }

func (s *sent[T]) Send(m *T) error {
	if s.all = append(s.all, m); len(s.all) == s.goes {
		return errGone
	}
	return nil
}

// whoGoes calls a method with callers that go at each of its messages in turn, and expects
// that it says so, and sends nothing more.
func whoGoes[T any](t *testing.T, call func(*sent[T]) error) {
	t.Helper()
	whole := &sent[T]{ctx: t.Context()}
	if err := call(whole); err != nil || len(whole.all) == 0 {
		t.Fatalf("%d messages: %v", len(whole.all), err)
	}
	for i := range whole.all {
		s := &sent[T]{ctx: t.Context(), goes: i + 1}
		if err := call(s); err == nil || !strings.Contains(err.Error(), errGone.Error()) || len(s.all) != s.goes {
			t.Errorf("the caller goes at message %d of %d, and is sent %d: %v", s.goes, len(whole.all), len(s.all), err)
		}
	}
}

// refusal returns the reason and the field by which a call is refused; empty: it is not.
func refusal(err error) string {
	e, is := errors.AsType[*millrace.Error](rpcerr.FromStatus(err))
	switch {
	case err == nil:
		return ""
	case !is:
		return err.Error()
	}
	return string(e.Reason) + " " + e.Field
}

// audited gives a service an audit log, and returns what reads its entries.
func audited(t *testing.T, s *Server) func() []audit.Entry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit")
	acts, err := audit.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { acts.Close() })
	s.cfg.Audit = acts
	return func() (all []audit.Entry) {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var e audit.Entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		return all
	}
}

// says compares the last entry of an audit log with what it is to say.
func says(t *testing.T, entries []audit.Entry, count int, act, on, before, after string) {
	t.Helper()
	if len(entries) != count {
		t.Fatalf("%d acts are written down, not %d: %v", len(entries), count, entries)
	}
	if e := entries[count-1]; e.Who != "anybody" || e.Act != act || e.On != on || e.Before != before || e.After != after || e.Fault != "" {
		t.Errorf("written down is %+v", e)
	}
}

// What somebody does is written down before it is done, or is not done; what fails is
// written down again with its fault.
func TestActsAreWrittenDown(t *testing.T) {
	s, _ := openNode(t)
	read := audited(t, s)
	before := 0
	fault := errors.New("the disk is away")
	err := s.do(s.act(t.Context(), "try", "it", "so", "other"), func() error { before = len(read()); return fault })
	all := read()
	if !errors.Is(err, fault) || before != 1 || len(all) != 2 || all[0].Fault != "" || all[1].Fault != fault.Error() || all[1].Before != "so" || !strings.HasPrefix(all[1].After, "not known") {
		t.Errorf("%v; %d entries before the act, and in the end %+v", err, before, all)
	}
	var log strings.Builder
	s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	if err := s.do(all[0], func() error { return errors.Join(fault, s.cfg.Audit.Close()) }); !errors.Is(err, fault) || !strings.Contains(log.String(), "a fault is not in the audit log") {
		t.Errorf("%v; logged is %s", err, &log)
	}
	for name, call := range map[string]func() error{
		"do":  func() error { return s.do(all[0], func() error { t.Error("it is done"); return nil }) },
		"all": func() error { return s.doAll(slices.Clone(all), func() error { t.Error("they are done"); return nil }) },
	} {
		if err := call(); err == nil {
			t.Errorf("%s: what cannot be written down is done", name)
		}
	}
}

// Calls that read much take turns, and go when the caller goes or the node stops.
func TestCallsThatReadMuchTakeTurns(t *testing.T) {
	s, _ := openNode(t)
	stop, stops := context.WithCancel(t.Context())
	ended := 0
	s.cfg.While = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		if stop.Err() != nil {
			cancel()
		}
		return ctx, func() { ended++; cancel() }
	}
	var leave []func()
	for range maxReads {
		ctx, done, err := s.reading(t.Context())
		if err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		leave = append(leave, func() {
			if done(); ctx.Err() == nil {
				t.Error("what a call waits for does not end with it")
			}
		})
	}
	waits, goes := context.WithCancel(t.Context())
	result := make(chan error)
	enter := func() {
		_, done, err := s.reading(waits)
		if err == nil {
			done()
		}
		result <- err
	}
	go enter()
	goes()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that goes while it waits: %v", err)
	}
	waits = t.Context()
	go enter()
	leave[0]()
	if err := <-result; err != nil {
		t.Errorf("there is room: %v", err)
	}
	leave[1]()
	stops()
	for range 10 { // though there is room
		if _, _, err := s.reading(t.Context()); !errors.Is(err, context.Canceled) {
			t.Fatalf("the node has stopped: %v", err)
		}
	}
	if len(s.turn) != 0 || ended != maxReads+2+10 {
		t.Errorf("%d calls are in flight, and %d have ended", len(s.turn), ended)
	}
}
