package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// The baseline is to be beaten by so much.
const goalBaseline = 10

// pulled is what was measured of the baseline.
type pulled struct {
	one            latencies
	two            float64       // queries a second of two clients
	server, client time.Duration // CPU a query, of two clients
	exact          int           // answers like the cluster's
}

// compare measures the baseline with the same questions, if there is a
// redis-server, and holds the clusters against it.
func compare(c *Config, f *family, w *world, all []result) error {
	r, err := startRedis(f)
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Fprintln(c.Out, "\nno redis-server is installed: the baseline is left out")
		return nil
	}
	if err != nil {
		return err
	}
	p, err := measurePull(c, f.ctx, r, w, all[0].answers)
	if err != nil {
		return fmt.Errorf("baseline: %w", errors.Join(context.Cause(f.ctx), err))
	}
	fmt.Fprintln(c.Out)
	t := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t1 client: p50\tp99\t2 clients\tCPU a query\tof it client\texact\t")
	row := func(name string, one latencies, two float64, cpu, client time.Duration, exact int) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.0f/s\t%s\t%s\t%d of %d\t\n", name, ms(one.at(0.5)), ms(one.at(0.99)), two, us(cpu), us(client), exact, len(w.asked))
	}
	row("Redis, pulled", p.one, p.two, p.server+p.client, p.client, p.exact)
	for i := range all {
		r := &all[i]
		row(fmt.Sprintf("%d nodes", r.nodes), r.one, r.two, r.twoCPU.served()+r.twoCPU.client, r.twoCPU.client, len(w.asked))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.Out)
	figure.Tell(w.label+"_redis_pull_cpu_per_query_us", micros(p.server+p.client), "us")
	figure.Tell(w.label+"_redis_pull_qps", p.two, "queries/s")
	for i := range all {
		r := &all[i]
		figure.Print(fmt.Sprintf("%s_cpu_vs_redis_pull_%d", w.label, r.nodes), float64(p.server+p.client)/float64(r.twoCPU.served()+r.twoCPU.client), "x", goalBaseline)
		figure.Print(fmt.Sprintf("%s_qps_vs_redis_pull_%d", w.label, r.nodes), r.two/p.two, "x", goalBaseline)
	}
	return nil
}

// measurePull fills the server, checks every answer and measures.
func measurePull(c *Config, ctx context.Context, r *redis, w *world, right []string) (res pulled, err error) {
	var clients [2]*puller
	for i := range clients {
		conn, err := r.dial()
		if err != nil {
			return res, err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		clients[i] = &puller{w: w, conn: conn, seen: map[int]bool{}}
	}
	admin, err := r.dial()
	if err != nil {
		return res, err
	}
	defer admin.Close()
	began := time.Now()
	if err := w.fillRedis(admin); err != nil {
		return res, err
	}
	c.say("baseline: redis is filled in %.1f s", time.Since(began).Seconds())
	for i := range w.asked {
		ids, err := clients[0].pull(&w.asked[i])
		if err != nil {
			return res, err
		}
		if ids == right[i] {
			res.exact++
		}
	}
	var next atomic.Uint64
	ask := func(_ context.Context, client int) error {
		_, err := clients[client].pull(&w.asked[next.Add(1)%uint64(len(w.asked))])
		return err
	}
	if res.one, _, err = closed(ctx, 1, c.Duration, ask); err != nil {
		return res, err
	}
	server, err := admin.cpu()
	if err != nil {
		return res, err
	}
	own := ownCPU()
	l, elapsed, err := closed(ctx, len(clients), c.Duration, ask)
	if err != nil {
		return res, err
	}
	n := time.Duration(max(1, len(l)))
	res.client, res.two = (ownCPU()-own)/n, float64(len(l))/elapsed.Seconds()
	after, err := admin.cpu()
	res.server = (after - server) / n
	return res, err
}
