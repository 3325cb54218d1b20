package indexnode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/relevance/weights"
	"github.com/millrace/millrace/schemas"
)

// TestUncoveredFeatures: of a pushed model, the features that no candidate of
// the newest question has.
func TestUncoveredFeatures(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	likes, err := likesPack(t).Admit(n.models, "a", relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if missing, candidates, err := n.uncovered(t.Context(), likes); len(missing) > 0 || candidates > 0 || err != nil {
		t.Errorf("before any question: %v of %d, %v", missing, candidates, err)
	}
	w := newWorld(1)
	e := w.entities[0]
	body, err := schemas.Activity().EncodeJSON([]byte(`{"id":"r1","actor":"` + string(e) + `","verb":"post","created_at":5,"likes":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := bring(t.Context(), h, []event{{stream: kafka.Timeline, entity: e, schema: schemas.Activity(), body: body}}, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: pack(string(e)), ToMs: math.MaxInt64, Model: "recency", Limit: 5}); err != nil {
		t.Fatal(err)
	}
	missing, candidates, err := n.uncovered(t.Context(), likes)
	if want := []string{"followers", "taste"}; err != nil || candidates != 1 || !slices.Equal(missing, want) {
		t.Errorf("%v of %d candidates, %v; want %v of 1", missing, candidates, err, want)
	}
}

func likesPack(t *testing.T) *modelpack.Pack {
	t.Helper()
	return packOf(t, likesSpec, likesRow, relevance.ShippedSchemas())
}

const (
	likesSpec = `name: likes
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
viewer: {taste: double}
features: {likes: record.likes, followers: entity.followers, taste: viewer.taste, verb: record.verb}
scorer: linear
parameters: {weights: {likes: 1, followers: 1, taste: 1, verb: {post: 1}}}
`
	likesRow = `{"features":{"likes":1,"followers":1,"taste":1,"verb":"post"},"score":4,"record":{"likes":1,"verb":"post"},"entity":{"followers":1},"viewer":{"taste":1}}`
)

func packOf(t *testing.T, spec, row string, known relevance.Schemas) *modelpack.Pack {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{modelpack.SpecFile: spec, modelpack.GoldenFile: row + "\n", modelpack.CardFile: "Likes.\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := modelpack.Seal(dir, known)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// published is packs as the cluster has them.
type published struct {
	mu      sync.Mutex
	all     map[string][]cluster.Version
	serving map[string]cluster.Version
	bodies  map[cluster.Version][]byte
	fault   error
	unkept  map[cluster.Version]error
	history []cluster.Event
	changed chan struct{}
}

func newPublished() *published {
	return &published{all: map[string][]cluster.Version{}, serving: map[string]cluster.Version{}, bodies: map[cluster.Version][]byte{}, changed: make(chan struct{})}
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
func (p *published) put(t *testing.T, pack *modelpack.Pack) cluster.Version {
	t.Helper()
	var body bytes.Buffer
	if err := pack.WriteTar(&body); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(body.Bytes())
	v := cluster.Version{Name: pack.Manifest.Name, Version: pack.Manifest.Version, Sum: hex.EncodeToString(sum[:])}
	p.set(func() { p.all[v.Name], p.bodies[v] = append(slices.Clone(p.all[v.Name]), v), body.Bytes() })
	return v
}

func (p *published) serve(v cluster.Version) { p.set(func() { p.serving[v.Name] = v }) }

func (p *published) All() map[string][]cluster.Version {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.all)
}

func (p *published) Serving() map[string]cluster.Version {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.serving)
}

func (p *published) Body(_ context.Context, v cluster.Version) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies[v], p.fault
}

func (p *published) History(context.Context, string) ([]cluster.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history, p.fault
}

func (p *published) Unkept(v cluster.Version) error { return p.unkept[v] }

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
func following(t *testing.T, f *modelFollower) <-chan []cluster.Admission {
	t.Helper()
	told := make(chan []cluster.Admission)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		_ = f.run(ctx, func(all []cluster.Admission) {
			slices.SortFunc(all, func(a, b cluster.Admission) int { return strings.Compare(a.Version, b.Version) })
			select {
			case told <- all:
			case <-ctx.Done():
			}
		})
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return told
}

func never() <-chan struct{} { return nil }

// find reports whether a node can answer by a version.
func find(n *Node, v cluster.Version) error {
	_, err := n.models.Find(relevance.ID(v))
	return err
}

// TestOlderVersionPushed: versions come in any order and stand beside each
// other; one that is dropped is gone, and asking for it says so by a type that
// sends the question elsewhere.
func TestOlderVersionPushed(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	p := newPublished()
	second := p.put(t, packOf(t, strings.Replace(likesSpec, `"1"`, `"2"`, 1), likesRow, relevance.ShippedSchemas()))
	p.serve(second)
	f := newModelFollower(n, p, never)
	f.linger = 0
	told := following(t, f)
	if all := <-told; len(all) != 1 || all[0].Refused != "" {
		t.Fatalf("told %v", all)
	}
	first := p.put(t, likesPack(t))
	all := <-told
	if len(all) != 2 || all[0].Refused != "" || !all[0].Of(first) {
		t.Fatalf("told %v", all)
	}
	if m, err := n.models.Find(relevance.ID(first)); err != nil || all[0].Cost == 0 || all[0].Cost != m.Cost() {
		t.Errorf("told a cost of %d: %v", all[0].Cost, err)
	}
	for _, v := range []cluster.Version{first, second} {
		req := &nodev1.QueryRequest{Entities: pack("member:1"), ToMs: math.MaxInt64, Model: v.Name, ModelVersion: v.Version, ModelSum: v.Sum, Limit: 5}
		resp, err := n.Query(t.Context(), req)
		if err != nil || resp.ModelVersion != v.Version || resp.ModelSum != v.Sum {
			t.Errorf("%s: %v, %v", v, resp, err)
		}
		req.ModelSum = strings.Repeat("0", 64)
		_, err = n.Query(t.Context(), req)
		var e *millrace.Error
		if err = rpcerr.FromStatus(err); !errors.As(err, &e) || e.Reason != millrace.ReasonNotHere || rpcerr.Refused(err) {
			t.Errorf("%s with another checksum: %v", v, err)
		}
	}
	p.set(func() { p.all["likes"] = p.all["likes"][:1] })
	if all := <-told; len(all) != 1 || find(n, first) == nil || find(n, second) != nil {
		t.Fatalf("after the drop: told %v", all)
	}
}

// Weights that a node cannot put in place of a model's own are refused, with the
// parameter that may be meant, and those of a model that is not here are asked
// of another node.
func TestWeightsRefused(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	ask := func(model, version, form, sum string) *millrace.Error {
		_, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: pack("member:1"), ToMs: math.MaxInt64, Model: model, ModelVersion: version, Weights: form, WeightsSum: sum, Limit: 5})
		var e *millrace.Error
		if err = rpcerr.FromStatus(err); err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
		return e
	}
	good, bad := weights.Form(map[string]float64{"likes": 2}), weights.Form(map[string]float64{"lieks": 2})
	if e := ask("home", "", good, weights.Sum(good)); e != nil {
		t.Error(e)
	}
	if e := ask("home", "", bad, weights.Sum(bad)); e == nil || e.Reason != millrace.ReasonUnknown || e.Field != "weights" || e.WayOut != "did you mean likes?" {
		t.Errorf("%+v", e)
	}
	if e := ask("home", "", good, weights.Sum(bad)); e == nil || e.Reason != millrace.ReasonInvalid {
		t.Errorf("%+v", e)
	}
	if e := ask("nosuch", "2", good, weights.Sum(good)); e == nil || e.Reason != millrace.ReasonNotHere {
		t.Errorf("%+v", e)
	}
	if e := ask("home", "", strings.Repeat("x", weights.MaxBytes+1), ""); e == nil || e.Field != "weights" || e.Reason != millrace.ReasonInvalid {
		t.Errorf("%+v", e)
	}
}

// TestDroppedVersionLingers: brokers that have not heard yet are still
// answered.
func TestDroppedVersionLingers(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	p := newPublished()
	v := p.put(t, likesPack(t))
	told := following(t, newModelFollower(n, p, never))
	<-told
	p.set(func() { delete(p.all, "likes") })
	if all := <-told; len(all) != 0 || find(n, v) != nil {
		t.Fatalf("told %v; %v", all, find(n, v))
	}
}

// TestRestartKeepsWhatServes: a node that starts is not ready before it has
// looked at what serves, and has every version again.
func TestRestartKeepsWhatServes(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	p := newPublished()
	first := p.put(t, likesPack(t))
	second := p.put(t, packOf(t, strings.Replace(likesSpec, `"1"`, `"2"`, 1), likesRow, relevance.ShippedSchemas()))
	p.serve(first) // after a rollback, say
	p.set(func() { p.fault = errors.New("etcd is away") })
	f := newModelFollower(n, p, never)
	if n.modelsPending() == "" || n.Ready() == nil {
		t.Error("ready before it has looked at the models")
	}
	f.admit(t.Context())
	if what := n.modelsPending(); !strings.Contains(what, "likes 1") {
		t.Errorf("awaits %q while the pack cannot be read", what)
	}
	p.set(func() { p.fault = nil })
	told := following(t, f)
	if all := <-told; len(all) != 2 || n.modelsPending() != "" || n.Ready() != nil {
		t.Fatalf("told %v; awaits %q; %v", all, n.modelsPending(), n.Ready())
	}
	for _, v := range []cluster.Version{first, second} {
		if err := find(n, v); err != nil {
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
	v := p.put(t, packOf(t, "name: claps\nversion: \"1\"\nschemas: [team.Talk]\nfeatures: {claps: record.claps}\nscorer: linear\nparameters: {weights: {claps: 1}}\n",
		`{"features":{"claps":2},"score":2,"record":{"claps":2}}`, known))
	p.serve(v)
	for range 3 {
		n, _ := openNode(t, cache.Config{})
		moved := make(chan struct{})
		told := following(t, newModelFollower(n, p, func() <-chan struct{} { return moved }))
		if all := <-told; len(all) != 1 || !strings.Contains(all[0].Refused, "no schema team.Talk") || n.modelsPending() != "" {
			t.Fatalf("told %v; awaits %q", all, n.modelsPending())
		}
		if _, err := n.schemas.Admit(talk); err != nil {
			t.Fatal(err)
		}
		close(moved)
		if all := <-told; len(all) != 1 || all[0].Refused != "" || find(n, v) != nil {
			t.Fatalf("with its schema: told %v", all)
		}
	}
}

// TestPackOfAnotherName: what stands under a name and version must be them.
func TestPackOfAnotherName(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	p := newPublished()
	v := p.put(t, likesPack(t))
	p.set(func() {
		other := cluster.Version{Name: "likes", Version: "9", Sum: v.Sum}
		p.all["likes"], p.bodies[other] = []cluster.Version{other}, p.bodies[v]
	})
	if all := <-following(t, newModelFollower(n, p, never)); len(all) != 1 || !strings.Contains(all[0].Refused, "says that it is likes 1") {
		t.Fatalf("told %v", all)
	}
}
