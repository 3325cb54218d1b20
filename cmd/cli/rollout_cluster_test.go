//go:build linux

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

// rollingCluster is a cluster of processes, with two brokers and a coordinator,
// on which models are rolled out. `make rollouts` measures what it shows; see
// [faultTime].
type rollingCluster struct {
	*faultCluster
	second  *frontEnd
	clients [2]*client.Client // of each broker
	models  *artefacts.Kind
	failing *artefacts.Condemned
}

// Its data: members with so many records each. None has impressions.
const (
	rollingMembers = 200
	rollingEach    = 20
	rollingFollows = 60
)

func rollingLines() (lines [][]byte) {
	for i := range rollingMembers * rollingEach {
		lines = append(lines, fmt.Appendf(nil, `{"id":"r%d","actor":"member:%d","verb":%q,"created_at":%q,"likes":%d,"comments":%d,"language":%q}`,
			i, i%rollingMembers, []string{"post", "share"}[i%7%2], loadBegan.Add(time.Duration(i)*time.Minute).Format(time.RFC3339), i%13, i%5, []string{"en", "de"}[i%3%2]))
	}
	return lines
}

func startRollingCluster(t *testing.T) *rollingCluster {
	t.Helper()
	c := &rollingCluster{faultCluster: startFaultCluster(t, 3, rollingLines())}
	c.second = c.startBroker("broker-2", "")
	start(t, c.failed, "coordinator", "coordinator", "--config", clitest.WriteConfig(t, "coordinator", "etcd: [%q]\nadmin: %q\n", c.etcd.Addr(), clitest.FreeAddr(t)))
	other, err := client.Dial(c.second.grpc)
	c.check(err)
	t.Cleanup(func() { other.Close() })
	c.clients = [2]*client.Client{c.client, other}
	clitest.WaitFor(c.ctx, t, "the second broker", func() bool {
		resp, err := other.GetFeed(c.ctx, c.everything())
		return err == nil && len(resp.Coverage.Missing) == 0
	})
	in, err := cluster.Open(c.ctx, cluster.Config{Endpoints: []string{c.etcd.Addr()}, Name: "millrace", Log: slog.New(slog.DiscardHandler)})
	c.check(err)
	t.Cleanup(func() { in.Close() })
	c.models, err = artefacts.Watch(c.ctx, in, indexnode.ModelsKind)
	c.check(err)
	c.failing, err = artefacts.WatchCondemned(c.ctx, in)
	c.check(err)
	return c
}

func (c *rollingCluster) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// pack writes and seals a pack of a spec and what else it has, which has golden
// rows of these records. It returns its directory.
func (c *rollingCluster) pack(spec, golden string, more map[string]string) string {
	c.t.Helper()
	dir := c.t.TempDir()
	more[modelpack.SpecFile], more[modelpack.CardFile], more[modelpack.GoldenFile] = spec, "For a test.\n", golden
	for name, text := range more {
		c.check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	_, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	c.check(err)
	return dir
}

// push hands a pack to the cluster, by the command.
func (c *rollingCluster) push(dir string, flags ...string) string {
	c.t.Helper()
	return run(c.t, append([]string{"model", "push", dir, "--etcd", c.etcd.Addr()}, flags...)...)
}

func (c *rollingCluster) rollback(model string) {
	c.t.Helper()
	run(c.t, "model", "rollback", model, "--apply", "--yes", "--etcd", c.etcd.Addr())
}

// define defines a feed, and returns when both brokers have it.
func (c *rollingCluster) define(name, definition string) {
	c.t.Helper()
	run(c.t, "feed", "define", "--etcd", c.etcd.Addr(), clitest.WriteConfig(c.t, name, "name: %s\n%s", name, definition))
	for i := range c.clients {
		clitest.WaitFor(c.ctx, c.t, "the definition of "+name, func() bool {
			_, err := c.clients[i].GetFeed(c.ctx, &feedv1.GetFeedRequest{Feed: name, Viewer: &feedv1.Viewer{Id: "v"}, Entities: []string{"member:1"}})
			return err == nil
		})
	}
}

// rollingRequests asks a feed for the timelines of so many members, in many
// ways.
func rollingRequests(feed string, follows int) (reqs []*feedv1.GetFeedRequest) {
	r := rand.New(rand.NewPCG(1, 1))
	for v := range 64 {
		req := &feedv1.GetFeedRequest{
			Feed: feed, Viewer: &feedv1.Viewer{Id: fmt.Sprintf("viewer:%d", v), Features: map[string]float64{"taste": 1}},
			AsOf: timestamppb.Now(), // of another time no version is judged
		}
		for _, m := range r.Perm(rollingMembers)[:follows] {
			req.Entities = append(req.Entities, fmt.Sprintf("member:%d", m))
		}
		reqs = append(reqs, req)
	}
	return reqs
}

// spoken returns when both brokers have answered by a version, or in the place of
// another.
func (c *rollingCluster) spoken(req *feedv1.GetFeedRequest, version, inPlaceOf string) time.Time {
	c.t.Helper()
	return c.speaking(req, version, inPlaceOf)()
}

// speaking is spoken from now on: before a command that waits for brokers itself.
func (c *rollingCluster) speaking(req *feedv1.GetFeedRequest, version, inPlaceOf string) func() time.Time {
	return c.telling(req, "by version "+version, func(r *feedv1.GetFeedResponse) bool {
		return r.Receipt.ModelVersion == version && r.Receipt.InPlaceOf == inPlaceOf
	})
}

// telling asks both brokers from now on, and returns what waits until they have
// answered as they should, and returns when that was.
func (c *rollingCluster) telling(req *feedv1.GetFeedRequest, how string, should func(*feedv1.GetFeedResponse) bool) func() time.Time {
	var at [2]time.Time
	var askers sync.WaitGroup
	for i, cl := range c.clients {
		askers.Go(func() {
			for end := time.Now().Add(clitest.Patience); time.Now().Before(end) && c.ctx.Err() == nil; {
				resp, err := cl.GetFeed(c.ctx, req)
				if err == nil && should(resp) {
					at[i] = time.Now()
					return
				}
				time.Sleep(10 * time.Millisecond) // the processors are the command's
			}
			c.t.Errorf("broker %d does not answer %s", i+1, how)
		})
	}
	return func() time.Time {
		c.t.Helper()
		if askers.Wait(); c.t.Failed() {
			c.t.FailNow()
		}
		if at[0].After(at[1]) {
			return at[0]
		}
		return at[1]
	}
}

// spoke is what one answer said, or that there was none.
type spoke struct {
	version, inPlaceOf string
	at                 time.Time
	took               time.Duration // since it was due
	fault              error         // it failed, or lacks something
}

// load asks at a rate until ctx ends, both brokers by turns, and returns what
// became of each request.
func (c *rollingCluster) load(ctx context.Context, perSecond float64, reqs []*feedv1.GetFeedRequest) (all []spoke) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for i := 0; ctx.Err() == nil; {
		due := began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
		if time.Now().Before(due) {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
			continue
		}
		asked.Go(func() {
			resp, err := c.clients[i%2].GetFeed(c.ctx, reqs[i%len(reqs)])
			s := spoke{at: time.Now(), took: time.Since(due), fault: err}
			switch {
			case err != nil:
			case len(resp.Coverage.Missing) > 0 || len(resp.Items) == 0:
				s.fault = fmt.Errorf("%d items, %v", len(resp.Items), resp.Coverage)
			default:
				s.version, s.inPlaceOf = resp.Receipt.ModelVersion, resp.Receipt.InPlaceOf
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s)
		})
		i++
	}
	asked.Wait()
	return all
}
