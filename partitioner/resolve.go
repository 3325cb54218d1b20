package partitioner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// idleShare bounds the waits for unknown schemas to about a twentieth of the time: after a
// wait that found no schema, no other begins for idleShare times as long. So bad records,
// each with another fingerprint, cannot hold up good ones for longer.
const idleShare = 20

// refusedFor is how long the schema registry is not asked again for a schema id that it does
// not have, or whose schema Millrace does not accept. maxRefused bounds how many such ids
// are remembered.
const (
	refusedFor = 30 * time.Second
	maxRefused = 1024
)

// How many ids the schema registry is asked for that it does not have: misses at once, and
// then missesAfter a second. Each costs a request, and bad records may name new ids all the
// time. An id whose schema the registry has does not count.
const (
	misses      = 100
	missesAfter = 1 // a second
)

// refusal is why the records of a schema id are dead letters, and until when the schema
// registry is not asked again.
type refusal struct {
	until time.Time
	why   *schemas.Error
}

// resolver finds the schema that a value was written under. It always finds a schema that
// was published before the record, since it reads the topic schemas to its end first. For
// one that is published after the record it waits a little.
type resolver struct {
	registry *registry.Registry // the schemas that are known; it asks a schema registry for Confluent ids
	log      *schemalog.Log     // follows the topic schemas, and fills registry
	wait     time.Duration      // how long it waits for an unknown schema: see Config.SchemaWait
	waiting  func()             // called when a wait begins
	fresh    bool               // the topic schemas was read to its end since the last poll
	nextWait time.Time          // no wait begins before this time
	refused  map[uint32]refusal // the ids of the schema registry that are not asked for again yet
	found    map[uint32]bool    // ids whose schemas were published to the topic schemas
	misses   *rate.Limiter      // bounds how often the schema registry is asked for ids that it does not have
	unasked  func()             // called for each record of which the schema id is not asked for, because of misses
}

func newResolver(known *registry.Registry, log *schemalog.Log) *resolver {
	return &resolver{registry: known, log: log, waiting: func() {}, refused: map[uint32]refusal{}, found: map[uint32]bool{}, misses: rate.NewLimiter(missesAfter, misses), unasked: func() {}}
}

// polled says that new records have come in, so that their schemas may be newer than what
// was read of the topic schemas.
func (r *resolver) polled() { r.fresh = false }

// writer returns the schema under which a value was written. A *schemas.Error makes the
// record a dead letter. Any other error says that this cannot be decided now, since Kafka or
// the schema registry did not answer, or ctx ended.
func (r *resolver) writer(ctx context.Context, f schemas.Framed) (*schemas.Schema, error) {
	if f.Confluent {
		return r.confluent(ctx, f)
	}
	s, err := r.registry.Writer(ctx, f)
	if !unknown(err) {
		return s, err
	}
	if !r.fresh {
		if err := r.log.Refresh(ctx); err != nil {
			return nil, err
		}
		r.fresh = true
		if s, err = r.registry.Writer(ctx, f); !unknown(err) {
			return s, err
		}
	}
	if r.wait <= 0 || r.log.Refused(f.Fingerprint) || time.Now().Before(r.nextWait) {
		return nil, err
	}
	r.waiting()
	end := time.NewTimer(r.wait)
	defer end.Stop()
	for {
		moved := r.log.Moved()
		if s, err = r.registry.Writer(ctx, f); !unknown(err) {
			return s, err
		}
		if r.log.Refused(f.Fingerprint) { // meanwhile
			return nil, err
		}
		select {
		case <-moved:
		case <-end.C:
			r.nextWait = time.Now().Add(idleShare * r.wait)
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// confluent returns the schema of a value with Confluent framing. It asks the schema
// registry for the value's id, and publishes the schema to the topic schemas, for all who
// read the record later.
func (r *resolver) confluent(ctx context.Context, f schemas.Framed) (*schemas.Schema, error) {
	if known, ok := r.refused[f.ID]; ok && time.Now().Before(known.until) {
		return nil, known.why
	}
	if r.misses.Tokens() < 1 && !r.found[f.ID] {
		r.unasked()
		return nil, &schemas.Error{
			Reason: schemas.UnknownSchema,
			Detail: fmt.Sprintf("the schema registry was not asked for id %d, since it did not have more than %d others of late; once none of those are written any more, millrace deadletters replay brings the record in", f.ID, misses),
		}
	}
	s, err := r.registry.Writer(ctx, f)
	if err == nil {
		err = r.log.Publish(ctx, s)
	}
	if refused := (*registry.RefusedError)(nil); errors.As(err, &refused) {
		err = &schemas.Error{Reason: schemas.UnknownSchema, Detail: err.Error()}
	}
	if why := (*schemas.Error)(nil); errors.As(err, &why) {
		r.refuse(f.ID, *why)
		r.misses.Allow()
	}
	if err != nil {
		return nil, err
	}
	r.found[f.ID] = true
	return s, nil
}

// refuse remembers why an id is refused, cut to the length that a dead letter has.
func (r *resolver) refuse(id uint32, why schemas.Error) {
	if len(r.refused) >= maxRefused {
		clear(r.refused)
	}
	why.Detail = strings.Clone(why.Detail[:min(len(why.Detail), maxDetailBytes)])
	r.refused[id] = refusal{time.Now().Add(refusedFor), &why}
}

// unknown reports whether err says that no schema with the fingerprint is known.
func unknown(err error) bool {
	var e *schemas.Error
	return errors.As(err, &e) && e.Reason == schemas.UnknownSchema
}
