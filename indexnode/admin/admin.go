// Package admin is what operators have an index node show and do, by
// AdminService: each act is dry unless it is to be applied, and is in the audit
// log before it is done.
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

// Config is what the service works with. All of it is required, but for Audit and While.
type Config struct {
	Node     millrace.NodeID
	Store    *store.Store
	Cache    *cache.Cache
	Schemas  *registry.Registry
	Replicas *replica.Replicas
	// Forget removes from the cache what the store has of a partition.
	Forget func(millrace.Partition) error
	// Rates are how many records a second come and go.
	Rates   func(millrace.Partition, millrace.ContentType) (in, out float64)
	Brokers kafka.Brokers
	Topics  kafka.Topics // with all names
	Audit   *audit.Log   // nil: the process's log alone
	// While is a context as long as the node is not being stopped: what reads much ends
	// then, and nobody waits for it. nil: as it is.
	While func(context.Context) (context.Context, context.CancelFunc)
	Log   *slog.Logger
}

// Server implements nodev1.AdminServiceServer.
type Server struct {
	nodev1.UnimplementedAdminServiceServer
	cfg Config
	// turn holds one for each call that reads much: of the disk or of the log.
	turn chan struct{}
	// kafkaWait is how long a call waits for Kafka to say anything.
	kafkaWait time.Duration
}

// maxReads is how many calls read much at a time.
const maxReads = 2

// maxTime bounds a call that reads much.
const maxTime = 10 * time.Minute

// silence is how long Kafka may say nothing. A transaction that is open makes it
// silent, and a partitioner's ends sooner.
const silence = 20 * time.Second

// hearing ends ctx when Kafka has said nothing for some time: heard is called for all
// that it says. [heardOf] makes errors of it.
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

// heardOf is the error of a call that ended by ctx: that Kafka was silent, if it was.
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

// reading waits for its turn to read much. Call done in the end.
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

// act is an entry of the audit log of what somebody has the node do.
func (s *Server) act(ctx context.Context, what, on, before, after string) audit.Entry {
	return audit.Entry{Who: cmp.Or(permit.Who(ctx).Name, "anybody"), Act: what, On: on, Before: before, After: after}
}

// do writes an act down and then does it. One that fails is written down again
// with its fault, since it may have been done in part.
func (s *Server) do(e audit.Entry, do func() error) error {
	return s.doAll([]audit.Entry{e}, do)
}

// doAll is do of acts that are done together.
func (s *Server) doAll(acts []audit.Entry, do func() error) error {
	for i, e := range acts {
		if err := s.cfg.Audit.Write(e); err != nil {
			s.failed(acts[:i], "not done", err) // those before it are written down as done
			return err
		}
	}
	err := do()
	if err != nil {
		s.failed(acts, "not known: it failed", err)
	}
	return err
}

// failed writes acts down again, with their fault.
func (s *Server) failed(acts []audit.Entry, after string, fault error) {
	for _, e := range acts {
		e.After, e.Fault = after, fault.Error()
		if err := s.cfg.Audit.Write(e); err != nil {
			s.cfg.Log.Error("a fault is not in the audit log", "err", err)
		}
	}
}

// checkEntity refuses what can be no entity.
func checkEntity(e string) error {
	if e == "" || len(e) > millrace.MaxEntityBytes {
		return millrace.Invalid("entity", fmt.Sprintf("%.70q has %d bytes; an entity has 1 to %d", e, len(e), millrace.MaxEntityBytes), "name an entity, such as member:42")
	}
	return nil
}

// types returns the types that are asked: one, or all that the node knows.
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

// readable returns the replica of a partition, whose store and cache may be read.
// The caller unlocks it.
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
