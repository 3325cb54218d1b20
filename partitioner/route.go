package partitioner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/schemas"
)

// WrongKind is the reason of dead letters that are features on a content topic,
// or content on a feature topic.
const WrongKind schemas.Reason = "wrong-kind"

// outcome is what becomes of an input record: it is published, ignored, or a dead letter.
type outcome uint8

const (
	published outcome = iota
	ignored
	dead
)

// decision is the outcome of one input, with what it takes to carry it out.
type decision struct {
	outcome  outcome
	stream   kafka.Stream      // the topic of a published record: timeline or features
	entities []millrace.Entity // a published record goes to their timelines, or features
	value    []byte            // what is written for a published record: Avro in single-object encoding
	refusal  *schemas.Error    // why a record is a dead letter
}

// router decides the outcome of each record by itself. The outcome follows from the
// record's bytes, its topic and its timestamp, whatever came before it and whenever it is
// read. It can also depend on a schema that comes a little later than the record: the
// resolver waits for it.
type router struct {
	features map[string]bool // which topics carry features
	resolver *resolver
	future   time.Duration // how far a record's time may be after its arrival
}

// route decides the outcome of a record. An error says that this cannot be decided now.
func (r *router) route(ctx context.Context, in groups.Input) (decision, error) {
	if in.Value == nil && len(in.Key) > 0 {
		return decision{outcome: ignored}, nil
	}
	v, err := r.accept(ctx, in)
	var refusal *schemas.Error
	if errors.As(err, &refusal) {
		return decision{outcome: dead, refusal: refusal}, nil
	}
	return v, err
}

// accept returns the decision to publish a record. A *schemas.Error says why it is a dead
// letter; any other error is as in route.
func (r *router) accept(ctx context.Context, in groups.Input) (decision, error) {
	framed, err := schemas.Unframe(in.Value)
	if err != nil {
		return decision{}, err
	}
	if n := len(framed.Body); n > millrace.MaxBodyBytes {
		return decision{}, refuse(schemas.OverLimit, "", "the body has %d bytes, more than %d", n, millrace.MaxBodyBytes)
	}
	schema, err := r.resolver.writer(ctx, framed)
	if err != nil {
		return decision{}, err
	}
	features := r.features[in.Topic]
	if schema.Features() != features {
		return decision{}, refuse(WrongKind, "", "schema %s and topic %s: one is of features, the other is not", schema.Name(), in.Topic)
	}
	env, err := schema.Accept(framed.Body, in.Time, r.future)
	if err != nil {
		return decision{}, err
	}
	value := in.Value
	if framed.Confluent {
		value = schemas.Frame(schema.Fingerprint(), framed.Body)
	}
	if features {
		return decision{stream: kafka.Features, entities: []millrace.Entity{env.Entity}, value: value}, nil
	}
	return decision{stream: kafka.Timeline, entities: append([]millrace.Entity{env.Entity}, env.About...), value: value}, nil
}

// refuse returns the error that makes a record a dead letter.
func refuse(reason schemas.Reason, field, format string, args ...any) error {
	return &schemas.Error{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// maxDetailBytes bounds the header detail of a dead letter, since it may quote the record.
const maxDetailBytes = 512

// newDeadLetter returns the dead letter of an input: its key and value byte for byte, and
// its headers, followed by those that say why it was refused and where it came from.
func newDeadLetter(topic string, in groups.Input, why *schemas.Error) kafka.Outgoing {
	detail := why.Error()
	if len(detail) > maxDetailBytes {
		detail = strings.ToValidUTF8(detail[:maxDetailBytes], "")
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
