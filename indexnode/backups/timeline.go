package backups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas/registry"
)

// row is a record of a timeline, for people to read.
type row struct {
	ID      millrace.RecordID `json:"id"`
	Time    string            `json:"time"`
	Version int64             `json:"version"`
	Schema  string            `json:"schema"`
	Record  map[string]any    `json:"record,omitempty"`
	Fault   string            `json:"fault,omitempty"` // why there is no Record
	Body    []byte            `json:"body,omitempty"`  // the body as it is, if there is a Fault
}

// Timeline restores the partition of a timeline into a temporary store, and writes the
// timeline to out: a line of JSON for each record, the newest first, decoded by its
// schema. It returns how many records there are; none is an error. The store is made
// below cfg.Data. cfg.Partitions does not count.
func Timeline(ctx context.Context, cfg RestoreConfig, t millrace.Timeline, out io.Writer) (records int, err error) {
	p := partition.Of(t.Entity)
	cfg.Partitions = topology.Set{}
	cfg.Partitions.Add(p)
	err = withScratch(cfg, func(r *restorer) error {
		if _, err := r.run(ctx); err != nil {
			return err
		}
		registry, err := registry.New(replica.StoredSchemas(r.store), nil)
		if err != nil {
			return err
		}
		all, err := r.store.Read(nil, p, t, millrace.MinTime, millrace.MaxTime)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return noTimeline(r.store, p, t)
		}
		enc := json.NewEncoder(out)
		for i := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := enc.Encode(shown(&all[i], registry.Snapshot())); err != nil {
				return fmt.Errorf("backups: %w", err)
			}
		}
		records = len(all)
		return nil
	})
	return records, err
}

// noTimeline returns the error of a timeline without records. It names the timelines that
// the entity has.
func noTimeline(s *store.Store, p millrace.Partition, t millrace.Timeline) error {
	var types []string
	for is, err := range s.Timelines(p) {
		if err != nil {
			return err
		}
		if is.Entity == t.Entity && is.Type != t.Type {
			types = append(types, string(is.Type))
		}
	}
	if len(types) == 0 {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "entity", Detail: fmt.Sprintf("%.80q has no records then", t.Entity), WayOut: "check how it is written, such as member:9, or choose another --to"}
	}
	slices.Sort(types)
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "type", Detail: fmt.Sprintf("%.80q has no records of the type %.80q then", t.Entity, t.Type), WayOut: "it has " + strings.Join(types[:min(len(types), 20)], ", ")}
}

func shown(r *millrace.Record, known *registry.Snapshot) row {
	out := row{ID: r.ID, Time: r.Time.String(), Version: r.Version, Schema: r.Schema.String()}
	s := known.ByFingerprint(r.Schema)
	if s == nil {
		out.Fault, out.Body = "the backup does not have its schema", r.Body
		return out
	}
	out.Schema = s.Name() + " " + out.Schema
	var err error
	if out.Record, err = s.JSONValue(r.Body); err != nil {
		out.Fault, out.Body = err.Error(), r.Body
	}
	return out
}

// Rows counts timelines, records, and bytes of records' bodies.
type Rows struct {
	Timelines int `json:"timelines"`
	Records   int `json:"records"`
	Bytes     int `json:"bytes"`
}

// Changes says how one state of a partition differs from an older one, for one content
// type. New, Gone and Changed count records. A timeline is New or Gone if only one state
// has records of it. It is Changed if both have, and some are new, gone or changed. A
// record is changed if its version, its time or its body differs.
type Changes struct {
	New     Rows `json:"new"`
	Gone    Rows `json:"gone"`
	Changed Rows `json:"changed"`
}

// DiffRows restores two backups of a partition into temporary stores, and compares their
// timelines. The result is by content type, and has no type without changes.
func DiffRows(ctx context.Context, cfg RestoreConfig, old, now *backup.Manifest) (map[millrace.ContentType]*Changes, error) {
	all := map[millrace.ContentType]*Changes{}
	cfg.Progress.Expect(old.Bytes() + now.Bytes())
	cfg.Store.MinFreeBytes, cfg.Store.Retention = -1, RetentionOf(now)
	err := withScratch(cfg, func(a *restorer) error {
		return withScratch(cfg, func(b *restorer) error {
			if err := a.restorePartition(ctx, &way{from: old, to: old.Applied}); err != nil {
				return err
			}
			if err := b.restorePartition(ctx, &way{from: now, to: now.Applied}); err != nil {
				return err
			}
			return diffRows(ctx, a.store, b.store, now.Partition, all)
		})
	})
	return all, err
}

func diffRows(ctx context.Context, old, now *store.Store, p millrace.Partition, all map[millrace.ContentType]*Changes) error {
	for _, s := range []*store.Store{now, old} {
		for t, err := range s.Timelines(p) {
			if err = errors.Join(err, ctx.Err()); err == nil {
				err = diffTimeline(old, now, p, t, s == old, all)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// diffTimeline counts what changed in a timeline. Both stores may name it, so it is
// called for either. It counts a timeline that has records now if gone is false, and one
// that has none now if gone is true.
func diffTimeline(old, now *store.Store, p millrace.Partition, t millrace.Timeline, gone bool, all map[millrace.ContentType]*Changes) error {
	is, err := now.Read(nil, p, t, millrace.MinTime, millrace.MaxTime)
	if err != nil || (len(is) == 0) != gone {
		return err
	}
	was, err := old.Read(nil, p, t, millrace.MinTime, millrace.MaxTime)
	if err != nil {
		return err
	}
	var c Changes
	byID := make(map[millrace.RecordID]*millrace.Record, len(was))
	for i := range was {
		byID[was[i].ID] = &was[i]
	}
	for i := range is {
		r := &is[i]
		switch before := byID[r.ID]; {
		case before == nil:
			c.New.record(r)
		case before.Version != r.Version || before.Time != r.Time || !bytes.Equal(before.Body, r.Body):
			c.Changed.record(r)
		}
		delete(byID, r.ID)
	}
	for _, r := range byID {
		c.Gone.record(r)
	}
	if c == (Changes{}) {
		return nil
	}
	sum := all[t.Type]
	if sum == nil {
		sum = &Changes{}
		all[t.Type] = sum
	}
	switch {
	case len(was) == 0:
		c.New.Timelines = 1
	case len(is) == 0:
		c.Gone.Timelines = 1
	default:
		c.Changed.Timelines = 1
	}
	for _, part := range []struct{ to, of *Rows }{{&sum.New, &c.New}, {&sum.Gone, &c.Gone}, {&sum.Changed, &c.Changed}} {
		part.to.add(part.of)
	}
	return nil
}

func (r *Rows) record(x *millrace.Record) {
	r.Records++
	r.Bytes += len(x.Body)
}

func (r *Rows) add(o *Rows) {
	r.Timelines += o.Timelines
	r.Records += o.Records
	r.Bytes += o.Bytes
}
