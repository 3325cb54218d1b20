package broker

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/broker/findings"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/weights"
	"github.com/millrace/millrace/schemas"
)

// rounds is how many random worlds a test tries: go test ./broker -rounds 10000
var rounds = flag.Uint64("rounds", 100, "random worlds a test")

func worlds() uint64 {
	if testing.Short() {
		return min(*rounds, 15)
	}
	return *rounds
}

// eachWorld calls try with every seed, on all processors.
func eachWorld(t *testing.T, try func(t *testing.T, seed uint64)) {
	shards := uint64(runtime.GOMAXPROCS(0))
	for shard := range shards {
		t.Run(fmt.Sprintf("%d of %d", shard+1, shards), func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < worlds(); seed += shards {
				try(t, seed)
			}
		})
	}
}

// world is a cluster of fake nodes over one naive feed.
type world struct {
	t     *testing.T
	feed  *oracle.Feed
	nodes map[millrace.NodeID]*fakeNode
	m     *topology.Map
}

func (w *world) Current() *topology.Map { return w.m }

// nine is a world of nine timelines with a record each.
func nine(t *testing.T, nodes int) *world {
	w := newWorld(t, nodes, 1)
	for i := range 9 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	return w
}

// newWorld hosts every partition on some of the nodes.
func newWorld(t *testing.T, nodes, replicas int) *world {
	w := &world{t: t, feed: oracle.New(), nodes: map[millrace.NodeID]*fakeNode{}}
	var ids []millrace.NodeID
	for i := range nodes {
		ids = append(ids, millrace.NodeID(fmt.Sprintf("n%d", i)))
	}
	a, err := topology.Spread(ids, replicas)
	if err != nil {
		t.Fatal(err)
	}
	w.assign(a)
	return w
}

// assign makes a map in which everybody is alive and caught up.
func (w *world) assign(a topology.Assignment) {
	var alive []topology.Node
	ready := map[millrace.NodeID]topology.Set{}
	for _, id := range a.Nodes() {
		if w.nodes[id] == nil {
			w.nodes[id] = &fakeNode{w: w, id: id}
		}
		w.nodes[id].hosted = a.Hosted(id)
		alive = append(alive, topology.Node{ID: id, Addr: "fake:" + string(id)})
		ready[id] = topology.All()
	}
	w.m = topology.NewMap(a, alive, ready)
}

func (w *world) broker(feeds ...feeds.Feed) *Broker {
	w.t.Helper()
	b, err := New(Config{
		Maps: w, Feeds: feeds, Log: slog.New(slog.DiscardHandler),
		Dial: w.dial,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close() })
	return b
}

// defined returns a broker whose feeds are defined in the cluster.
func (w *world) defined(d *feedstest.Definitions) *Broker {
	w.t.Helper()
	b, err := New(Config{Maps: w, Dial: w.dial, Definitions: d, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = b.Close() })
	return b
}

func (w *world) dial(n topology.Node) (fanout.Node, error) { return w.nodes[n.ID], nil }

var note = schemas.Note()

// add applies a record, with a body that says the same.
func (w *world) add(t millrace.Timeline, id millrace.RecordID, at millrace.Time, object millrace.Object) {
	body, err := note.EncodeJSON(fmt.Appendf(nil, `{"id":%q,"author":%q,"kind":%q,"at":%q,"stars":3}`, id, t.Entity, t.Type, at))
	if err != nil {
		w.t.Fatal(err)
	}
	w.feed.Apply(t, millrace.Record{ID: id, Time: at, Object: object, Schema: note.Fingerprint(), Body: body})
}

// coarse is a model under which many candidates tie and some are NaN.
func coarse(c *oracle.Candidate, _ *millrace.Viewer, _ millrace.Time) float64 {
	switch n := len(c.ID) + int(c.ID[len(c.ID)-1])%5; n {
	case 4:
		return math.NaN()
	case 5:
		return math.Copysign(0, -1)
	case 6:
		return 0
	default:
		return float64(n)
	}
}

func recency(c *oracle.Candidate, _ *millrace.Viewer, _ millrace.Time) float64 {
	return float64(c.Time)
}

// query is what a request means to the naive feed, or to a node.
func (w *world) query(req *nodev1.QueryRequest, entities []millrace.Entity) oracle.Query {
	q := oracle.Query{
		Entities: entities, From: millrace.Time(req.FromMs), To: millrace.Time(req.ToMs), AsOf: millrace.Time(req.AsOfMs),
		Limit: int(req.Limit), Cap: int(req.CapPerEntity), Distinct: req.DistinctObjects, Score: coarse,
	}
	for _, t := range req.Types {
		q.Types = append(q.Types, millrace.ContentType(t))
	}
	if req.Model == "recency" {
		q.Score = recency
	}
	if req.Filter == "record.even" {
		q.Filter = func(c *oracle.Candidate, _ *millrace.Viewer, _ millrace.Time) celref.Outcome {
			if even(c) {
				return celref.True
			}
			return celref.False
		}
	}
	if set, err := weights.Read(req.Weights, req.WeightsSum); err == nil {
		own := q.Score
		q.Score = func(c *oracle.Candidate, v *millrace.Viewer, at millrace.Time) float64 {
			return set["scale"] * own(c, v, at)
		}
	}
	return q
}

// even is the one filter that fake nodes know.
func even(c *oracle.Candidate) bool { return c.ID[len(c.ID)-1]%2 == 0 }

// fakeNode answers from the world's feed for the partitions it hosts.
type fakeNode struct {
	w      *world
	id     millrace.NodeID
	hosted topology.Set
	mu     sync.Mutex
	asked  []*nodev1.QueryRequest

	types   []string                         // it says which others it does not know; nil: it does not say
	behind  topology.Set                     // says not_ready
	err     error                            // answers nothing else
	refusal func(*nodev1.QueryRequest) error // answers nothing else where there is one; may be nil
	models  map[artefacts.Version]bool       // pushed ones that it has; nil: whatever it is asked for
	delay   func() time.Duration             // before each answer

	condemned  map[artefacts.Version]bool // by which it refuses to rank
	weightless map[artefacts.Version]bool // which lack every weight
	frozen     bool                       // never answers
	stuck      string                     // never answers by this model
	old        bool                       // does not know how much its answer may take
	bare       bool                       // tells no features
	gap        string                     // the type whose records have no text among them
	claims     int64                      // bytes that it says its answer takes, if more than one item is asked for
	silent     bool                       // does not tell the fields of all schemas
	told       int                        // how often it told them
	tells      time.Duration              // how long that takes
	work       func(context.Context) error
}

// set changes the node while it is being asked.
func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *fakeNode) calls() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.asked)
}

func (w *world) calls() (sum int) {
	for _, n := range w.nodes {
		sum += n.calls()
	}
	return sum
}

func (n *fakeNode) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	n.mu.Lock()
	n.asked = append(n.asked, req)
	frozen, delay, broken := n.frozen || n.stuck != "" && (n.stuck == req.Model || slices.ContainsFunc(req.Beside, func(m *nodev1.Model) bool { return m.Name == n.stuck })), n.delay, n.err
	if n.refusal != nil {
		broken = cmp.Or(n.refusal(req), broken)
	}
	n.mu.Unlock()
	if frozen {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if delay != nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay()):
		}
	}
	if n.work != nil {
		if err := n.work(ctx); err != nil {
			return nil, err
		}
	}
	if broken != nil {
		return nil, broken
	}
	if err := n.lacks(req); err != nil {
		return nil, err
	}
	if v := (artefacts.Version{Name: req.Model, Version: req.ModelVersion, Sum: req.ModelSum}); n.condemns(v) && req.GivesWay {
		return nil, condemnedModel("model", "", v, "it panicked")
	}
	if v := (artefacts.Version{Name: req.Model, Version: req.ModelVersion, Sum: req.ModelSum}); req.Weights != "" && n.lacksWeights(v) {
		return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights", Detail: fmt.Sprintf("model %s has no parameter \"scale\"", v)}
	}
	resp := &nodev1.QueryResponse{Model: req.Model, ModelVersion: cmp.Or(req.ModelVersion, "1"), ModelSum: req.ModelSum, Execution: "interpreted", Protocol: nodewire.Protocol}
	if n.old {
		resp.Protocol = 0
		req = proto.CloneOf(req)
		req.Weights, req.WeightsSum = "", ""
	}
	resp.WeightsSum = req.WeightsSum
	for _, t := range req.Types {
		if n.types != nil && !slices.Contains(n.types, t) {
			resp.UnknownTypes, resp.KnownTypes = append(resp.UnknownTypes, t), n.types
		}
	}
	var mine []millrace.Entity
	answers := &nodev1.Partitions{Missing: map[int32]string{}}
	for _, e := range splitEntities(n.w.t, req.Entities) {
		p := partition.Of(e)
		switch {
		case !n.hosted.Has(p):
			answers.Missing[int32(p)] = "not_hosted"
		case n.behind.Has(p):
			answers.Missing[int32(p)] = "not_ready"
		default:
			mine = append(mine, e)
			if slices.Contains(answers.Answered, int32(p)) {
				continue
			}
			answers.Answered = append(answers.Answered, int32(p))
			answers.AppliedContent, answers.AppliedFeatures = append(answers.AppliedContent, 100+int64(p)), append(answers.AppliedFeatures, 0)
		}
	}
	resp.Partitions = answers
	q := n.w.query(req, mine)
	resp.Items, resp.Stages = n.ranked(req, q)
	if req.Features && !n.bare {
		resp.FeatureNames = []string{"score", "id"}
		for _, it := range resp.Items {
			it.Features = &nodev1.Vector{Numbers: []float64{it.Score, math.NaN()}}
			if n.gap == "" || it.Type != n.gap {
				it.Features.Texts = map[int32]string{1: it.Id}
			}
		}
	}
	if req.Measure {
		resp.ScoringNs, resp.Looked, resp.Lacking = 10*resp.Stages.Scored, int32(len(resp.Items)), map[string]int64{"age": 0}
		for _, it := range resp.Items {
			it.Explain = n.shadowScores(req, it)
		}
	}
	for _, m := range req.Beside {
		other := proto.CloneOf(req)
		other.Model, other.ModelVersion, other.ModelSum = m.Name, m.Version, m.Sum
		r := &nodev1.Ranking{Model: m.Name, ModelVersion: cmp.Or(m.Version, "1"), ModelSum: m.Sum}
		if err := n.lacks(other); err != nil {
			r.Error, r.Absent = err.Error(), true
		} else {
			var stages *nodev1.Stages
			if r.Items, stages = n.ranked(other, n.w.query(other, mine)); req.Measure {
				r.Scored, r.ScoringNs = stages.Scored, 30*stages.Scored
				r.Looked, r.Lacking = int32(len(r.Items)), map[string]int64{"taste": int64(len(r.Items))}
			}
		}
		if !n.old {
			resp.Beside = append(resp.Beside, r)
		}
	}
	if req.Examine != "" {
		resp.Findings = n.w.examine(req, &q)
	}
	for _, it := range req.Above {
		resp.Above = append(resp.Above, n.w.above(fanout.RankOf(it), q))
	}
	if size := nodewire.Size(resp); !n.old && req.MaxBytes > 0 && size > req.MaxBytes {
		resp.Items, resp.WithheldBytes = nil, size
	}
	if n.claims > 0 && req.Limit > 1 {
		resp.Items, resp.WithheldBytes = nil, n.claims
	}
	// Over the wire and back, so that nothing is shared.
	raw, err := proto.Marshal(resp)
	if err != nil {
		return nil, err
	}
	resp = &nodev1.QueryResponse{}
	return resp, proto.Unmarshal(raw, resp)
}

// shadowScores is what the models beside a question's score an item.
func (n *fakeNode) shadowScores(req *nodev1.QueryRequest, it *nodev1.Item) *feedv1.ItemExplain {
	e := &feedv1.ItemExplain{}
	for _, m := range req.Beside {
		score := float64(it.TimeMs)
		if m.Name != "recency" {
			score = coarse(&oracle.Candidate{Record: millrace.Record{ID: millrace.RecordID(it.Id)}}, nil, 0)
		}
		e.Shadow = append(e.Shadow, &feedv1.ShadowScore{Model: m.Name, ModelVersion: m.Version, Score: score})
	}
	return e
}

// ranked answers a question by its model.
func (n *fakeNode) ranked(req *nodev1.QueryRequest, q oracle.Query) (items []*nodev1.Item, stages *nodev1.Stages) {
	q.Limit += len(req.Exclude)
	answer := n.w.feed.Query(q)
	for _, it := range answer.Items {
		hash := millrace.ServedHash(servedKey(req), req.DistinctObjects, it.Object, it.Timeline, it.ID)
		if slices.Contains(req.Exclude, hash) || len(items) == int(req.Limit) {
			continue
		}
		out := wireItem(it.Rank, it.Object)
		out.Schema, out.Body = uint64(it.Record.Schema), it.Record.Body
		for _, r := range it.Also {
			out.Also = append(out.Also, wireItem(r, it.Object))
		}
		items = append(items, out)
	}
	return items, &nodev1.Stages{Candidates: int64(answer.Stages.Candidates), Scored: int64(answer.Stages.Scored), Capped: int64(answer.Stages.Capped)}
}

// servedKey is the key of what earlier pages served, which first pages lack.
func servedKey(req *nodev1.QueryRequest) (key millrace.ServedKey) {
	copy(key[:], req.ServedKey)
	return key
}

// lacks is the answer of a node without the version that it is asked for.
func (n *fakeNode) lacks(req *nodev1.QueryRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	v := artefacts.Version{Name: req.Model, Version: req.ModelVersion, Sum: req.ModelSum}
	if n.models == nil || v.Version == "" || n.models[v] {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonNotHere, Field: "model", Detail: "no model " + v.String() + " here"}
}

func (n *fakeNode) condemns(v artefacts.Version) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.condemned[v]
}

func (n *fakeNode) lacksWeights(v artefacts.Version) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.weightless[v]
}

// examine finds a live record in the entities' timelines. The world's feeds
// have no filters and no caps where it is asked.
func (w *world) examine(req *nodev1.QueryRequest, q *oracle.Query) (all []*nodev1.Finding) {
	for _, e := range q.Entities {
		for _, ty := range []millrace.ContentType{"post", "like"} {
			t := millrace.Timeline{Entity: e, Type: ty}
			for _, r := range w.feed.Live(t) {
				if string(r.ID) == req.Examine {
					_, served := slices.BinarySearch(req.Exclude, millrace.ServedHash(servedKey(req), req.DistinctObjects, r.Object, t, r.ID))
					f := &nodev1.Finding{
						Entity: string(e), Type: string(ty), TimeMs: int64(r.Time), Object: string(r.Object), Served: served,
						Score: q.Score(&oracle.Candidate{Timeline: t, Record: r}, nil, q.AsOf),
					}
					switch {
					case len(q.Types) > 0 && !slices.Contains(q.Types, ty):
						f.Dropped = findings.NotAsked
					case r.Time < q.From:
						f.Dropped = findings.Outside
					}
					all = append(all, f)
				}
			}
		}
	}
	return all
}

func (w *world) above(r millrace.Rank, q oracle.Query) (n int64) {
	q.Limit, q.Distinct = 1<<30, false
	for _, it := range w.feed.Query(q).Items {
		if it.Rank.Compare(r) < 0 {
			n++
		}
	}
	return n
}

func (n *fakeNode) GetSchema(_ context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	if req.Fields {
		time.Sleep(n.tells)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	resp := &nodev1.GetSchemaResponse{}
	if req.Fields {
		n.told++
	}
	for _, s := range []*schemas.Schema{note, schemas.Activity(), schemas.Features()} {
		if req.Fields && !n.silent && !s.Features() {
			resp.Fields = append(resp.Fields, s.Fields()...)
		}
		if req.Fingerprint == uint64(s.Fingerprint()) {
			resp.Json = s.JSON()
		}
	}
	if resp.Json == "" {
		return nil, errors.New("an unknown schema")
	}
	return resp, n.err
}

// Ping answers whatever the node is busy with, unless it is frozen.
func (n *fakeNode) Ping(ctx context.Context) error {
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen {
		<-ctx.Done()
	}
	return ctx.Err()
}

func wireItem(r millrace.Rank, o millrace.Object) *nodev1.Item {
	return &nodev1.Item{Score: r.Score, TimeMs: int64(r.Time), Id: string(r.ID), Entity: string(r.Entity), Type: string(r.Type), Object: string(o)}
}

func splitEntities(t *testing.T, b []byte) (out []millrace.Entity) {
	t.Helper()
	for last := millrace.Partition(0); len(b) > 0; {
		p, end := millrace.Partition(binary.LittleEndian.Uint16(b)), partition.EntityHead+int(binary.LittleEndian.Uint16(b[2:]))
		e := millrace.Entity(b[partition.EntityHead:end])
		if p < last || p != partition.Of(e) {
			t.Fatalf("%q is sent as of partition %d, after one of %d", e, p, last)
		}
		out = append(out, e)
		last, b = p, b[end:]
	}
	return out
}

// fill adds random records of few types, times and objects, so that many
// candidates tie and share objects across entities.
func (w *world) fill(r *rand.Rand, entities, records int) {
	for range records {
		t := millrace.Timeline{Entity: entity(r.IntN(entities)), Type: []millrace.ContentType{"post", "like"}[r.IntN(2)]}
		object := millrace.Object("")
		if r.IntN(3) > 0 {
			object = millrace.Object(fmt.Sprintf("o%d", r.IntN(1+records/6)))
		}
		w.add(t, millrace.RecordID(fmt.Sprintf("r%d", r.IntN(records))), millrace.Time(1000*r.IntN(20)), object)
	}
}

func entity(i int) millrace.Entity { return millrace.Entity(fmt.Sprintf("member:%d", i)) }

func entityNames(n int) (out []string) {
	for i := range n {
		out = append(out, string(entity(i)))
	}
	return out
}

// want is the one-machine answer to a request for some of its entities.
func (w *world) want(b *Broker, req *feedv1.GetFeedRequest, keep func(millrace.Partition) bool) []oracle.Item {
	w.t.Helper()
	q, err := b.read(w.t.Context(), req, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	var entities []millrace.Entity
	for _, e := range req.Entities {
		if keep(partition.Of(millrace.Entity(e))) {
			entities = append(entities, millrace.Entity(e))
		}
	}
	if len(entities) == 0 {
		return nil
	}
	return w.feed.Query(w.query(q.Query, entities)).Items
}
