package packs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// published is packs as the cluster has them.
type published struct {
	mu      sync.Mutex
	all     map[string][]artefacts.Version
	serving map[string]artefacts.Version
	bodies  map[artefacts.Version][]byte
	fault   error
	unkept  map[artefacts.Version]error
	history []ledger.Event
	changed chan struct{}
}

func newPublished() *published {
	return &published{all: map[string][]artefacts.Version{}, serving: map[string]artefacts.Version{}, bodies: map[artefacts.Version][]byte{}, changed: make(chan struct{})}
}

// set changes what is there.
func (p *published) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// put publishes a pack.
func (p *published) put(t *testing.T, pack *modelpack.Pack) artefacts.Version {
	t.Helper()
	var body bytes.Buffer
	if err := pack.WriteTar(&body); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(body.Bytes())
	v := artefacts.Version{Name: pack.Manifest.Name, Version: pack.Manifest.Version, Sum: hex.EncodeToString(sum[:])}
	p.set(func() { p.all[v.Name], p.bodies[v] = append(slices.Clone(p.all[v.Name]), v), body.Bytes() })
	return v
}

// misnamed publishes a pack as another version than it says that it is.
func (p *published) misnamed(t *testing.T) {
	t.Helper()
	v := p.put(t, nodetest.Likes(t))
	p.set(func() {
		other := artefacts.Version{Name: "likes", Version: "9", Sum: v.Sum}
		p.all["likes"], p.bodies[other] = []artefacts.Version{other}, p.bodies[v]
	})
}

func (p *published) serve(v artefacts.Version) { p.set(func() { p.serving[v.Name] = v }) }

func (p *published) All() map[string][]artefacts.Version {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.all)
}

func (p *published) Serving() map[string]artefacts.Version {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.serving)
}

func (p *published) Body(_ context.Context, v artefacts.Version) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies[v], p.fault
}

func (p *published) History(context.Context, string) ([]ledger.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history, p.fault
}

func (p *published) Unkept(v artefacts.Version) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unkept[v]
}

func (p *published) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

func (p *published) Fault() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

// following runs a follower and returns what it tells, in order.
func following(t *testing.T, f *Follower) <-chan []members.Admission {
	t.Helper()
	told := make(chan []members.Admission)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		_ = f.Run(ctx, func(all []members.Admission) {
			slices.SortFunc(all, func(a, b members.Admission) int { return strings.Compare(a.Version, b.Version) })
			select {
			case told <- all:
			case <-ctx.Done():
			}
		})
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return told
}

// topicOf is a topic that has been read, unless early says otherwise.
type topicOf struct {
	moved chan struct{}
	early *atomic.Bool
}

func (t topicOf) Moved() <-chan struct{} { return t.moved }
func (t topicOf) Read() bool             { return t.early == nil || !t.early.Load() }

// never has schemas change never.
var never topicOf

// find reports whether a node can answer by a version.
func find(a *Admission, v artefacts.Version) error {
	_, err := a.cfg.Models.Find(relevance.ID(v))
	return err
}

// TestOlderVersionPushed: versions come in any order and stand beside each
// other; one that is dropped is gone, and asking for it says so by a type that
// sends the question elsewhere.
func TestOlderVersionPushed(t *testing.T) {
	a, _ := open(t)
	p := newPublished()
	second := p.put(t, nodetest.PackOf(t, strings.Replace(nodetest.LikesSpec, `"1"`, `"2"`, 1), nodetest.LikesRow, relevance.ShippedSchemas()))
	p.serve(second)
	f := a.Follow(p, never)
	f.linger = 0
	told := following(t, f)
	if all := <-told; len(all) != 1 || all[0].Refused != "" {
		t.Fatalf("told %v", all)
	}
	first := p.put(t, nodetest.Likes(t))
	all := <-told
	if len(all) != 2 || all[0].Refused != "" || !all[0].Of(first) {
		t.Fatalf("told %v", all)
	}
	if m, err := a.cfg.Models.Find(relevance.ID(first)); err != nil || all[0].Cost == 0 || all[0].Cost != m.Cost() {
		t.Errorf("told a cost of %d: %v", all[0].Cost, err)
	}
	for _, v := range []artefacts.Version{first, second} {
		if m, err := a.cfg.Models.Find(relevance.ID(v)); err != nil || m.Version() != v.Version {
			t.Errorf("%s: %v", v, err)
		}
		other := relevance.ID(v)
		other.Sum = strings.Repeat("0", 64)
		_, err := a.cfg.Models.Find(other)
		var e *millrace.Error
		if !errors.As(err, &e) || e.Reason != millrace.ReasonNotHere || rpcerr.Refused(err) {
			t.Errorf("%s with another checksum: %v", v, err)
		}
	}
	p.set(func() { p.all["likes"] = p.all["likes"][:1] })
	if all := <-told; len(all) != 1 || find(a, first) == nil || find(a, second) != nil {
		t.Fatalf("after the drop: told %v", all)
	}
}

// TestDroppedVersionLingers: brokers that have not heard yet are still
// answered.
func TestDroppedVersionLingers(t *testing.T) {
	a, _ := open(t)
	p := newPublished()
	v := p.put(t, nodetest.Likes(t))
	told := following(t, a.Follow(p, never))
	<-told
	p.set(func() { delete(p.all, "likes") })
	if all := <-told; len(all) != 0 || find(a, v) != nil {
		t.Fatalf("told %v; %v", all, find(a, v))
	}
}

// TestRestartKeepsWhatServes: a node that starts is not ready before it has
// looked at what serves, and has every version again.
func TestRestartKeepsWhatServes(t *testing.T) {
	a, _ := open(t)
	p := newPublished()
	first := p.put(t, nodetest.Likes(t))
	second := p.put(t, nodetest.PackOf(t, strings.Replace(nodetest.LikesSpec, `"1"`, `"2"`, 1), nodetest.LikesRow, relevance.ShippedSchemas()))
	p.serve(first) // after a rollback, say
	p.set(func() { p.fault = errors.New("etcd is away") })
	f := a.Follow(p, never)
	if a.Pending() == "" {
		t.Error("ready before it has looked at the models")
	}
	f.Admit(t.Context())
	if what := a.Pending(); !strings.Contains(what, "likes 1") {
		t.Errorf("awaits %q while the pack cannot be read", what)
	}
	p.set(func() { p.fault = nil })
	told := following(t, f)
	if all := <-told; len(all) != 2 || a.Pending() != "" {
		t.Fatalf("told %v; awaits %q", all, a.Pending())
	}
	for _, v := range []artefacts.Version{first, second} {
		if err := find(a, v); err != nil {
			t.Error(err)
		}
	}
}

const teamSchema = `{"type":"record","name":"team.Talk","fields":[
{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"claps","type":"long","default":0}]}`

// TestPushedBeforeItsSchema: a pack whose schema is not known yet is refused
// with the reason, and admitted once the schema comes, on every node alike,
// however busy.
func TestPushedBeforeItsSchema(t *testing.T) {
	talk, err := schemas.Parse([]byte(teamSchema))
	if err != nil {
		t.Fatal(err)
	}
	known := relevance.ShippedSchemas()
	known[talk.Name()] = relevance.Records{Layout: talk.Layout()}
	p := newPublished()
	v := p.put(t, nodetest.PackOf(t, "name: claps\nversion: \"1\"\nschemas: [team.Talk]\nfeatures: {claps: record.claps}\nscorer: linear\nparameters: {weights: {claps: 1}}\n",
		`{"features":{"claps":2},"score":2,"record":{"claps":2}}`, known))
	p.serve(v)
	for range 3 {
		a, _ := open(t)
		moved := make(chan struct{})
		told := following(t, a.Follow(p, topicOf{moved: moved}))
		if all := <-told; len(all) != 1 || !strings.Contains(all[0].Refused, "no schema team.Talk") || a.Pending() != "" {
			t.Fatalf("told %v; awaits %q", all, a.Pending())
		}
		if _, err := a.cfg.Schemas.Admit(talk); err != nil {
			t.Fatal(err)
		}
		close(moved)
		if all := <-told; len(all) != 1 || all[0].Refused != "" || find(a, v) != nil {
			t.Fatalf("with its schema: told %v", all)
		}
	}
}

// A node without a disk hears of models before it has read the schemas: that is no refusal
// that anybody is told of, unless it stays one once they are read.
func TestModelsWaitForTheSchemas(t *testing.T) {
	talk, err := schemas.Parse([]byte(teamSchema))
	if err != nil {
		t.Fatal(err)
	}
	known := relevance.ShippedSchemas()
	known[talk.Name()] = relevance.Records{Layout: talk.Layout()}
	for _, comes := range []bool{true, false} {
		a, _ := open(t)
		p := newPublished()
		v := p.put(t, nodetest.PackOf(t, "name: claps\nversion: \"1\"\nschemas: [team.Talk]\nfeatures: {claps: record.claps}\nscorer: linear\nparameters: {weights: {claps: 1}}\n",
			`{"features":{"claps":2},"score":2,"record":{"claps":2}}`, known))
		p.serve(v)
		refusals := func() float64 {
			var m dto.Metric
			if err := a.refused.Write(&m); err != nil {
				t.Fatal(err)
			}
			return m.Counter.GetValue()
		}
		early := new(atomic.Bool)
		early.Store(true)
		f := a.Follow(p, topicOf{early: early})
		if again := f.Admit(t.Context()); !again || refusals() != 0 || f.tried[v].refused == nil {
			t.Errorf("before the schemas are read: again %t, %v refusals are told, %v", again, refusals(), f.tried[v].refused)
		}
		want := 1.0
		if comes {
			if _, err := a.cfg.Schemas.Admit(talk); err != nil {
				t.Fatal(err)
			}
			want = 0
		}
		early.Store(false)
		for range 2 {
			if again := f.Admit(t.Context()); again || refusals() != want || (f.tried[v].refused == nil) != comes {
				t.Errorf("the schema is among those that were read: %t: again %t, %v refusals are told, %v", comes, again, refusals(), f.tried[v].refused)
			}
		}
	}
}

// TestPackOfAnotherName: what stands under a name and version must be them.
func TestPackOfAnotherName(t *testing.T) {
	a, _ := open(t)
	p := newPublished()
	p.misnamed(t)
	if all := <-following(t, a.Follow(p, never)); len(all) != 1 || !strings.Contains(all[0].Refused, "says that it is likes 1") {
		t.Fatalf("told %v", all)
	}
	var m dto.Metric
	if err := a.refused.Write(&m); err != nil || m.Counter.GetValue() != 1 {
		t.Errorf("%v packs refused are counted, %v", m.Counter.GetValue(), err)
	}
}

// A version whose bytes could not be read at first, and that is refused once they
// can, is counted for either, and once.
func TestWhatIsRefusedAfterAllIsCounted(t *testing.T) {
	a, _ := open(t)
	p := newPublished()
	p.misnamed(t)
	p.set(func() { p.fault = errors.New("etcd is away") })
	f := a.Follow(p, never)
	for i, want := range []float64{1, 1, 2, 2} {
		if i == 2 {
			p.set(func() { p.fault = nil })
		}
		f.Admit(t.Context())
		var m dto.Metric
		if err := a.refused.Write(&m); err != nil || m.Counter.GetValue() != want {
			t.Errorf("pass %d: %v are counted, %v", i, m.Counter.GetValue(), err)
		}
	}
}
