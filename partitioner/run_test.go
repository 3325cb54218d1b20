package partitioner

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// lines is a log that is written while a test reads it.
type lines struct {
	sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(words string) int {
	l.Lock()
	defer l.Unlock()
	return strings.Count(l.text.String(), words)
}

// While Kafka is away, Run says what it waits for, in Ready at once and in the log now and
// then; it ends without an error when it is told to.
func TestRunWithoutKafka(t *testing.T) {
	away := errors.New("away")
	for what, wait := range map[string]func(*Partitioner, context.Context) error{
		"waiting for Kafka to serve the topics": (*Partitioner).Run,
		"waiting for Kafka to take the group's name": func(p *Partitioner, ctx context.Context) error {
			if err := p.open(); err != nil {
				return err
			}
			defer p.close()
			return p.introduce(ctx)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log lines
			p := still(t, slog.New(slog.NewTextHandler(&log, nil)))
			p.cfg.Brokers = kafka.At("127.0.0.1:1").Through(func(context.Context, string, string) (net.Conn, error) { return nil, away })
			if err := p.Ready(); err != errNotRun {
				t.Errorf("before it runs: %v", err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error)
			go func() { done <- wait(p, ctx) }()
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if err := p.Ready(); err == nil || err.Error() != what {
				t.Errorf("at first: %v, want %s", err, what)
			}
			time.Sleep(15 * time.Second) // a try lasts for ten
			synctest.Wait()
			if err := p.Ready(); err == nil || !strings.HasPrefix(err.Error(), what+": ") || strings.Contains(what, "serve") && !errors.Is(err, away) {
				t.Errorf("then: %v, want %s", err, what)
			}
			time.Sleep(45 * time.Second)
			synctest.Wait()
			if n := log.count("partitioner: " + what); n < 3 || n > 7 {
				t.Errorf("in a minute it is told %d times: %s", n, what)
			}
			stop()
			if err := <-done; err != nil {
				t.Errorf("ended: %v", err)
			}
			if err := p.Ready(); err == nil || err.Error() != "the partitioner has stopped" {
				t.Errorf("ended, it is %v", err)
			}
		})
	}
	p := still(t, slog.New(slog.DiscardHandler))
	p.cfg.Brokers = kafka.Brokers{}
	if err := p.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "partitioner: kafka: brokers: none given") {
		t.Errorf("without brokers: %v", err)
	}
	at := skipping{Stuck: progress.Stuck{Topic: "posts"}}
	if err := p.skip(t.Context(), nil, []skipping{at}); err == nil || !strings.Contains(err.Error(), "none given") {
		t.Errorf("a batch that cannot be kept aside is skipped: %v", err)
	}
	if letters, err := p.aside(t.Context(), at.Stuck); err == nil || letters != nil {
		t.Errorf("a batch that cannot be fetched is kept: %v", letters)
	}
}

// What a transaction has done is counted by what became of each record, and by its topic.
func TestATransactionCounts(t *testing.T) {
	w := newFake(t)
	s, err := groups.OpenSession(w.ctx, groups.SessionConfig{Brokers: w.brokers, Group: "g", Instance: "one", Topics: w.cfg.Content, Outputs: w.cfg.Topics.Logs()})
	must(t, err)
	defer s.Close()
	must(t, s.Begin())
	tr := &transaction{s: s, topics: w.cfg.Topics, byTopic: map[string]*tally{}}
	in := func(topic string, value string) groups.Input {
		return groups.Input{Source: kafka.Source{Topic: topic}, Value: []byte(value)}
	}
	bad := decision{outcome: dead, refusal: &schemas.Error{Reason: schemas.BadValue}}
	for i, c := range []struct {
		in                    groups.Input
		v                     decision
		records, copies, size int
		run                   int
	}{
		{in("posts", "12345"), bad, 1, 1, 5, 1},
		{in("posts", "12"), bad, 2, 2, 7, 2},
		{in("likes", "x"), decision{outcome: ignored}, 3, 2, 7, 0},
		{in("posts", "abc"), decision{outcome: published, stream: kafka.Timeline, entities: []millrace.Entity{"member:1", "group:1"}, value: []byte("value")}, 4, 4, 17, 0},
		{in("likes", "1"), bad, 5, 5, 18, 1},
		{in("signals", "1"), decision{outcome: published, stream: kafka.Features, entities: []millrace.Entity{"member:1"}, value: []byte("v")}, 6, 6, 19, 0},
	} {
		tr.carryOut(w.ctx, c.in, c.v)
		if tr.records != c.records || tr.copies != c.copies || tr.bytes != c.size || tr.run != c.run || tr.lively != (i > 1) {
			t.Errorf("after %d: %+v", i, tr)
		}
	}
	want := map[string]*tally{
		"posts": {consumed: 3, published: 1, copies: 2, dead: map[schemas.Reason]int{schemas.BadValue: 2}}, "likes": {consumed: 2, ignored: 1, dead: map[schemas.Reason]int{schemas.BadValue: 1}},
		"signals": {consumed: 1, published: 1, copies: 1, dead: map[schemas.Reason]int{}},
	}
	if !reflect.DeepEqual(tr.byTopic, want) {
		t.Errorf("by topic: %+v", tr.byTopic)
	}
	must(t, s.Commit(w.ctx))
	out := w.read(6)
	if len(out["timeline"]) != 2 || len(out["features"]) != 1 || len(out["dead-letters"]) != 3 {
		t.Errorf("%v came out", out)
	}
	if p := still(t, slog.New(slog.DiscardHandler)).pace; p.gatherFor(5, 5) != p.gather || p.gatherFor(5, 6) != p.behind {
		t.Error("it gathers for another time")
	}
}

// Nothing more is gathered once the time for it is over, the process is to end, or somebody
// asks for a hold.
func TestGatheringEnds(t *testing.T) {
	w := newFake(t)
	p, err := New(w.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	must(t, p.open())
	defer p.close()
	ended, stop := context.WithCancel(w.ctx)
	stop()
	later := time.Now().Add(time.Hour)
	for what, c := range map[string]struct {
		ctx   context.Context
		until time.Time
	}{"the time is over": {w.ctx, time.Now()}, "it is to end": {ended, later}} {
		if in, err := p.gather(c.ctx, nil, c.until, 1); in != nil || err != nil { // without a session nothing can be polled
			t.Errorf("%s: %v, %v", what, in, err)
		}
	}
	w.ask("a", 1)
	must(t, p.progress.Refresh(w.ctx))
	if in, err := p.gather(w.ctx, nil, later, 1); in != nil || err != nil || !p.toHold() {
		t.Errorf("a hold is asked for: %v, %v", in, err)
	}
}

// A batch is kept aside whole, in pieces that say which part they are.
func TestABatchIsKeptInPieces(t *testing.T) {
	w := newFake(t)
	value := make([]byte, 2*pieceBytes+pieceBytes/2)
	rand.Read(value)
	cl, err := kafka.NewClient(w.brokers, nil, kgo.ProducerBatchMaxBytes(8<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	must(t, err)
	defer cl.Close()
	must(t, cl.ProduceSync(w.ctx, &kgo.Record{Topic: w.cfg.Topics.DeadLetters, Value: value}).FirstErr())
	raw, err := groups.FetchBatch(w.ctx, w.brokers, w.cfg.Topics.DeadLetters, 0, 0)
	must(t, err)
	p, err := New(w.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	at := progress.Stuck{Topic: w.cfg.Topics.DeadLetters, Offset: 0, Next: 1, Reason: "so"}
	letters, err := p.aside(w.ctx, at)
	must(t, err)
	var whole []byte
	for i, o := range letters {
		whole = append(whole, o.Value...)
		r := o.Record()
		if o.Topic != w.cfg.Topics.DeadLetters || len(o.Value) > pieceBytes || i < 2 && len(o.Value) != pieceBytes || header(r, kafka.HeaderPiece) != fmt.Sprintf("%d/3", i+1) || header(r, kafka.HeaderBatch) != "0-0" ||
			header(r, kafka.HeaderDetail) != "so" || kafka.CheckCRC([]byte(header(r, kafka.HeaderCRC)), o.Value) != nil || string(o.Key) != header(r, kafka.HeaderSource) {
			t.Errorf("piece %d of %d bytes: %q", i, len(o.Value), o.Headers)
		}
	}
	if len(letters) != 3 || !bytes.Equal(whole, raw.Bytes) {
		t.Errorf("%d pieces of %d bytes, want %d", len(letters), len(whole), len(raw.Bytes))
	}
	must(t, p.keepAside(w.ctx, at))
	ended, stop := context.WithCancel(w.ctx)
	stop()
	if err := p.keepAside(ended, at); err == nil {
		t.Error("it is kept after the end")
	}
	if err := p.noteFault(ended, io.EOF); err != nil {
		t.Errorf("a fault that passes: %v", err)
	}
}

// Once the outputs are those of the group again, it is ready before it has anything to do.
func TestReadyOnceTheOutputsAreAdopted(t *testing.T) {
	w := newFake(t)
	p, _ := w.start(func(p *Partitioner) { p.state.failed = &groups.OtherLog{Group: "g"} })
	w.untilReady(p, "")
}
