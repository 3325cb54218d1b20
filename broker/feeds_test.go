package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster"
)

// definitions is a cluster's versions of definitions, in memory.
type definitions struct {
	mu      sync.Mutex
	bodies  map[cluster.Version]string
	all     map[string][]cluster.Version
	serving map[string]cluster.Version
	changed chan struct{}
	reads   int
	used    map[string]cluster.Version
	read    func(cluster.Version) error // before each is given
}

func newDefinitions() *definitions {
	return &definitions{bodies: map[cluster.Version]string{}, all: map[string][]cluster.Version{}, serving: map[string]cluster.Version{}, changed: make(chan struct{})}
}

func (d *definitions) Serving() map[string]cluster.Version {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]cluster.Version{}
	for name, v := range d.serving {
		out[name] = v
	}
	return out
}

func (d *definitions) All() map[string][]cluster.Version {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string][]cluster.Version{}
	for name, v := range d.all {
		out[name] = slices.Clone(v)
	}
	return out
}

func (d *definitions) Body(ctx context.Context, v cluster.Version) ([]byte, error) {
	d.mu.Lock()
	d.reads++
	read, body := d.read, d.bodies[v]
	d.mu.Unlock()
	if read != nil {
		if err := read(v); err != nil {
			return nil, err
		}
	}
	return []byte(body), ctx.Err()
}

func (d *definitions) Use(versions map[string]cluster.Version) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used = versions
}

func (d *definitions) LastUsed() map[cluster.Version][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[cluster.Version][]byte{}
	for _, v := range d.used {
		all[v] = []byte(d.bodies[v])
	}
	return all
}

func (d *definitions) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// serve lets a version serve; name "" changes nothing but rings.
func (d *definitions) serve(name string, version int, body string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name != "" {
		v := cluster.Version{Name: name, Version: strconv.Itoa(version), Sum: body}
		if _, ok := d.bodies[v]; !ok {
			d.all[name] = append(d.all[name], v)
		}
		d.bodies[v], d.serving[name] = body, v
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *definitions) drop(name string) {
	d.mu.Lock()
	delete(d.serving, name)
	delete(d.all, name)
	d.mu.Unlock()
	d.serve("", 0, "")
}

// anyFeed finds nothing wrong with a definition.
func anyFeed(context.Context, Feed) (bool, error) { return true, nil }

func newBook(t *testing.T, d *definitions, try tries, fixed ...Feed) *feedBook {
	b := newFeedBook(append(BuiltIn(), fixed...), d, try, slog.New(slog.DiscardHandler))
	b.start()
	t.Cleanup(b.close)
	return b
}

// settled returns the feeds once all changes until now are taken over. A book
// that is about to rest when a change comes may rest once more before it looks.
func settled(b *feedBook) feedSet {
	for range 40 {
		<-b.resting
	}
	return b.current()
}

func TestDefinedFeeds(t *testing.T) {
	d := newDefinitions()
	book := newBook(t, d, anyFeed, Feed{Name: "file", Model: "m"})
	served := func(want ...string) {
		t.Helper()
		if got := sortedKeys(settled(book)); !slices.Equal(got, want) {
			t.Errorf("serves %v, want %v", got, want)
		}
	}
	served("file", "home", "recent")

	d.serve("jobs", 5, "name: jobs\nmodel: j1")
	d.serve("file", 6, "name: file\nmodel: m2")
	served("file", "home", "jobs", "recent")
	if f := book.current()["file"]; f.Model != "m2" || f.Version != 6 || f.Limit != DefaultLimit {
		t.Errorf("file is %+v", f)
	}

	// Bad ones change nothing: the last good one stays, a new one is not there.
	before := book.current()
	d.serve("jobs", 7, "name: jobs\nmodle: x")
	d.serve("other", 1, "name: another\nmodel: x")
	served("file", "home", "jobs", "recent")
	if f := book.current()["jobs"]; f.Model != "j1" || f.Version != 5 {
		t.Errorf("jobs is %+v", f)
	}
	if before["jobs"].Version != 5 || len(before) != 4 {
		t.Error("a set that was handed out has changed")
	}
	if got := faultsOf(t, book.bad); !slices.Equal(got, []string{"jobs", "other"}) {
		t.Errorf("faults are told of %v", got)
	}

	// One that is dropped uncovers what came with the broker.
	d.drop("file")
	d.drop("other")
	d.serve("jobs", 8, "name: jobs\nmodel: j8")
	served("file", "home", "jobs", "recent")
	if f := book.current()["file"]; f.Model != "m" || f.Version != 0 {
		t.Errorf("file is %+v", f)
	}
	if got := faultsOf(t, book.bad); len(got) > 0 {
		t.Errorf("faults are still told of %v", got)
	}
}

// faultsOf returns the feeds whose definition has a fault, as metrics say.
func faultsOf(t *testing.T, bad *prometheus.GaugeVec) (feeds []string) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(bad)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		for _, m := range family.Metric {
			feeds = append(feeds, label(m, "feed"))
		}
	}
	return feeds
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// TestABadDefinitionKeepsTheLastGoodAcrossRestarts: a broker that starts while
// a bad version serves takes the newest before it that is good.
func TestABadDefinitionKeepsTheLastGoodAcrossRestarts(t *testing.T) {
	d := newDefinitions()
	d.serve("jobs", 1, "name: jobs\nmodel: j1")
	d.serve("jobs", 2, "name: jobs\nmodel: j2\nfilter: bad")
	d.serve("jobs", 3, "name: jobs\nmodel: [")
	refuse := func(_ context.Context, f Feed) (bool, error) {
		if f.Filter != "" {
			return true, errors.New("no filter")
		}
		return true, nil
	}
	book := newBook(t, d, refuse)
	if f := settled(book)["jobs"]; f.Version != 1 {
		t.Errorf("serves %+v", f)
	}
	if got := faultsOf(t, book.bad); !slices.Equal(got, []string{"jobs"}) {
		t.Errorf("faults are told of %v", got)
	}
}

// TestWhatIsAwayIsWaitedForOnce: a broker that starts while etcd or all index
// nodes hang does not wait for them once a definition.
// A broker that is restarted while a version cannot be read serves what it served,
// be that older than the versions before it or dropped meanwhile.
func TestARestartServesTheLastGoodDefinition(t *testing.T) {
	d := newDefinitions()
	d.serve("jobs", 1, "name: jobs\nmodel: j1")
	book := newBook(t, d, anyFeed)
	settled(book)
	d.mu.Lock()
	d.read = func(cluster.Version) error { return errors.New("no etcd") }
	d.all["jobs"] = nil
	d.mu.Unlock()
	d.serve("jobs", 7, "name: jobs\nmodel: j7")
	settled(book)
	book.close()
	for range 2 {
		book := newBook(t, d, anyFeed)
		if f := book.current()["jobs"]; f.Model != "j1" || f.Version != 1 || len(book.faults) != 1 {
			t.Errorf("jobs is %+v, faults %v", f, book.faults)
		}
		book.close()
	}
}

func TestWhatIsAwayIsWaitedForOnce(t *testing.T) {
	d := newDefinitions()
	for i := range 100 {
		name := fmt.Sprintf("f%d", i)
		d.serve(name, 1, "name: "+name+"\nmodel: m\nfilter: record.a")
	}
	asked := 0
	book := newFeedBook(BuiltIn(), d, func(context.Context, Feed) (bool, error) { asked++; return false, nil }, slog.New(slog.DiscardHandler))
	if book.take(t.Context()); asked != 1 || len(book.current()) != 102 {
		t.Errorf("nodes were asked %d times, for %d feeds", asked, len(book.current()))
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		d.read = func(v cluster.Version) error {
			if v.Name != "f7" {
				time.Sleep(definitionTime / 2)
			}
			return errors.New("etcd is away")
		}
		book := newFeedBook(BuiltIn(), d, anyFeed, slog.New(slog.DiscardHandler))
		if book.take(t.Context()); time.Since(began) != definitionTime || len(book.current()) != 2 {
			t.Errorf("it took %v, for %d feeds", time.Since(began), len(book.current()))
		}
		// One alone that can't be read holds up nobody.
		d.read = func(v cluster.Version) error {
			if v.Name == "f0" {
				return errors.New("its bytes are lost")
			}
			return nil
		}
		if book.take(t.Context()); len(book.current()) != 101 {
			t.Errorf("%d feeds", len(book.current()))
		}
	})
}

// TestDefinitionsAreReadOffTheRequestPath: while one is read for ever,
// requests are answered by the feeds of before, and nobody waits.
func TestDefinitionsAreReadOffTheRequestPath(t *testing.T) {
	w := newWorld(t, 1, 1)
	d := newDefinitions()
	d.serve("jobs", 1, "name: jobs\nmodel: recency\nlimit: 1")
	b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	begun, free := make(chan struct{}), make(chan struct{})
	d.mu.Lock()
	d.read = func(cluster.Version) error {
		begun <- struct{}{}
		<-free
		return nil
	}
	d.mu.Unlock()
	defer func() { _ = b.Close() }()
	defer close(free)
	d.serve("jobs", 2, "name: jobs\nmodel: recency\nlimit: 2")
	<-begun
	for range 100 {
		req := recentRequest(1)
		req.Feed, req.Limit = "jobs", nil
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil || resp.Receipt.FeedVersion != 1 {
			t.Fatalf("%v, %v", resp.GetReceipt(), err)
		}
	}
}

// TestUpdatesOfDefinitionsCoalesce (input 83): a thousand versions that come
// while one is read cost one more read.
func TestUpdatesOfDefinitionsCoalesce(t *testing.T) {
	d := newDefinitions()
	book := newBook(t, d, anyFeed)
	settled(book)
	begun, free := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.mu.Lock()
	d.read = func(cluster.Version) error {
		once.Do(func() {
			close(begun)
			<-free
		})
		return nil
	}
	d.mu.Unlock()
	d.serve("jobs", 1, "name: jobs\nmodel: m1")
	<-begun
	for i := range 1000 {
		d.serve("jobs", i+2, fmt.Sprintf("name: jobs\nmodel: m%d", i+2))
	}
	close(free)
	if f := settled(book)["jobs"]; f.Version != 1001 {
		t.Errorf("serves version %d", f.Version)
	}
	if d.reads > 2 {
		t.Errorf("%d versions are read", d.reads)
	}
}

// TestDefinitionsAreBounded: a broker takes no more than its bound, and those
// that it has stay.
func TestDefinitionsAreBounded(t *testing.T) {
	d := newDefinitions()
	d.serve("z", 1, "name: z\nmodel: m")
	book := newBook(t, d, anyFeed)
	for i := range maxDefinitions + 50 {
		name := fmt.Sprintf("f%04d", i)
		d.serve(name, 1, "name: "+name+"\nmodel: m")
	}
	all := settled(book)
	if _, kept := all["z"]; !kept || len(all) > maxDefinitions+len(book.fixed)+1 {
		t.Errorf("%d feeds, z is among them: %t", len(all), kept)
	}
}

// TestADefinitionThatNodesRefuseIsNotTakenOver: it was stored by other means
// than the command, and no caller meets it.
func TestADefinitionThatNodesRefuseIsNotTakenOver(t *testing.T) {
	w := newWorld(t, 2, 1)
	d := newDefinitions()
	d.serve("jobs", 1, "name: jobs\nmodel: recency\nfilter: record.stars > 1")
	b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	refuse := &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field strs"}
	for _, n := range w.nodes {
		n.set(func() { n.err = refuse })
	}
	d.serve("jobs", 2, "name: jobs\nmodel: recency\nfilter: record.strs > 1")
	if f := settled(b.feeds)["jobs"]; f.Version != 1 {
		t.Errorf("serves %+v", f)
	}
	if got := faultsOf(t, b.feeds.bad); !slices.Equal(got, []string{"jobs"}) {
		t.Errorf("faults are told of %v", got)
	}
	// One node that takes it is enough: the other does not know a schema yet.
	w.nodes["n1"].set(func() { w.nodes["n1"].err = nil })
	d.serve("", 0, "")
	if f := settled(b.feeds)["jobs"]; f.Version != 2 {
		t.Errorf("serves %+v", f)
	}
	// Where nobody can be asked nothing is known against it.
	for _, n := range w.nodes {
		n.set(func() { n.err = errors.New("away") })
	}
	d.serve("jobs", 3, "name: jobs\nmodel: recency\nfilter: record.stars > 3")
	if f := settled(b.feeds)["jobs"]; f.Version != 3 {
		t.Errorf("serves %+v", f)
	}
}

// TestCheckFeed: everything that requests would meet is found before a
// definition is stored.
func TestCheckFeed(t *testing.T) {
	w := newWorld(t, 3, 1)
	checks := Checks{Models: []string{"recency", "home"}, Nodes: map[millrace.NodeID]Node{"n0": w.nodes["n0"], "n1": w.nodes["n1"], "n2": w.nodes["n2"]}}
	f := Feed{Name: "a", Model: "recency", Filter: "record.stars > 1", Shadow: []string{"home"}}
	if unheard, err := CheckFeed(t.Context(), f, checks); err != nil || len(unheard) > 0 {
		t.Errorf("%v, %v", unheard, err)
	}
	w.nodes["n1"].err = errors.New("away")
	if unheard, err := CheckFeed(t.Context(), f, checks); err != nil || !slices.Equal(unheard, []millrace.NodeID{"n1"}) {
		t.Errorf("one of three can't be asked: %v, %v", unheard, err)
	}
	w.nodes["n2"].err = &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field strs", WayOut: "did you mean stars?"}
	f.Model, f.Shadow = "nope", []string{"home", "none"}
	_, err := CheckFeed(t.Context(), f, checks)
	for _, want := range []string{`model: no model "nope" serves; push it first, or name one of recency, home`, `shadow[1]: no model "none" serves`, "index node n2: filter: no field strs; did you mean stars?"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	_, err = CheckFeed(t.Context(), Feed{Model: "recency", Filter: "true"}, Checks{Models: []string{"recency"}})
	if r := refusal(t, err); r.Reason != millrace.ReasonUnavailable || r.Field != "filter" {
		t.Errorf("no node: %v", err)
	}
	if _, err = CheckFeed(t.Context(), Feed{Model: "recency"}, Checks{Models: []string{"recency"}}); err != nil {
		t.Errorf("without a filter nobody has to be asked: %v", err)
	}
}

func TestReceiptNamesTheFeedsVersion(t *testing.T) {
	w := newWorld(t, 1, 1)
	d := newDefinitions()
	b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	d.serve("recent", 9, "name: recent\nmodel: recency\nlimit: 1")
	settled(b.feeds)
	w.add(timelineOf(0), "a", timeAt(0), "")
	w.add(timelineOf(1), "b", timeAt(1), "")
	req := recentRequest(2)
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil || resp.Receipt.FeedVersion != 9 || len(resp.Items) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	// One that deduplicates otherwise begins with the next first page.
	d.serve("recent", 10, "name: recent\nmodel: recency\ndistinct_objects: true")
	settled(b.feeds)
	req.PageToken, req.Limit = resp.NextPageToken, proto.Int64(1)
	if resp, err = b.GetFeed(t.Context(), req); err != nil || resp.Receipt.FeedVersion != 9 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestPagesKeepTheirDefinition: what serves may change between two pages, on a
// broker that knew the first definition and on one that did not; a page is by
// the definition of the first, and by nothing once that is gone.
func TestPagesKeepTheirDefinition(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.fill(rand.New(rand.NewPCG(1, 1)), 20, 100)
	d := newDefinitions()
	brokerOf := func() *Broker {
		b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler), PageKeys: func() []cluster.Generation {
			return []cluster.Generation{{Secret: []byte("0123456789abcdef0123456789abcdef")}}
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	d.serve("ranked", 1, "name: ranked\nmodel: recency\nfilter: record.likes > 1\ncap_per_entity: 2")
	knows := brokerOf()
	req := rankedRequest(5)
	first, err := knows.GetFeed(t.Context(), req)
	if err != nil || first.NextPageToken == "" {
		t.Fatalf("%v, %v", first, err)
	}
	d.serve("ranked", 2, "name: ranked\nmodel: recency\nfilter: record.likes > 2\ndistinct_objects: true\ntypes: [like]\nforbid: {explain: true}")
	settled(knows.feeds)
	for name, b := range map[string]*Broker{"one that served it": knows, "another": brokerOf()} {
		next := proto.Clone(req).(*feedv1.GetFeedRequest)
		next.PageToken = first.NextPageToken
		resp, err := b.GetFeed(t.Context(), next)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := w.nodes["n0"]
		asked := n.asked[len(n.asked)-1]
		if resp.Receipt.FeedVersion != 1 || asked.Filter != "record.likes > 1" || asked.CapPerEntity != 2 || asked.DistinctObjects || len(asked.Types) > 0 {
			t.Errorf("%s: a later page is by version %d: %v", name, resp.Receipt.FeedVersion, asked)
		}
		next.Explain = true
		if _, err := b.GetFeed(t.Context(), next); refusal(t, err).Reason != millrace.ReasonForbidden {
			t.Errorf("%s: what is forbidden since is not: %v", name, err)
		}
		fresh := proto.Clone(req).(*feedv1.GetFeedRequest)
		fresh.Types = []string{"like"}
		if resp, err := b.GetFeed(t.Context(), fresh); err != nil || resp.Receipt.FeedVersion != 2 {
			t.Errorf("%s: a first page is by %v, %v", name, resp.GetReceipt(), err)
		}
	}
	d.drop("ranked")
	d.serve("ranked", 1, "name: ranked\nmodel: recency")
	settled(knows.feeds)
	req.PageToken = first.NextPageToken
	_, err = knows.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || !strings.Contains(e.Detail, "no longer there") {
		t.Errorf("a page of a definition that is gone: %+v", e)
	}
}
