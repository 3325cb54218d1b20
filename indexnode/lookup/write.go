package lookup

import (
	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
)

// Written implements replica.Host. A record that is newer than all others is appended to its
// timeline in the cache, unless retention bounds the type by count, or the cached timeline has
// grown too long. Any other change removes the timeline, so that it is read again. routes are
// the entities under which features were written.
func (l *Lookup) Written(s kafka.Stream, changes []store.Change, routes []millrace.Entity) {
	for i := range changes {
		l.writeThrough(&changes[i])
	}
	for _, e := range routes {
		l.cache.Remove(millrace.Timeline{Entity: e, Type: cache.Features})
		l.cache.Remove(millrace.Timeline{Entity: e, Type: cache.Objects})
	}
	if s == kafka.Features && len(routes) > 0 {
		l.features.Store(true)
	}
}

// Forget implements replica.Host.
func (l *Lookup) Forget() { l.cache.Purge() }

// ForgetPartition implements replica.Host.
func (l *Lookup) ForgetPartition(p millrace.Partition) error {
	for t, err := range l.store.Timelines(p) {
		if err != nil {
			return err
		}
		l.cache.Remove(t)
	}
	for e, err := range l.store.Routes(p) {
		if err != nil {
			return err
		}
		l.cache.Remove(millrace.Timeline{Entity: e, Type: cache.Features})
		l.cache.Remove(millrace.Timeline{Entity: e, Type: cache.Objects})
	}
	return nil
}

// HasFeatures implements replica.Host.
func (l *Lookup) HasFeatures() { l.features.Store(true) }

// writeThrough makes the cache equal to the store after a change. The caller holds the
// partition's lock for writing.
func (l *Lookup) writeThrough(c *store.Change) {
	if c.Kind == store.Ignored {
		return
	}
	counted := l.retention[c.Timeline.Type].MaxCount > 0
	if c.Kind != store.Inserted || !c.Newest || counted || !l.extend(c.Timeline, c.Record) {
		l.cache.Remove(c.Timeline)
	}
}

// extend appends a record to what the cache has of a timeline. It returns false if it cannot,
// so that the timeline must be removed.
func (l *Lookup) extend(t millrace.Timeline, r millrace.Record) bool {
	d := l.schemas.Snapshot().Decoder(r.Schema)
	return d != nil && l.cache.Continue(t, d.Layout(), 2*l.maxCached, func(rows *column.Appender) error {
		return d.Append(rows, r.Body)
	})
}
