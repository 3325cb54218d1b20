//go:build linux

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// The tests whose names begin with TestFault run a cluster of real processes
// and break it: a frozen node, lost replicas, more load than it can take, etcd
// away. Here they take seconds and assert what does not depend on the machine.
// With MILLRACE_FAULTS set to a time such as 30s, as make outages does, each
// stage of load lasts that long, the roles have a core to themselves, and what
// was measured is printed and held against its goal.

// faultTime is how long each stage of load lasts, and whether it is measured.
func faultTime(t *testing.T, short time.Duration) (each time.Duration, measured bool) {
	t.Helper()
	text := os.Getenv("MILLRACE_FAULTS")
	if text == "" {
		if testing.Short() {
			t.Skip("starts processes")
		}
		return short, false
	}
	each, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return each, true
}

// faultCluster is etcd and Kafka in this process, and index nodes with two
// replicas of each partition and one broker in processes of their own.
type faultCluster struct {
	t       *testing.T
	ctx     context.Context
	failed  context.CancelCauseFunc // a process ended by itself
	kafka   string
	prefix  string
	etcd    *minicluster.Etcd
	etcdDir string
	truth   *oracle.Feed // what was loaded

	nodes  []*process
	admin  []string // of each node
	data   []string // directory of each node
	sorter string   // admin port of the partitioner
	client *client.Client

	*frontEnd // the first broker
}

// frontEnd is a broker.
type frontEnd struct {
	broker                 *process
	grpc, front, frontData string // gRPC, admin port, directory
}

func startFaultCluster(t *testing.T, nodes int, lines [][]byte) *faultCluster {
	t.Helper()
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return startFaultClusterOn(t, k.Addr(), nodes, lines)
}

// startFaultClusterOn starts the cluster on a Kafka.
func startFaultClusterOn(t *testing.T, at string, nodes int, lines [][]byte) *faultCluster {
	t.Helper()
	limit := 10 * time.Minute
	if os.Getenv("MILLRACE_FAULTS") != "" {
		limit = 3 * time.Hour
	}
	limited, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	ctx, failed := context.WithCancelCause(limited)
	c := &faultCluster{t: t, ctx: ctx, failed: failed, prefix: fmt.Sprintf("faults-%d-", rand.Uint32()), kafka: at, etcdDir: t.TempDir(), truth: oracle.New()}
	c.startEtcd("127.0.0.1:0")
	t.Cleanup(func() {
		if c.etcd != nil {
			c.etcd.Close()
		}
	})
	etcd := c.etcd.Addr()

	var ids []string
	for i := range nodes {
		ids = append(ids, fmt.Sprintf("node-%d", i+1))
	}
	run(t, "cluster", "assign", "--etcd", etcd, "--nodes", strings.Join(ids, ","), "--replicas", "2", "--force")
	if err := kafka.EnsureTopics(ctx, kafka.At(c.kafka), kafka.Prefixed(c.prefix), nil); err != nil {
		t.Fatal(err)
	}
	if err := kafka.EnsureContentTopic(ctx, kafka.At(c.kafka), c.prefix+"activity", 4, nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		admin, data := clitest.FreeAddr(t), t.TempDir()
		c.admin, c.data = append(c.admin, admin), append(c.data, data)
		c.nodes = append(c.nodes, start(t, failed, id, "indexnode", "--config", clitest.WriteConfig(t, id,
			"id: %s\ndata: %s\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nlisten: %q\nadmin: %q\n", id, data, c.kafka, c.prefix, etcd, clitest.FreeAddr(t), admin)))
	}
	c.sorter = clitest.FreeAddr(t)
	start(t, failed, "partitioner", "partitioner", "--config", clitest.WriteConfig(t, "partitioner",
		"brokers: [%q]\ntopic_prefix: %s\ncontent: [%sactivity]\ngroup: %sgroup\ninstance: %sone\nadmin: %q\n", c.kafka, c.prefix, c.prefix, c.prefix, c.prefix, c.sorter))
	c.frontEnd = c.startBroker("broker", "")

	var err error
	if c.client, err = client.Dial(c.grpc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.client.Close() })
	c.load(lines)
	return c
}

// startBroker starts a broker, with more in its configuration.
func (c *faultCluster) startBroker(name, more string) *frontEnd {
	c.t.Helper()
	f := &frontEnd{grpc: clitest.FreeAddr(c.t), front: clitest.FreeAddr(c.t), frontData: c.t.TempDir()}
	f.broker = start(c.t, c.failed, name, "broker", "--config", clitest.WriteConfig(c.t, name,
		"etcd: [%q]\ngrpc: %q\nadmin: %q\ndata: %s\n%s", c.etcd.Addr(), f.grpc, f.front, f.frontData, more))
	return f
}

func (c *faultCluster) startEtcd(listen string) {
	c.t.Helper()
	var err error
	defer func() {
		if c.etcd == nil {
			c.t.Log(err)
		}
	}()
	// A port that nobody listens on may be some connection's for a while.
	clitest.WaitFor(c.ctx, c.t, "etcd to start", func() bool {
		c.etcd, err = minicluster.StartEtcd(c.ctx, c.etcdDir, listen)
		return err == nil
	})
}

// load produces lines, and returns when every replica has them.
func (c *faultCluster) load(lines [][]byte) {
	c.t.Helper()
	publish(c.ctx, c.t, c.kafka, c.prefix, lines)
	for _, line := range lines {
		if err := c.truth.Load(schemas.Activity(), line); err != nil {
			c.t.Fatal(err)
		}
	}
	look, err := kafka.NewInspector(kafka.At(c.kafka))
	if err != nil {
		c.t.Fatal(err)
	}
	defer look.Close()
	clitest.WaitFor(c.ctx, c.t, "the partitioner", func() bool {
		lag, err := look.Lag(c.ctx, c.prefix+"group", c.prefix+"activity")
		return err == nil && lag == 0
	})
	want := 0
	for _, tl := range c.truth.Timelines() {
		want += len(c.truth.Live(tl))
	}
	clitest.WaitFor(c.ctx, c.t, "every replica to have every record", func() bool {
		sum := 0.0
		for _, admin := range c.admin {
			sum += metric(c.ctx, admin, "millrace_indexnode_changes_total", `kind="inserted"`)
		}
		return sum >= float64(2*want)
	})
	c.waitWhole()
}

// waitWhole returns when the broker answers for every partition.
func (c *faultCluster) waitWhole() {
	c.t.Helper()
	req := c.everything()
	clitest.WaitFor(c.ctx, c.t, "an answer that covers everything", func() bool {
		resp, err := c.ask(c.ctx, req)
		return err == nil && len(resp.Coverage.Missing) == 0
	})
}

// ask asks the broker, which answers or refuses within its own time of 10 s.
func (c *faultCluster) ask(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the broker neither answers nor refuses"))
	defer cancel()
	resp, err := c.client.GetFeed(ctx, req)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return resp, err
}

// everything asks for the timelines of all entities.
func (c *faultCluster) everything() *feedv1.GetFeedRequest {
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "everything"}}
	for _, tl := range c.truth.Timelines() {
		if n := len(req.Entities); n == 0 || req.Entities[n-1] != string(tl.Entity) {
			req.Entities = append(req.Entities, string(tl.Entity))
		}
	}
	return req
}

// metric adds up the samples of a counter that have all the labels. NaN, which
// compares with nothing, when the process does not answer.
func metric(ctx context.Context, admin, name string, labels ...string) (sum float64) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return nan
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nan
	}
	defer resp.Body.Close()
lines:
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		last := strings.LastIndexByte(s.Text(), ' ') // labels may have some
		if last < 0 {
			continue
		}
		series, value := s.Text()[:last], s.Text()[last+1:]
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(series, l) {
				continue lines
			}
		}
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nan
		}
		sum += x
	}
	return sum
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// cpu is the processor time that a process has used.
func (p *process) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // a tick is 1/100 s
}

// apart gives the roles that are started from now on the first processor, and
// this process, which makes the load, the others: what it measures then is not
// slowed by the measuring.
func apart(t *testing.T) {
	t.Helper()
	cores := runtime.NumCPU()
	if cores < 2 {
		t.Log("one processor only: the load is made on the one that it is for")
		return
	}
	pin := func(to string) {
		if out, err := exec.Command("taskset", "-a", "-c", "-p", to, strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
			t.Fatalf("taskset: %v: %s", err, out)
		}
	}
	pin(fmt.Sprintf("1-%d", cores-1))
	under = []string{"taskset", "-c", "0"}
	t.Cleanup(func() {
		under = nil
		pin(fmt.Sprintf("0-%d", cores-1))
	})
}

// publish produces lines of activities to the content topic of a prefix.
func publish(ctx context.Context, t *testing.T, kafkaAddr, prefix string, lines [][]byte) {
	t.Helper()
	registry, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	known, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(kafkaAddr), Topic: kafka.Prefixed(prefix).Schemas, Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	activity := schemas.Activity()
	if err := known.Publish(ctx, activity); err != nil {
		t.Fatal(err)
	}
	producer, err := kafka.NewProducer(kafka.At(kafkaAddr), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i, line := range lines {
		body, err := activity.EncodeJSON(line)
		if err != nil {
			t.Fatal(err)
		}
		producer.Produce(ctx, kafka.Outgoing{Topic: prefix + "activity", Partition: int32(i % 4), Value: schemas.Frame(activity.Fingerprint(), body)})
	}
	if err := producer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}
