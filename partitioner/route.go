package partitioner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// The reasons of dead letters that are not about the bytes of one record.
const (
	TimeInTheFuture schemas.Reason = "time-in-the-future" // more than 24 h after its arrival
	IDReused        schemas.Reason = "id-reused"          // another record of this id and version came just before
	WrongKind       schemas.Reason = "wrong-kind"         // features on a content topic, or content on a feature topic
)

// maxAhead is how far a record's time may be in the future when it arrives.
const maxAhead = 24 * time.Hour

// fate is what becomes of an input record.
type fate uint8

const (
	published fate = iota
	deduplicated
	ignored
	dead
)

// verdict is the fate of one input, with what it takes to carry it out.
type verdict struct {
	fate     fate
	stream   kafka.Stream      // of a published record
	entities []millrace.Entity // whose timelines it goes to
	value    []byte            // single-object encoding
	refusal  *schemas.Error    // of a dead letter
}

// recordKey is what at most one payload has. A record and the tombstone of its
// version are two.
type recordKey struct {
	entity  millrace.Entity
	typ     millrace.ContentType
	id      millrace.RecordID
	version int64
	deleted bool
}

// router decides the fate of records, those of one transaction at a time.
type router struct {
	features map[string]bool // which topics carry features
	resolver *resolver
	now      func() time.Time
	seen     map[recordKey][]byte // values published in this transaction
}

// begin forgets the transaction before.
func (r *router) begin() { clear(r.seen) }

// route decides. An error means that it cannot be decided now.
func (r *router) route(ctx context.Context, in kafka.Input) (verdict, error) {
	if in.Value == nil && len(in.Key) > 0 {
		return verdict{fate: ignored}, nil
	}
	v, err := r.accept(ctx, in)
	var refusal *schemas.Error
	if errors.As(err, &refusal) {
		return verdict{fate: dead, refusal: refusal}, nil
	}
	return v, err
}

func (r *router) accept(ctx context.Context, in kafka.Input) (verdict, error) {
	framed, err := schemas.Unframe(in.Value)
	if err != nil {
		return verdict{}, err
	}
	if n := len(framed.Body); n > millrace.MaxBodyBytes {
		return verdict{}, refuse(schemas.OverLimit, "", "the body has %d bytes, more than %d", n, millrace.MaxBodyBytes)
	}
	schema, err := r.resolver.writer(ctx, framed)
	if err != nil {
		return verdict{}, err
	}
	features := r.features[in.Topic]
	if schema.Features() != features {
		return verdict{}, refuse(WrongKind, "", "schema %s and topic %s: one is of features, the other is not", schema.Name(), in.Topic)
	}
	env, err := schema.Envelope(framed.Body)
	if err != nil {
		return verdict{}, err
	}
	if limit := millrace.TimeOf(r.now().Add(maxAhead)); env.Record.Time > limit {
		return verdict{}, refuse(TimeInTheFuture, schema.Roles().Time.Name, "%s is more than %s after its arrival", env.Record.Time, maxAhead)
	}
	value := in.Value
	if framed.Confluent {
		value = schemas.Frame(schema.Fingerprint(), framed.Body)
	}
	if features {
		return verdict{stream: kafka.Features, entities: []millrace.Entity{env.Entity}, value: value}, nil
	}
	key := recordKey{env.Entity, env.Type, env.Record.ID, env.Record.Version, env.Record.Deleted}
	if before, ok := r.seen[key]; ok {
		if !bytes.Equal(before, value) {
			return verdict{}, refuse(IDReused, schema.Roles().ID.Name, "%.64q has version %d already, with other contents", key.id, key.version)
		}
		return verdict{fate: deduplicated}, nil
	}
	r.seen[key] = value
	return verdict{stream: kafka.Timeline, entities: append([]millrace.Entity{env.Entity}, env.About...), value: value}, nil
}

func refuse(reason schemas.Reason, field, format string, args ...any) error {
	return &schemas.Error{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// maxDetailBytes bounds the header detail of a dead letter.
const maxDetailBytes = 512

// deadLetter is the input byte for byte, with the headers it came with and
// then those that say why and from where.
func deadLetter(topic string, in kafka.Input, why *schemas.Error) kafka.Outgoing {
	detail := why.Error()
	if len(detail) > maxDetailBytes {
		detail = detail[:maxDetailBytes]
	}
	return kafka.Outgoing{
		Topic: topic,
		Key:   in.Key,
		Value: in.Value,
		Headers: append(in.Headers[:len(in.Headers):len(in.Headers)],
			kafka.Header{Key: kafka.HeaderReason, Value: []byte(why.Reason)},
			kafka.Header{Key: kafka.HeaderDetail, Value: []byte(detail)},
			kafka.Header{Key: kafka.HeaderSource, Value: in.Source.Append(nil)},
		),
	}
}
