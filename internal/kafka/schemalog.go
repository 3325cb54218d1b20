package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

// SchemaLogConfig says where schemas travel and who learns them.
type SchemaLogConfig struct {
	Brokers  []string
	Topic    string // the compacted schemas topic
	Registry *schemas.Registry
	Log      *slog.Logger // nil = silent
}

// SchemaLog feeds a registry from the schemas topic, from its beginning and
// for as long as it is open. A record there that is no schema, or one that the
// registry refuses, changes nothing and is logged.
type SchemaLog struct {
	cfg  SchemaLogConfig
	cl   *kgo.Client
	adm  *kadm.Client
	done chan struct{}
	mu   struct {
		sync.Mutex
		next  int64
		known map[millrace.Fingerprint]bool // what the topic has
		moved chan struct{}                 // closed and replaced when next rises
		err   error                         // reading is over
	}
}

// OpenSchemaLog reads the topic to its present end and keeps following it.
func OpenSchemaLog(ctx context.Context, cfg SchemaLogConfig) (*SchemaLog, error) {
	cl, err := newClient(cfg.Brokers, cfg.Log,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{cfg.Topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.KeepControlRecords(),
	)
	if err != nil {
		return nil, err
	}
	l := &SchemaLog{cfg: cfg, cl: cl, adm: kadm.NewClient(cl), done: make(chan struct{})}
	l.mu.moved = make(chan struct{})
	l.mu.known = map[millrace.Fingerprint]bool{}
	go l.follow()
	if err := l.Refresh(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close stops following.
func (l *SchemaLog) Close() {
	l.cl.RemoveConsumePartitions(map[string][]int32{l.cfg.Topic: {0}}) // see Consumer.Close
	l.cl.Close()
	<-l.done
}

// Refresh returns when the registry knows every schema that was in the topic
// when it was called.
func (l *SchemaLog) Refresh(ctx context.Context) error {
	ends, err := l.adm.ListCommittedOffsets(ctx, l.cfg.Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("kafka: end of %s: %w", l.cfg.Topic, err)
	}
	end, ok := ends.Lookup(l.cfg.Topic, 0)
	if !ok {
		return fmt.Errorf("kafka: topic %s does not exist", l.cfg.Topic)
	}
	for {
		next, moved, err := l.position()
		if err != nil || next >= end.Offset {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kafka: read %s at %d of %d: %w", l.cfg.Topic, next, end.Offset, ctx.Err())
		case <-moved:
		}
	}
}

// Moved returns a channel that is closed once more of the topic has been read
// than now.
func (l *SchemaLog) Moved() <-chan struct{} {
	_, moved, _ := l.position()
	return moved
}

func (l *SchemaLog) position() (next int64, moved <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.next, l.mu.moved, l.mu.err
}

// Publish makes a schema known to everyone, unless the topic has it already.
// A schema that the registry refuses is not published.
func (l *SchemaLog) Publish(ctx context.Context, s *schemas.Schema) error {
	if _, err := l.cfg.Registry.Admit(s); err != nil {
		return err
	}
	fp := s.Fingerprint()
	l.mu.Lock()
	known := l.mu.known[fp]
	l.mu.Unlock()
	if known {
		return nil
	}
	r := &kgo.Record{Topic: l.cfg.Topic, Key: []byte(fp.String()), Value: []byte(s.JSON())}
	if err := l.cl.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("kafka: publish schema %s: %w", s.Name(), err)
	}
	return nil
}

func (l *SchemaLog) follow() {
	defer close(l.done)
	for {
		fetches := l.cl.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			l.advance(0, ErrClosed)
			return
		}
		fetches.EachError(func(_ string, _ int32, err error) {
			l.warn("cannot read the schemas topic", "error", err)
			if lost(err) {
				l.advance(0, fmt.Errorf("kafka: read %s: %w: %w", l.cfg.Topic, ErrLostPosition, err))
			}
		})
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() && r.Value != nil {
				l.admit(r)
			}
			l.advance(r.Offset+1, nil)
		})
	}
}

func (l *SchemaLog) admit(r *kgo.Record) {
	s, err := schemas.Parse(r.Value)
	if err == nil && string(r.Key) != s.Fingerprint().String() {
		err = errors.New("its key is not its fingerprint, " + s.Fingerprint().String())
	}
	if err == nil {
		_, err = l.cfg.Registry.Admit(s)
	}
	if err != nil {
		l.warn("schema refused", "topic", r.Topic, "offset", r.Offset, "key", fmt.Sprintf("%.64q", r.Key), "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.known[s.Fingerprint()] = true
}

func (l *SchemaLog) advance(next int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.next = max(l.mu.next, next)
	if l.mu.err == nil {
		l.mu.err = err
	}
	close(l.mu.moved)
	l.mu.moved = make(chan struct{})
}

func (l *SchemaLog) warn(msg string, args ...any) {
	if l.cfg.Log != nil {
		l.cfg.Log.Warn("kafka: "+msg, args...)
	}
}
