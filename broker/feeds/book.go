package feeds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// Kind is the kind of the cluster's artefacts that are feed definitions,
// in YAML, each under its feed's name.
const Kind = "definitions"

// Definitions gives feed definitions as they are in the cluster now. An
// [artefacts.Kind] of [Kind] implements it.
type Definitions interface {
	Serving() map[string]artefacts.Version // by name, the version that should serve
	Unread() []string                      // the names whose entry in the cluster cannot be read
	All() map[string][]artefacts.Version   // by name, the oldest first
	Body(ctx context.Context, v artefacts.Version) ([]byte, error)
	Changed() <-chan struct{} // closed at the next change
	// Use keeps on disk the versions that are served, by name. LastUsed returns the
	// versions that the process before this one kept in that way, with their bodies.
	Use(versions map[string]artefacts.Version)
	LastUsed() map[artefacts.Version][]byte
}

// The bounds of what a broker takes over.
const (
	maxDefinitions  = 1000            // those of other names are left out, and an error is logged
	definitionTime  = 5 * time.Second // how long one may take to be read and tried, and how long a pass waits in vain for bodies
	definitionRetry = 5 * time.Second // how long after a fault the definitions that are not taken over are read and tried again
	maxOlder        = 3               // how many older versions are tried if the serving one is bad and none is taken over
)

// Set is feed definitions by name.
type Set map[string]Feed

// Book is the feeds that are served: those that came with the broker, and those
// of the cluster, which replace them by name. Requests read a set that never changes;
// definitions are read, parsed and tried by one goroutine, which then swaps the
// set.
type Book struct {
	fixed Set
	defs  Definitions // nil: only the fixed ones
	try   tries
	bad   *prometheus.GaugeVec // by feed: 1 if its serving version is not taken over
	log   *slog.Logger

	served  atomic.Pointer[Set]
	earlier editions           // definitions that later pages may need
	ended   sync.WaitGroup     // the goroutine that follows changes
	stop    context.CancelFunc // ends that goroutine

	// Start uses these, and after it only the goroutine that it starts.
	taken  map[string]taken  // the definitions that serve, by feed
	faults map[string]string // by feed, why its serving version is not taken over
}

// tries returns why a definition must not serve; nil: nothing is known against it. heard
// is false if no index node could be asked.
type tries func(context.Context, Feed) (heard bool, err error)

// taken is a definition of the cluster that is served.
type taken struct {
	Feed
	from artefacts.Version
}

// NewBook returns a book of fixed feeds, and of the definitions of a cluster (nil: there
// are none) once it is started. A definition serves only after try had nothing against it.
func NewBook(fixed []Feed, defs Definitions, try tries, log *slog.Logger) *Book {
	b := &Book{fixed: Set{}, defs: defs, try: try, log: log, stop: func() {}, taken: map[string]taken{}, faults: map[string]string{}}
	for _, f := range fixed {
		f.Limit = cmp.Or(f.Limit, DefaultLimit)
		f.edition = artefacts.Version{Name: f.Name, Sum: f.digest()}
		b.fixed[f.Name] = f
	}
	b.served.Store(&b.fixed)
	b.bad = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "broker", Name: "definition_fault",
		Help: "1 for a feed whose definition in the cluster is not taken over, so that the last good one serves."}, []string{"feed"})
	return b
}

// Current returns the feeds that are served now, and those whose definition is refused
// ([Feed.IsRefused]). The caller must not change them.
func (b *Book) Current() Set { return *b.served.Load() }

// Defined reports whether a feed serves, or a definition of it is in the cluster.
func (b *Book) Defined(name string) bool {
	_, served := b.Current()[name]
	if !served && b.defs != nil {
		_, served = b.defs.Serving()[name]
	}
	return served
}

// Collectors are the metrics of definitions.
func (b *Book) Collectors() []prometheus.Collector { return []prometheus.Collector{b.bad} }

// Start takes over the definitions that there are, and follows their changes until Close.
func (b *Book) Start() {
	if b.defs == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	changed := b.defs.Changed()
	serving := b.defs.Serving()
	for v, body := range b.defs.LastUsed() {
		if f, err := parseVersion(v, body); err == nil && serving[v.Name] != v { // take reads and tries the version that should serve
			b.earlier.keep(f)
			b.taken[v.Name] = taken{f, v}
		}
	}
	b.take(ctx)
	b.ended.Go(func() { b.follow(ctx, changed) })
}

// Close stops following changes, and waits until that has ended.
func (b *Book) Close() {
	b.stop()
	b.ended.Wait()
}

// follow takes over what has changed. Changes that come while it does so are
// taken over together.
func (b *Book) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		var again <-chan time.Time
		if len(b.faults) > 0 { // a schema or a model that a definition needs may still arrive
			again = time.After(definitionRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
		changed = b.defs.Changed()
		b.take(ctx)
	}
}

// take takes the cluster's definitions over. A bad one changes nothing: the
// last good one of its name stays.
func (b *Book) take(ctx context.Context) {
	serving := b.defs.Serving()
	next, faults, looked, leftOut, round := map[string]taken{}, map[string]string{}, 0, 0, &round{parsed: map[string]Feed{}}
	for _, name := range slices.Sorted(maps.Keys(serving)) {
		t, have := b.taken[name]
		if !have && looked >= maxDefinitions {
			leftOut++
			continue
		}
		looked++
		if !have || t.from != serving[name] {
			var err error
			if t, err = b.change(ctx, serving[name], round); err != nil {
				faults[name] = err.Error()
			}
		}
		if t.Name != "" {
			next[name] = t
		}
	}
	if ctx.Err() != nil {
		return
	}
	if leftOut > 0 {
		b.log.Error("there are more feed definitions than a broker takes; drop some", "most", maxDefinitions, "left_out", leftOut)
	}
	unread := b.defs.Unread()
	for _, name := range unread {
		faults[name] = "what the cluster has under its name cannot be read"
	}
	b.tell(next, faults)
	all := maps.Clone(b.fixed)
	for name, t := range next {
		all[name] = t.Feed
	}
	for _, f := range round.closed(serving, unread, next) {
		all[f.Name] = f
	}
	b.taken, b.faults = next, faults
	b.served.Store(&all)
	used := make(map[string]artefacts.Version, len(next))
	for name, t := range next {
		used[name] = t.from
	}
	b.defs.Use(used)
}

// closed returns a feed for each definition in the cluster that forbids something, if the
// broker serves no definition of that name. The feeds are marked as refused: they answer
// nobody, but what they forbid holds, also for built-in feeds. A definition that cannot be
// read may forbid anything, so its feed is taken for private.
func (r *round) closed(serving map[string]artefacts.Version, unread []string, next map[string]taken) (all []Feed) {
	for name, v := range serving {
		f, read := r.parsed[name]
		if !read || f.edition != v {
			f = Feed{Name: name, Private: true}
		}
		if _, served := next[name]; !served && f.Forbids() != (Forbid{}) {
			f.refused = true
			all = append(all, f)
		}
	}
	for _, name := range unread {
		if _, known := serving[name]; !known {
			all = append(all, Feed{Name: name, Private: true, refused: true})
		}
	}
	return all
}

// round is what one pass over the definitions has found out. With it a pass waits once for
// etcd or nodes that are away, and not once for each definition.
type round struct {
	lost time.Duration // how long the pass has waited for bodies that could not be read
	deaf bool          // no index node could be asked, so the rest of the pass asks none

	parsed map[string]Feed // by name, the newest definition that could be read, whether it is served or not
}

// errUnread is the fault of a definition that a pass did not try to read.
var errUnread = errors.New("feed: it is read later; others could not be read for too long")

// change returns what to serve now that v serves in the cluster. If v cannot be taken over,
// err says why; what is returned then is the last good version, or the zero value.
func (b *Book) change(ctx context.Context, v artefacts.Version, r *round) (taken, error) {
	fresh, err := b.read(ctx, v, r)
	if err == nil {
		return fresh, nil
	}
	if old, had := b.taken[v.Name]; had {
		return old, err
	}
	// Nothing of this name is served: take the newest before it that is good.
	versions := b.defs.All()[v.Name]
	at := slices.Index(versions, v)
	for i := at - 1; i >= max(0, at-maxOlder); i-- {
		if old, not := b.read(ctx, versions[i], r); not == nil {
			return old, err
		}
	}
	return taken{}, err
}

// read reads a version of a definition, and has index nodes try it. After a pass has
// waited for definitionTime in vain, it returns errUnread at once.
func (b *Book) read(ctx context.Context, v artefacts.Version, r *round) (taken, error) {
	if r.lost >= definitionTime {
		return taken{}, errUnread
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, definitionTime)
	defer cancel()
	body, err := b.defs.Body(ctx, v)
	if err != nil {
		r.lost += time.Since(began)
		return taken{}, err
	}
	f, err := parseVersion(v, body)
	if err != nil {
		return taken{}, err
	}
	if _, newer := r.parsed[f.Name]; !newer {
		r.parsed[f.Name] = f
	}
	if !r.deaf {
		heard, err := b.try(ctx, f)
		if err != nil {
			return taken{}, err
		}
		r.deaf = !heard
	}
	b.earlier.keep(f)
	return taken{f, v}, nil
}

// parseVersion parses and checks the body of a version. It refuses a body that names another
// feed than v, and a version that is no number.
func parseVersion(v artefacts.Version, body []byte) (Feed, error) {
	f, err := Parse(body)
	if err != nil {
		return Feed{}, err
	}
	if f.Name != v.Name {
		return Feed{}, fmt.Errorf("feed: the definition under %q is named %q", v.Name, f.Name)
	}
	if f.Version, err = strconv.ParseInt(v.Version, 10, 64); err != nil {
		return Feed{}, fmt.Errorf("feed: version %q of %s is no number", v.Version, v.Name)
	}
	f.Limit, f.edition = cmp.Or(f.Limit, DefaultLimit), v
	return f, nil
}

// tell logs what has changed since the last time, and sets the metric.
func (b *Book) tell(next map[string]taken, faults map[string]string) {
	for name, t := range next {
		if old, ok := b.taken[name]; ok && old.from == t.from {
			continue
		}
		b.log.Info("feed defined", "feed", name, "version", t.Version)
		if _, covers := b.fixed[name]; covers {
			b.log.Warn("the definition of the cluster covers a feed that came with the broker", "feed", name, "version", t.Version)
		}
	}
	for name, fault := range faults {
		b.bad.WithLabelValues(name).Set(1)
		if b.faults[name] != fault {
			b.log.Error("a feed definition is not taken over", "feed", name, "last_good", next[name].Version, "err", fault)
		}
	}
	for name := range b.faults {
		if _, still := faults[name]; !still {
			b.bad.DeleteLabelValues(name)
		}
	}
}
