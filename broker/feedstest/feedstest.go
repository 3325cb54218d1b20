// Package feedstest holds definitions of feeds or experiments in memory, as a cluster
// holds them in etcd. It is for tests.
package feedstest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// Definitions is a cluster's versions of definitions, in memory. Maps with a string as key
// are by the definition's name.
type Definitions struct {
	Mu       sync.Mutex // guards all fields
	bodies   map[artefacts.Version]string
	Versions map[string][]artefacts.Version // all versions, oldest first
	serving  map[string]artefacts.Version
	changed  chan struct{}                 // closed by the next change, and then replaced
	heard    chan struct{}                 // the channel that Changed returned last
	taken    chan struct{}                 // what heard was when Use was called last
	settled  sync.Cond                     // signalled when taken changes
	Reads    int                           // how often Body was called
	gone     map[string]time.Time          // when a name was dropped last
	unread   []string                      // see SetUnread
	used     map[string]artefacts.Version  // what Use was told last
	Read     func(artefacts.Version) error // Body calls it first and fails with its error; nil: not called
}

// New returns Definitions that hold none.
func New() *Definitions {
	d := &Definitions{bodies: map[artefacts.Version]string{}, Versions: map[string][]artefacts.Version{}, serving: map[string]artefacts.Version{}, gone: map[string]time.Time{}, changed: make(chan struct{})}
	d.settled.L = &d.Mu
	return d
}

// Serving implements feeds.Definitions.
func (d *Definitions) Serving() map[string]artefacts.Version {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	out := map[string]artefacts.Version{}
	for name, v := range d.serving {
		out[name] = v
	}
	return out
}

// Unread implements feeds.Definitions.
func (d *Definitions) Unread() []string {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return slices.Clone(d.unread)
}

// SetUnread sets the names whose state in the cluster cannot be read, so that nobody knows
// which of their versions serves.
func (d *Definitions) SetUnread(names ...string) {
	d.Mu.Lock()
	d.unread = names
	d.Mu.Unlock()
	d.Serve("", 0, "")
}

// All implements feeds.Definitions.
func (d *Definitions) All() map[string][]artefacts.Version {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	out := map[string][]artefacts.Version{}
	for name, v := range d.Versions {
		out[name] = slices.Clone(v)
	}
	return out
}

// Body implements feeds.Definitions. The body of a version that does not exist is empty.
func (d *Definitions) Body(ctx context.Context, v artefacts.Version) ([]byte, error) {
	d.Mu.Lock()
	d.Reads++
	read, body := d.Read, d.bodies[v]
	d.Mu.Unlock()
	if read != nil {
		if err := read(v); err != nil {
			return nil, err
		}
	}
	return []byte(body), ctx.Err()
}

// Use implements feeds.Definitions.
func (d *Definitions) Use(versions map[string]artefacts.Version) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.used, d.taken = versions, d.heard
	d.settled.Broadcast()
}

// Settle returns once the follower under test has taken over all changes until now. A
// follower calls Changed, then Serving, and then Use.
func (d *Definitions) Settle() {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for d.taken != d.changed {
		d.settled.Wait()
	}
}

// LastUsed implements feeds.Definitions.
func (d *Definitions) LastUsed() map[artefacts.Version][]byte {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	all := map[artefacts.Version][]byte{}
	for _, v := range d.used {
		all[v] = []byte(d.bodies[v])
	}
	return all
}

// Changed implements feeds.Definitions.
func (d *Definitions) Changed() <-chan struct{} {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.heard = d.changed
	return d.changed
}

// Gone implements [experiments.Source].
func (d *Definitions) Gone(name string) time.Time {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.gone[name]
}

// Serve lets a version serve, whose Sum is its body. With name "" it changes nothing, but
// closes the channel of Changed.
func (d *Definitions) Serve(name string, version int, body string) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if name != "" {
		v := artefacts.Version{Name: name, Version: strconv.Itoa(version), Sum: body}
		if _, ok := d.bodies[v]; !ok {
			d.Versions[name] = append(d.Versions[name], v)
		}
		d.bodies[v], d.serving[name] = body, v
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

// Drop removes a name and its versions.
func (d *Definitions) Drop(name string) {
	d.Mu.Lock()
	d.gone[name] = time.Now()
	delete(d.serving, name)
	delete(d.Versions, name)
	d.Mu.Unlock()
	d.Serve("", 0, "")
}

// FaultsOf returns the feeds whose definition has a fault: the value of the label feed of
// each series of bad.
func FaultsOf(t *testing.T, bad prometheus.Collector) (feeds []string) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(bad)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		for _, m := range family.Metric {
			for _, l := range m.Label {
				if l.GetName() == "feed" {
					feeds = append(feeds, l.GetValue())
				}
			}
		}
	}
	return feeds
}
