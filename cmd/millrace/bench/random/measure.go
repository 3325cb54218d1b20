package random

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// result is what was measured of a workload.
type result struct {
	seed           uint64
	summary        []string
	node, broker   time.Duration // CPU time a query, without what they use when nobody asks
	calls          time.Duration // that of both, of a question about an entity that nobody knows
	baseline       time.Duration // CPU time a query
	candidates     float64       // of a mean question
	passes         float64       // the share of candidates that pass the filter
	execution      string        // how nodes executed queries, as receipts say
	memory         int64         // of the node, in bytes
	baselineMemory int64         // in bytes
}

// clients is how many clients ask at the same time.
const clients = 2

// measure starts a cluster with the world's records, feed and model, and measures it and the
// baseline. It returns an error if an answer is wrong.
func (c *Config) measure(f *rig.Family, w *world, seed uint64) (res result, err error) {
	schema, known, err := w.known()
	if err != nil {
		return res, fmt.Errorf("schema: %w", err)
	}
	pack, err := w.pack(known)
	if err != nil {
		return res, fmt.Errorf("model: %w\n%s", err, w.spec())
	}
	built, err := w.build(f.Ctx, f.Dir, c.Fault)
	if err != nil {
		return res, err
	}
	b, err := rig.StartBacking(f)
	if err != nil {
		return res, err
	}
	if _, err := b.Fill(f.Ctx, schema, w.bodies(schema)); err != nil {
		return res, err
	}
	cluster, err := f.StartCluster(b, rig.Setup{Name: "random", Nodes: 1, Replicas: 1, Packs: []*modelpack.Pack{pack}, Feeds: map[string][]byte{feedName: w.feed()}})
	if err != nil {
		return res, err
	}
	defer cluster.Conn.Close()
	m := &measuring{Config: c, cluster: cluster, world: w}
	for _, q := range w.questions {
		req, err := w.request(q)
		if err != nil {
			return res, err
		}
		m.asked = append(m.asked, req)
	}
	err = cluster.Settle(f.Ctx, func(ctx context.Context) error { _, err := m.ask(ctx, 0); return err })
	if err != nil {
		return res, err
	}
	theirs, err := built.run(f.Ctx, c.Duration)
	if err != nil {
		return res, err
	}
	res = result{seed: seed, summary: w.summary, baseline: time.Duration(theirs.CPU), candidates: w.mean, baselineMemory: theirs.Bytes}
	if err := m.judge(f.Ctx, &res, schema, known, theirs.Answers); err != nil {
		return res, err
	}
	return res, m.time(f.Ctx, &res)
}

// measuring is a workload while it is measured.
type measuring struct {
	*Config
	cluster *rig.Cluster
	world   *world
	asked   []*feedv1.GetFeedRequest
	first   [][]*feedv1.Item // the items of the first answer to each question
}

// ask asks question i. A partial answer is an error.
func (m *measuring) ask(ctx context.Context, i int) (*feedv1.GetFeedResponse, error) {
	resp, err := m.cluster.Feed.GetFeed(ctx, m.asked[i])
	if err == nil && len(resp.GetCoverage().GetMissing()) > 0 {
		err = fmt.Errorf("a partial answer: %v", resp.Coverage.Missing)
	}
	return resp, err
}

// time measures the CPU time of a query. It warms the cluster, measures it at rest, then
// while clients ask, and then while they ask about nobody, and subtracts what it uses at rest.
func (m *measuring) time(ctx context.Context, res *result) error {
	if _, err := m.closed(ctx, m.Duration/2); err != nil { // warm
		return err
	}
	before, err := m.used()
	if err != nil {
		return err
	}
	began := time.Now()
	select {
	case <-time.After(m.Duration / 2):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	rested := time.Since(began)
	after, err := m.used()
	if err != nil {
		return err
	}
	// cost returns the CPU time of a query of node and broker while clients ask.
	cost := func(ask func(context.Context, time.Duration) (int, error)) (each [2]time.Duration, err error) {
		start, err := m.used()
		if err != nil {
			return each, err
		}
		began := time.Now()
		n, err := ask(ctx, m.Duration)
		if err != nil {
			return each, err
		}
		elapsed := time.Since(began)
		end, err := m.used()
		for i := range each {
			idle := float64(after[i].CPU-before[i].CPU) / float64(rested)
			each[i] = max(0, time.Duration((float64(end[i].CPU-start[i].CPU)-idle*float64(elapsed))/float64(max(1, n))))
		}
		return each, err
	}
	profiles, err := m.profiles(ctx, res.seed)
	if err != nil {
		return err
	}
	query, err := cost(m.closed)
	if err != nil {
		return err
	}
	if err := profiles.Wait(); err != nil {
		return err
	}
	asked, err := m.used()
	if err != nil {
		return err
	}
	calls, err := cost(m.nobody)
	res.node, res.broker, res.calls, res.memory = query[0], query[1], calls[0]+calls[1], asked[0].Bytes
	return err
}

// used returns the CPU time and memory that the node (0) and the broker (1) have used.
func (m *measuring) used() (u [2]rig.Used, err error) {
	if u[0], err = m.cluster.Nodes[0].Used(); err != nil {
		return u, err
	}
	u[1], err = m.cluster.Broker.Used()
	return u, err
}

// closed has clients ask for a while, and returns how many answers they got. Each client
// sends its next question when it has the answer to the last (a closed loop). Each answer
// must be the same as the first one to its question.
func (m *measuring) closed(ctx context.Context, length time.Duration) (int, error) {
	var next [clients]int
	for i := range next {
		next[i] = i * len(m.asked) / clients
	}
	l, _, err := rig.Closed(ctx, clients, length, func(ctx context.Context, client int) error {
		i := next[client] % len(m.asked)
		next[client]++
		resp, err := m.ask(ctx, i)
		if err != nil {
			return err
		}
		if err := same(m.first[i], resp.Items); err != nil {
			return fmt.Errorf("question %d: %w", i, err)
		}
		return nil
	})
	return len(l), err
}

// nobody has clients ask about an entity that nobody knows, as closed does.
func (m *measuring) nobody(ctx context.Context, length time.Duration) (int, error) {
	req := proto.CloneOf(m.asked[0])
	req.Entities = []string{"nobody"}
	l, _, err := rig.Closed(ctx, clients, length, func(ctx context.Context, _ int) error {
		resp, err := m.cluster.Feed.GetFeed(ctx, req)
		if err == nil && len(resp.Items) > 0 {
			err = errors.New("an entity that nobody knows has records")
		}
		return err
	})
	return len(l), err
}

// profiles begins CPU profiles of the node and the broker if Profile names a directory. The
// group's Wait returns when they are written.
func (m *measuring) profiles(ctx context.Context, seed uint64) (*errgroup.Group, error) {
	var g errgroup.Group
	if m.Profile == "" {
		return &g, nil
	}
	if err := os.MkdirAll(m.Profile, 0o755); err != nil {
		return nil, err
	}
	for name, p := range map[string]*rig.Process{"node": m.cluster.Nodes[0], "broker": m.cluster.Broker} {
		g.Go(func() error {
			return p.Profile(ctx, m.Duration, filepath.Join(m.Profile, fmt.Sprintf("random-%d-%s.pprof", seed, name)))
		})
	}
	return &g, nil
}

// bodies returns the log of the world as Avro: all records, their older versions and
// tombstones.
func (w *world) bodies(s *schemas.Schema) iter.Seq2[rig.Body, error] {
	return func(yield func(rig.Body, error) bool) {
		for _, x := range w.log {
			line, err := w.line(x)
			if err == nil {
				line, err = s.EncodeJSON(line)
			}
			if !yield(rig.Body{Entity: millrace.Entity(x.entity), Avro: line}, err) {
				return
			}
		}
	}
}

// request returns a question as a request of the feed API.
func (w *world) request(q *question) (*feedv1.GetFeedRequest, error) {
	v := &feedv1.Viewer{Id: q.viewer, Attributes: map[string]*structpb.Value{}, Features: map[string]float64{}}
	for i, a := range w.attrs {
		switch x := q.values[i].(type) {
		case float64:
			v.Features[a.name] = x
		case string:
			v.Attributes[a.name] = structpb.NewStringValue(x)
		case []string:
			v.Attributes[a.name] = listOf(x, structpb.NewStringValue)
		case []float64:
			v.Attributes[a.name] = listOf(x, structpb.NewNumberValue)
		default:
			return nil, fmt.Errorf("viewer.%s is a %T", a.name, x)
		}
	}
	return &feedv1.GetFeedRequest{Feed: feedName, Viewer: v, Entities: q.follows, AsOf: timestamppb.New(millrace.Time(asOf).Std()), Fields: []string{"id"}}, nil
}

func listOf[T any](of []T, value func(T) *structpb.Value) *structpb.Value {
	l := &structpb.ListValue{}
	for _, x := range of {
		l.Values = append(l.Values, value(x))
	}
	return structpb.NewListValue(l)
}
