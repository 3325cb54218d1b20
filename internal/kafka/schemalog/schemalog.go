// Package schemalog is the topic of schemas. A registry, which holds the schemas that a
// process knows, learns them from it. Operators write into it which schemas are retired and
// which fingerprints are refused. A fingerprint is a schema's 64-bit checksum, by which
// records name the schema that they were written with.
package schemalog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Config says where the schemas topic is, and which registry learns from it.
type Config struct {
	Brokers  kafka.Brokers
	Topic    string // the compacted schemas topic
	Registry *registry.Registry
	Log      *slog.Logger // nil = silent
}

// Log feeds a registry from the schemas topic, from the topic's beginning and for as long
// as the Log is open. A record of the topic that cannot be read, or that is refused (by the
// registry: registry.RefusedError), changes nothing and is logged. A schema that the
// registry cannot keep now, for example because its disk is full, is offered to it again
// until it can: every process must come to the same schemas.
type Log struct {
	follow.Follower
	cfg   Config
	topic struct {
		sync.Mutex
		has     map[millrace.Fingerprint]bool // the schemas of the topic that were admitted
		refused map[millrace.Fingerprint]bool // the fingerprints that an operator refused
		words   map[millrace.Fingerprint]Word // on schemas that are retired, and fingerprints that are refused
	}
}

// Word says who decided to retire a schema or to refuse a fingerprint, and when.
type Word struct {
	By string    `json:"by,omitempty"` // empty: not known, as earlier releases did not write it
	At time.Time `json:"at,omitzero"`  // zero: not known
}

// refusedKey begins the key of a record that refuses a fingerprint for good.
const refusedKey = "refused:"

// retiredKey begins the key of a record that retires a schema.
const retiredKey = "retired:"

// Open begins to follow the topic, and returns at once: Kafka need not answer yet, and the
// topic need not exist. The methods of follow.Follower belong to the Log too: Refresh waits
// until the topic is read to its end, and Read and Fault say how far it is read.
func Open(cfg Config) (*Log, error) {
	l := &Log{cfg: cfg}
	l.begin()
	if err := follow.Open(&l.Follower, follow.Config{Brokers: cfg.Brokers, Topic: cfg.Topic, Log: cfg.Log, Begin: l.begin, Take: l.take}); err != nil {
		return nil, err
	}
	return l, nil
}

// Refused reports whether an operator has refused a fingerprint (see the function Refuse)
// before its schema was in the topic. The schema is then never admitted. Every reader of
// the topic comes to the same answer.
func (l *Log) Refused(fp millrace.Fingerprint) bool {
	l.topic.Lock()
	defer l.topic.Unlock()
	return l.topic.refused[fp]
}

// AllRefused returns every refused fingerprint, in order.
func (l *Log) AllRefused() []millrace.Fingerprint {
	l.topic.Lock()
	defer l.topic.Unlock()
	var all []millrace.Fingerprint
	for fp := range l.topic.refused {
		all = append(all, fp)
	}
	slices.Sort(all)
	return all
}

// Word returns who retired a schema or refused a fingerprint; the zero Word if nobody
// did, or if it is not known.
func (l *Log) Word(fp millrace.Fingerprint) Word {
	l.topic.Lock()
	defer l.topic.Unlock()
	return l.topic.words[fp]
}

// Has reports whether the topic has a schema, and the registry has admitted it.
func (l *Log) Has(fp millrace.Fingerprint) bool {
	l.topic.Lock()
	defer l.topic.Unlock()
	return l.topic.has[fp]
}

// Publish writes a schema to the topic, unless the topic has it already. It returns when
// the Log has read the schema from the topic. If the registry refuses the schema, also
// because another one came first in the topic, the error is a *registry.RefusedError.
func (l *Log) Publish(ctx context.Context, s *schemas.Schema) error {
	fp := s.Fingerprint()
	if l.Has(fp) {
		return l.cfg.Registry.Check(s)
	}
	publish := func() error {
		if err := l.Refresh(ctx); err != nil || l.Has(fp) {
			return err
		}
		if err := l.admissible(s); err != nil {
			return err
		}
		if err := follow.Put(ctx, l.cfg.Brokers, l.cfg.Topic, fp.String(), []byte(s.JSON())); err != nil {
			return err
		}
		return l.Refresh(ctx)
	}
	if err := publish(); err != nil {
		return fmt.Errorf("publish schema %s: %w", s.Name(), err)
	}
	return l.admissible(s)
}

// admissible returns why a schema cannot be admitted; nil: it can.
func (l *Log) admissible(s *schemas.Schema) error {
	if l.Refused(s.Fingerprint()) {
		return &registry.RefusedError{Schema: s.Name(), Fingerprint: s.Fingerprint(), Err: errors.New("an operator gave its fingerprint up; change the schema")}
	}
	return l.cfg.Registry.Check(s)
}

// begin forgets what the topic had. The registry keeps what it knows.
func (l *Log) begin() {
	l.topic.Lock()
	defer l.topic.Unlock()
	l.topic.has = map[millrace.Fingerprint]bool{}
	l.topic.refused = map[millrace.Fingerprint]bool{}
	l.topic.words = map[millrace.Fingerprint]Word{}
}

// take learns a record of the topic. An error means that the registry cannot keep the
// record now, and that it is to be offered again. A record that is refused is logged, and
// gives no error.
func (l *Log) take(r *kgo.Record) error {
	if r.Value == nil {
		return nil // a tombstone (a record that deletes its key), which Millrace never writes
	}
	err := l.learn(string(r.Key), r.Value)
	var failed *registry.StoreError
	if errors.As(err, &failed) {
		return err
	}
	if err != nil && l.cfg.Log != nil {
		l.cfg.Log.Warn("kafka: schema refused", "topic", r.Topic, "offset", r.Offset, "key", fmt.Sprintf("%.64q", r.Key), "error", err)
	}
	return nil
}

// learn applies a record of the topic. The key says what it is: a refusal, a retirement,
// or a schema.
func (l *Log) learn(key string, value []byte) error {
	if hex, ok := strings.CutPrefix(key, refusedKey); ok {
		return l.refuse(hex, value)
	}
	if hex, ok := strings.CutPrefix(key, retiredKey); ok {
		fp, err := ParseFingerprint(hex)
		if err != nil {
			return err
		}
		if err := l.cfg.Registry.Retire(fp); err != nil {
			return err
		}
		l.topic.Lock()
		defer l.topic.Unlock()
		l.heard(fp, value)
		return nil
	}
	s, err := schemas.Parse(value)
	if err != nil {
		return err
	}
	fp := s.Fingerprint()
	if key != fp.String() {
		return errors.New("its key is not its fingerprint, " + fp.String())
	}
	if l.Refused(fp) {
		return errors.New("an operator gave its fingerprint up before it came")
	}
	if _, err := l.cfg.Registry.Admit(s); err != nil {
		return err
	}
	l.topic.Lock()
	defer l.topic.Unlock()
	l.topic.has[fp] = true
	return nil
}

// refuse notes that a fingerprint is refused. It fails if the topic had its schema before
// that: records of the schema may have been read already.
func (l *Log) refuse(hex string, value []byte) error {
	fp, err := ParseFingerprint(hex)
	if err != nil {
		return err
	}
	l.topic.Lock()
	defer l.topic.Unlock()
	if l.topic.has[fp] {
		return errors.New("its schema came before it was given up")
	}
	l.topic.refused[fp] = true
	l.heard(fp, value)
	return nil
}

// heard notes who made a decision. A decision whose value does not say who made it counts
// all the same. The caller holds the lock of topic.
func (l *Log) heard(fp millrace.Fingerprint, value []byte) {
	var w Word
	if json.Unmarshal(value, &w) == nil {
		l.topic.words[fp] = w
	}
}

// ParseFingerprint reads the 16 hexadecimal digits that a fingerprint prints as.
func ParseFingerprint(s string) (millrace.Fingerprint, error) {
	n, err := strconv.ParseUint(s, 16, 64)
	if fp := millrace.Fingerprint(n); err == nil && fp.String() == strings.ToLower(s) {
		return fp, nil
	}
	return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "fingerprint", Detail: fmt.Sprintf("%.64q is not a schema's fingerprint", s),
		WayOut: "give 16 hexadecimal digits, as logs and dead letters name it"}
}

// read opens the topic with a new registry, and reads it to its end. A topic that does
// not exist is an error here, while Refresh would wait for it.
func read(ctx context.Context, brokers kafka.Brokers, topic string) (*Log, error) {
	if _, err := kafka.OpenTopic(ctx, brokers, topic, 0); err != nil {
		if e, ok := errors.AsType[*millrace.Error](err); ok {
			e.Field, e.WayOut = "topic_prefix", "name what Millrace's own topics begin with, as roles have it in their configuration"
		}
		return nil, err
	}
	registry, err := registry.New(nil, nil)
	if err != nil {
		return nil, err
	}
	l, err := Open(Config{Brokers: brokers, Topic: topic, Registry: registry})
	if err != nil {
		return nil, err
	}
	if err := l.Refresh(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Known returns the schemas that a topic has now; if the topic does not exist, an error.
func Known(ctx context.Context, brokers kafka.Brokers, topic string) (*registry.Snapshot, error) {
	l, err := read(ctx, brokers, topic)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.cfg.Registry.Snapshot(), nil
}

// MayRefuse returns why a fingerprint cannot be refused: the topic has its schema. Nil:
// it can.
func (l *Log) MayRefuse(fp millrace.Fingerprint) error {
	if l.Has(fp) {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "fingerprint", Detail: fmt.Sprintf("the schema %s is known, and its records can be read", fp),
			WayOut: "millrace schema list names the schemas and what is refused"}
	}
	return nil
}

// MayRetire returns why a schema cannot be retired: it is the last of its name, or the
// topic does not have it. Nil: it can, or it is retired already.
func (l *Log) MayRetire(fp millrace.Fingerprint) error {
	known := l.cfg.Registry.Snapshot()
	if known.Retired(fp) {
		return nil
	}
	if _, err := known.Without(fp); err != nil { // every reader of the topic will judge it so
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "fingerprint", Detail: err.Error(), WayOut: "millrace schema list names the schemas"}
	}
	return nil
}

// Refuse writes to the topic that a fingerprint is refused, for good and for every
// reader. Index nodes then refuse records with it, instead of waiting for a schema that
// will never come. by is who decides it. See [Log.MayRefuse] for what cannot be refused.
func Refuse(ctx context.Context, brokers kafka.Brokers, topic string, fp millrace.Fingerprint, by string) error {
	l, err := read(ctx, brokers, topic)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.MayRefuse(fp); err != nil || l.Refused(fp) {
		return err
	}
	return l.giveWord(ctx, refusedKey, fp, by, l.Refused, l.MayRefuse)
}

// Retire writes to the topic that a schema is retired, for every reader. The fields that
// this schema alone has are then not read from records of its name; see
// [registry.Registry.Retire]. by is who decides it. See [Log.MayRetire] for what cannot be
// retired.
func Retire(ctx context.Context, brokers kafka.Brokers, topic string, fp millrace.Fingerprint, by string) error {
	l, err := read(ctx, brokers, topic)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.MayRetire(fp); err != nil || l.cfg.Registry.Snapshot().Retired(fp) {
		return err
	}
	retired := func(fp millrace.Fingerprint) bool { return l.cfg.Registry.Snapshot().Retired(fp) }
	return l.giveWord(ctx, retiredKey, fp, by, retired, l.MayRetire)
}

// giveWord writes an operator's decision on a fingerprint to the topic: key begins the key
// of its record. It then reads the topic on to see whether the decision counts. Every
// reader judges the records in their order, and another record may have come before this
// one. If the decision does not count, giveWord returns the error of may.
func (l *Log) giveWord(ctx context.Context, key string, fp millrace.Fingerprint, by string, counts func(millrace.Fingerprint) bool, may func(millrace.Fingerprint) error) error {
	value, err := json.Marshal(Word{by, time.Now().UTC().Truncate(time.Millisecond)})
	if err != nil {
		return err
	}
	if err := follow.Put(ctx, l.cfg.Brokers, l.cfg.Topic, key+fp.String(), value); err != nil {
		return err
	}
	if err := l.Refresh(ctx); err != nil || counts(fp) {
		return err
	}
	return cmp.Or(may(fp), errors.New("kafka: the schemas topic does not have the word that was written to it"))
}
