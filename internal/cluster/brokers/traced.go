package brokers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// maxTrace bounds how long a viewer is traced, maxViewerBytes the viewer's id, and
// maxTraced how many viewers are traced at once.
const (
	maxTrace       = 24 * time.Hour
	maxViewerBytes = 512
	maxTraced      = 10_000
)

// tracePrefix is the prefix of the keys of traced viewers.
const tracePrefix = "trace/"

func traceKey(c *cluster.Client, viewer string) string { return c.Prefix() + tracePrefix + viewer }

// Trace has every broker trace a viewer's requests for d, rounded to seconds. Brokers begin
// within a second. The key is leased, so the trace ends by itself at until; [Untrace] ends it
// earlier.
func Trace(ctx context.Context, c *cluster.Client, viewer string, d time.Duration) (until time.Time, err error) {
	switch {
	case viewer == "" || len(viewer) > maxViewerBytes || !utf8.ValidString(viewer):
		return until, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "viewer", Detail: fmt.Sprintf("%.100q is no viewer's id", viewer), WayOut: fmt.Sprintf("send UTF-8 of 1 to %d bytes", maxViewerBytes)}
	case d < time.Second || d > maxTrace:
		return until, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "for", Detail: fmt.Sprintf("%s is out of range", d), WayOut: fmt.Sprintf("trace for 1s to %s", maxTrace)}
	}
	d = d.Round(time.Second)
	lease, err := c.Etcd().Grant(ctx, int64(d/time.Second))
	if err != nil {
		return until, fmt.Errorf("cluster: trace %s: %w", viewer, err)
	}
	until = time.Now().Add(d)
	put, err := c.Etcd().Put(ctx, traceKey(c, viewer), d.String(), clientv3.WithLease(lease.ID))
	if err != nil {
		return until, fmt.Errorf("cluster: trace %s: %w", viewer, err)
	}
	c.NoteWritten(cluster.TraceKind, viewer, put.Header.Revision)
	return until, nil
}

// Untrace ends a viewer's trace; without one it does nothing.
func Untrace(ctx context.Context, c *cluster.Client, viewer string) error {
	gone, err := c.Etcd().Delete(ctx, traceKey(c, viewer))
	if err != nil {
		return fmt.Errorf("cluster: untrace %s: %w", viewer, err)
	}
	if gone.Deleted > 0 {
		c.NoteWritten(cluster.TraceKind, viewer, gone.Header.Revision)
	}
	return nil
}

// Traced is the set of traced viewers, as a broker watches it.
type Traced struct {
	state    *keyspace.Latest[map[string]traced] // by viewer
	revision atomic.Int64                        // the revision of etcd that it has taken over
}

var errNotTraced = fmt.Errorf("a name has %d bytes at most, and %d viewers are traced", maxViewerBytes, maxTraced)

// traced is a viewer's trace. It ends by this process's clock as well, in case etcd is away
// when its lease ends.
type traced struct {
	version int64     // of the key
	until   time.Time // by this process's clock
}

// WatchTraced watches which viewers are traced, until ctx or the client ends. It does not
// wait for etcd: at first nobody is traced.
func WatchTraced(ctx context.Context, c *cluster.Client) *Traced {
	t := &Traced{state: keyspace.NewLatest(map[string]traced{})}
	told := "" // the warning logged last, of keys that trace nobody
	c.Run(func() {
		c.Follow(ctx, tracePrefix, func(s *keyspace.Snapshot, err error) {
			if err != nil {
				return
			}
			old, _ := t.state.Get()
			next := make(map[string]traced, len(s.Values))
			var bad []error
			for _, viewer := range slices.Sorted(maps.Keys(s.Values)) {
				v := s.Values[viewer]
				if old[viewer].version == v.Version {
					next[viewer] = old[viewer]
				} else if d, err := time.ParseDuration(fmt.Sprintf("%.40s", v.Data)); err != nil || len(viewer) > maxViewerBytes || len(next) >= maxTraced {
					bad = append(bad, fmt.Errorf("viewer %.100q: %w", viewer, cmp.Or(err, errNotTraced)))
				} else {
					next[viewer] = traced{v.Version, time.Now().Add(min(d, maxTrace))}
				}
			}
			if says := fmt.Sprint(keyspace.Few(bad)); says != told {
				if told = says; len(bad) > 0 {
					c.Log().Warn("viewers are not traced", "err", says)
				}
			}
			t.state.Set(next, nil)
			t.revision.Store(s.Revision)
		})
	})
	return t
}

// Has reports whether a viewer is traced now.
func (t *Traced) Has(viewer string) bool {
	all, _ := t.state.Get()
	v, ok := all[viewer]
	return ok && time.Now().Before(v.until)
}

// GoesBy implements [Applying].
func (t *Traced) GoesBy() (string, cluster.Applied) {
	return cluster.TraceKind, cluster.Applied{Revision: t.revision.Load()}
}

// Changed returns a channel that is closed at the next change, as [cluster.Watcher.Changed]
// does.
func (t *Traced) Changed() <-chan struct{} { return t.state.Changed() }
