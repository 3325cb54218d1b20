// Package admin serves AdminService, by which operators look into an index node and act on
// it. An act is a call that changes something. If Apply is not set in its request, the act
// changes nothing, and answers with what it would do. If Apply is set, the act is written to
// the audit log before it is done.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/schemas/registry"
)

// Config is what the service needs. All of it is required, except Audit and While.
type Config struct {
	Node     millrace.NodeID
	Store    *store.Store
	Cache    *cache.Cache
	Schemas  *registry.Registry
	Replicas *replica.Replicas
	// Forget removes from the cache all timelines that the store has of a partition.
	Forget func(millrace.Partition) error
	// Rates returns how many records a second a type of a partition gets and loses.
	Rates   func(millrace.Partition, millrace.ContentType) (in, out float64)
	Brokers kafka.Brokers
	Topics  kafka.Topics // all names are set
	Audit   *audit.Log   // nil: acts are in the log of the process alone
	// While returns a context that also ends when the node begins to stop, so that calls that
	// read much do not hold up the stop. nil: they go on.
	While func(context.Context) (context.Context, context.CancelFunc)
	Log   *slog.Logger
}

// Server implements nodev1.AdminServiceServer.
type Server struct {
	nodev1.UnimplementedAdminServiceServer
	cfg Config
	// turn holds a token for each call in flight that reads much of the disk or the log.
	turn chan struct{}
	// kafkaWait is how long a call waits for Kafka to say anything.
	kafkaWait time.Duration
}

// maxReads is how many calls may read much of the disk or the log at the same time.
const maxReads = 2

// maxTime bounds a call that reads much, with the time that it waits for its turn.
const maxTime = 10 * time.Minute

// silence is how long a call waits for Kafka to send something. Kafka does not send what
// comes after an open transaction; the transactions of partitioners end sooner than this.
const silence = 20 * time.Second

// hearing returns a context that ends when Kafka has sent nothing for s.kafkaWait. The caller
// calls heard each time that Kafka has sent something, and done in the end. [heardOf] returns
// the error that says that Kafka was silent.
func (s *Server) hearing(ctx context.Context) (_ context.Context, heard, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	silent := time.AfterFunc(s.kafkaWait, func() {
		cancel(&millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "kafka", Detail: fmt.Sprintf("Kafka has said nothing for %s", s.kafkaWait),
			WayOut: "see to Kafka, and try again",
		})
	})
	return ctx, func() { silent.Reset(s.kafkaWait) }, func() { silent.Stop(); cancel(nil) }
}

// heardOf returns the error of a call that failed with err: that Kafka was silent, if ctx
// ended for that, and otherwise err.
func heardOf(ctx context.Context, err error) error {
	if e := (*millrace.Error)(nil); err != nil && errors.As(context.Cause(ctx), &e) {
		return e
	}
	return err
}

// New returns the service.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, turn: make(chan struct{}, maxReads), kafkaWait: silence}
}

// reading waits until the call may read much. It returns ctx, bounded by maxTime and by the
// stop of the node, and done, which is to be called in the end.
func (s *Server) reading(ctx context.Context) (_ context.Context, done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	if s.cfg.While != nil {
		within := cancel
		var end context.CancelFunc
		ctx, end = s.cfg.While(ctx)
		cancel = func() { end(); within() }
	}
	if ctx.Err() != nil {
		cancel()
		return nil, nil, ctx.Err()
	}
	select {
	case s.turn <- struct{}{}:
		return ctx, func() { cancel(); <-s.turn }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, ctx.Err()
	}
}

// act returns an entry of the audit log, for what the caller of ctx has the node do.
func (s *Server) act(ctx context.Context, what, on, before, after string) audit.Entry {
	return audit.Entry{Who: cmp.Or(permit.Who(ctx).Name, "anybody"), Act: what, On: on, Before: before, After: after}
}

// do writes an act to the audit log and then does it. An act that cannot be written is not
// done. One that fails is written again with its error, since it may have been done in part.
func (s *Server) do(e audit.Entry, do func() error) error {
	return s.doAll([]audit.Entry{e}, do)
}

// doAll is do for several acts that one function does together.
func (s *Server) doAll(acts []audit.Entry, do func() error) error {
	for i, e := range acts {
		if err := s.cfg.Audit.Write(e); err != nil {
			s.failed(acts[:i], "not done", err) // the audit log has the acts before e as done
			return err
		}
	}
	err := do()
	if err != nil {
		s.failed(acts, "not known: it failed", err)
	}
	return err
}

// failed writes acts to the audit log again, with their error. after is the state that they
// leave.
func (s *Server) failed(acts []audit.Entry, after string, fault error) {
	for _, e := range acts {
		e.After, e.Fault = after, fault.Error()
		if err := s.cfg.Audit.Write(e); err != nil {
			s.cfg.Log.Error("a fault is not in the audit log", "err", err)
		}
	}
}

// checkEntity returns an error if e cannot be an entity.
func checkEntity(e string) error {
	if e == "" || len(e) > millrace.MaxEntityBytes {
		return millrace.Invalid("entity", fmt.Sprintf("%.70q has %d bytes; an entity has 1 to %d", e, len(e), millrace.MaxEntityBytes), "name an entity, such as member:42")
	}
	return nil
}

// types returns the content type that a request asks for, or if that is "" all that the node
// has records of, sorted.
func (s *Server) types(asked string) ([]millrace.ContentType, error) {
	if len(asked) > millrace.MaxTypeBytes {
		return nil, millrace.Invalid("type", fmt.Sprintf("%.70q has %d bytes; a content type has %d at most", asked, len(asked), millrace.MaxTypeBytes), "name a content type, or none for all")
	}
	if asked != "" {
		return []millrace.ContentType{millrace.ContentType(asked)}, nil
	}
	all, whole := s.cfg.Store.Types()
	if !whole {
		return nil, millrace.Invalid("type", fmt.Sprintf("records have more than %d content types", store.MaxTypes), "name one")
	}
	return slices.Sorted(slices.Values(all)), nil
}

// readable returns the replica of a partition, locked for reading, so that its store and
// cache may be read and agree. The caller calls RUnlock. The error says that the replica is
// not here, or not usable.
func (s *Server) readable(p millrace.Partition) (*replica.Replica, error) {
	r := s.cfg.Replicas.Of(p)
	r.RLock()
	if state := r.State(); state == replica.Absent || state == replica.Restoring || state == replica.Quarantined {
		r.RUnlock()
		return nil, &millrace.Error{
			Reason: millrace.ReasonNotHere, Field: "partition", Detail: fmt.Sprintf("the replica of partition %d is %s on %s", p, state, s.cfg.Node),
			WayOut: "millrace cluster explain PARTITION says where it is; name a node that has it ready",
		}
	}
	return r, nil
}
