package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/relevance/modelpack"
)

// result is what was measured of one cluster.
type result struct {
	nodes              int
	cores              int           // of a node
	candidates, scored float64       // records of a mean query: before and after the filter
	execution          string        // how the model ran: generated or interpreted
	exact              int           // answers equal to the oracle's, a simple implementation
	one                rig.Latencies // with one client
	oneCPU, fullCPU    cpuTime       // of a query: with one client, and with clients clients
	most               float64       // the most answers a second that clients got, each asking again once answered
	clients            int           // how many clients got them
	saturation         float64       // the highest rate, in queries a second, at which arriving queries are answered in time
	half               arrivals      // at half the saturation
}

// measure starts a cluster of so many nodes, checks its answers, measures it and ends it.
func measure(c *Config, f *rig.Family, w *world, b *rig.Backing, truth []oracle.Answer, nodes int) (res result, err error) {
	ctx, before := f.Ctx, f.Size()
	defer func() {
		if err == nil { // else run ends the whole family
			err = f.End(before)
		}
	}()
	run, err := f.StartCluster(b, rig.Setup{
		Name: fmt.Sprintf("nodes-%d", nodes), Nodes: nodes, Replicas: replicas,
		Packs: []*modelpack.Pack{w.pack}, Feeds: map[string][]byte{w.feed.Name: w.feedText},
	})
	if err != nil {
		return res, err
	}
	defer run.Conn.Close()
	c.say("%d nodes have read the log in %.1f s", nodes, run.Read.Seconds())
	d := &driver{run: run, world: w}
	res.nodes, res.cores = nodes, run.Cores
	if err := run.Settle(ctx, func(ctx context.Context) error { _, err := d.get(ctx, w.asked[0].req); return err }); err != nil {
		return res, err
	}
	if err := d.check(ctx, truth, &res); err != nil {
		return res, err
	}
	c.say("%d nodes: every feed asked once, %d as the oracle says", nodes, res.exact)
	if _, _, err := d.closed(ctx, 2, c.Duration/2); err != nil { // warms it up
		return res, err
	}
	if err := d.oneClient(ctx, c, &res); err != nil {
		return res, err
	}
	c.say("%d nodes: one client, p50 %s, p99 %s", nodes, rig.MS(res.one.At(0.5)), rig.MS(res.one.At(0.99)))
	if err := d.crowd(ctx, c, &res); err != nil {
		return res, err
	}
	if err := d.saturate(ctx, c, &res); err != nil {
		return res, err
	}
	if res.half, err = d.open(ctx, res.saturation/2, 2*c.Duration); err != nil {
		return res, err
	}
	c.say("%d nodes: %.0f queries/s arriving, p99 %s", nodes, res.saturation/2, rig.MS(res.half.took.At(0.99)))
	return res, nil
}

// check asks every question once, compares the first answers with those of the oracle in
// truth, and keeps hashes of all answers in d.right. It sets what it learns in res.
func (d *driver) check(ctx context.Context, truth []oracle.Answer, res *result) error {
	for i, q := range d.world.asked {
		explained := proto.Clone(q.req).(*feedv1.GetFeedRequest)
		explained.Explain = true
		resp, err := d.get(ctx, explained)
		if err != nil {
			return err
		}
		if i < len(truth) {
			if diff := differs(truth[i], resp); diff != "" {
				return fmt.Errorf("question %d is answered wrong:\n%s", i, diff)
			}
			res.exact++
		}
		plain, err := d.get(ctx, q.req)
		if err != nil {
			return err
		}
		if digest(plain) != digest(resp) {
			return fmt.Errorf("question %d is answered otherwise when it is explained", i)
		}
		seen, err := d.glance(ctx, &q)
		if err != nil {
			return err
		}
		d.right = append(d.right, right{digest(resp), seen.items})
		res.candidates += float64(resp.GetExplain().GetCandidates()) / float64(len(d.world.asked))
		res.scored += float64(resp.GetExplain().GetScored()) / float64(len(d.world.asked))
		res.execution = resp.GetReceipt().GetExecution()
	}
	return nil
}

// cost runs work, and returns its CPU time for each query.
func (d *driver) cost(ctx context.Context, work func() (rig.Latencies, error)) (cpuTime, error) {
	before, err := cpuOf(d.run)
	if err != nil {
		return cpuTime{}, err
	}
	l, err := work()
	if err != nil {
		return cpuTime{}, err
	}
	after, err := cpuOf(d.run)
	return after.less(before).each(len(l)), err
}

func (d *driver) oneClient(ctx context.Context, c *Config, res *result) (err error) {
	res.oneCPU, err = d.cost(ctx, func() (rig.Latencies, error) {
		res.one, _, err = d.closed(ctx, 1, c.Duration)
		return res.one, err
	})
	return err
}

const (
	// maxClients is the highest number of clients that crowd tries.
	maxClients = 64
	// growth is the factor by which a step must get more answers a second. After two
	// steps in a row that do not, crowd ends: a single one may have met a moment at
	// which the machine did something else.
	growth = 1.03
)

// crowd doubles the clients until they get no more answers a second. Then it measures the
// CPU time of a query with the number of clients that got the most, and writes profiles.
func (d *driver) crowd(ctx context.Context, c *Config, res *result) error {
	flat := 0
	for clients := 1; clients <= maxClients; clients *= 2 {
		l, elapsed, err := d.closed(ctx, clients, c.Duration/2)
		if err != nil {
			return fmt.Errorf("%d clients: %w", clients, err)
		}
		rate := float64(len(l)) / elapsed.Seconds()
		c.say("%d nodes: %d clients, %.0f queries/s, p99 %s", res.nodes, clients, rate, rig.MS(l.At(0.99)))
		if flat++; rate > growth*res.most {
			flat = 0
		}
		if rate > res.most {
			res.most, res.clients = rate, clients
		}
		if flat == 2 {
			break
		}
	}
	g, profiling := errgroup.WithContext(ctx)
	if c.Profile != "" {
		if err := os.MkdirAll(c.Profile, 0o755); err != nil {
			return err
		}
		for _, p := range append(d.run.Nodes, d.run.Broker) {
			g.Go(func() error {
				return p.Profile(profiling, c.Duration, filepath.Join(c.Profile, fmt.Sprintf("%s-%s.pprof", d.world.label, p.Name)))
			})
		}
	}
	var err error
	res.fullCPU, err = d.cost(ctx, func() (rig.Latencies, error) {
		l, _, err := d.closed(ctx, res.clients, c.Duration)
		return l, err
	})
	if err != nil {
		return err
	}
	return g.Wait()
}

const (
	slower     = 0.95 // the factor by which saturate lowers a rate that is not sustained
	leastShare = 0.25 // saturate tries no rate below this share of the most answers a second
)

// saturate finds the saturation. It begins at the rate of the most answers that waiting
// clients got, and lowers it until questions that arrive at the rate, whether or not
// those before are answered, are answered in time. If none is sustained, the saturation
// is the last rate tried.
func (d *driver) saturate(ctx context.Context, c *Config, res *result) error {
	for rate := res.most; rate > leastShare*res.most; rate *= slower {
		got, err := d.open(ctx, rate, c.Duration)
		if err != nil {
			return err
		}
		c.say("%d nodes: %.0f queries/s arriving, p99 %s, %d refused, %d not in time", res.nodes, rate, rig.MS(got.took.At(0.99)), got.refused, got.missed)
		if res.saturation = rate; got.sustained() {
			break
		}
	}
	return nil
}
