package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/minicluster"
)

// clinic is an etcd and a Kafka with nodes that only say what they are.
type clinic struct {
	t     *testing.T
	ctx   context.Context
	dir   string // of etcd
	etcd  *minicluster.Etcd
	addr  string // of etcd
	kafka string
	data  string // in which node-1 keeps what it knows
	nodes map[millrace.NodeID]*members.Membership
	one   *cluster.Client // that of node-1
}

func startClinic(t *testing.T) *clinic {
	t.Helper()
	c := &clinic{t: t, ctx: t.Context(), dir: t.TempDir(), data: t.TempDir(), nodes: map[millrace.NodeID]*members.Membership{}}
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	c.must(err)
	t.Cleanup(k.Close)
	c.kafka = k.Addr()
	c.startEtcd("127.0.0.1:0")
	t.Cleanup(func() { c.etcd.Close() })
	return c
}

func (c *clinic) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *clinic) startEtcd(listen string) {
	c.t.Helper()
	clitest.WaitFor(c.ctx, c.t, "etcd to start", func() bool {
		e, err := minicluster.StartEtcd(c.ctx, c.dir, listen)
		if err == nil {
			c.etcd, c.addr = e, e.Addr()
		}
		return err == nil
	})
}

// lose empties etcd.
func (c *clinic) lose() {
	c.t.Helper()
	c.etcd.Close()
	c.dir = c.t.TempDir()
	c.startEtcd(c.addr)
}

func (c *clinic) open(dir string) *cluster.Client {
	c.t.Helper()
	cl, err := cluster.Open(c.ctx, cluster.Config{Endpoints: []string{c.addr}, Name: "millrace", Dir: dir, Log: slog.New(slog.DiscardHandler)})
	c.must(err)
	c.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// join has a node say that it serves everything.
func (c *clinic) join(cl *cluster.Client, id millrace.NodeID) *members.Membership {
	c.t.Helper()
	m, err := members.Join(c.ctx, cl, topology.Node{ID: id, Addr: string(id) + ":7070", Start: 1})
	c.must(err)
	m.SetAnswering(topology.All(), topology.Lag{})
	clitest.WaitFor(c.ctx, c.t, string(id)+" to register", func() bool { return m.Fault() == nil })
	c.nodes[id] = m
	return m
}

// ok starts two nodes and assigns them everything.
func (c *clinic) ok() (second *cluster.Client) {
	c.t.Helper()
	c.one, second = c.open(clusters.LastGood(c.data)), c.open("")
	w, err := c.one.Watch(c.ctx)
	c.must(err)
	c.join(c.one, "node-1")
	c.join(second, "node-2")
	c.says("assignment epoch 1", nil, "cluster", "assign", "--etcd", c.addr, "--nodes", "node-1,node-2")
	clitest.WaitFor(c.ctx, c.t, "node-1 to hear of it", func() bool { return w.Current().Epoch() == 1 })
	return second
}

// command runs a command in this process.
func (c *clinic) command(args ...string) (string, error) {
	var out bytes.Buffer
	r := root()
	r.SetArgs(args)
	r.SetOut(&out)
	err := r.ExecuteContext(c.ctx)
	return out.String(), err
}

// says runs a command and wants something of what it says; failing reports
// whether it has to fail, if that is known.
func (c *clinic) says(want string, failing *bool, args ...string) string {
	c.t.Helper()
	out, err := c.command(args...)
	if !strings.Contains(out+fmt.Sprint(err), want) {
		c.t.Errorf("%q does not say %q:\n%s%v", args, want, out, err)
	}
	if failing == nil && err != nil || failing != nil && *failing != (err != nil) {
		c.t.Errorf("%q: %v\n%s", args, err, out)
	}
	return out
}

var fails = func() *bool { yes := true; return &yes }()

func (c *clinic) show(args ...string) []string {
	return append([]string{"cluster", "show", "--etcd", c.addr}, args...)
}

func (c *clinic) doctor() []string {
	return []string{"doctor", "--etcd", c.addr, "--brokers", c.kafka, "--grpc", clitest.FreeAddr(c.t)}
}

// Cluster show lists what the assignment names and nobody is, counts what is
// missing, and fails.
func TestClusterShowJudgesByTheAssignment(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.says("etcd holds nothing of this cluster", fails, c.show()...)
	c.says("way out: of a new cluster start the nodes", fails, c.show()...)
	c.says("has no assignment", fails, c.doctor()...)
	second := c.ok()
	c.says("all is well", nil, c.show()...)

	keeps, err := members.Join(c.ctx, c.one, topology.Node{ID: "node-3", Addr: "node-3:7070", Keeps: "0-719"})
	c.must(err)
	clitest.WaitFor(c.ctx, t, "the backup node to be shown", func() bool {
		out, err := c.command(c.show()...)
		return err == nil && strings.Contains(out, "alive, backs up 0-719")
	})
	c.says(`"backs_up":"0-719"`, nil, c.show("-o", "json")...)
	c.must(keeps.Leave(c.ctx))

	report := topology.Report{State: "quarantined", Reason: "corrupt", Detail: "a block of 7.sst"}
	report.Partitions.Add(7)
	c.nodes["node-1"].SetAnswering(func() topology.Set { all := topology.All(); return all.Minus(report.Partitions) }(), topology.Lag{})
	c.nodes["node-1"].SetReports([]topology.Report{report})
	clitest.WaitFor(c.ctx, t, "the report to be shown", func() bool {
		out, err := c.command(c.show()...)
		return err != nil && strings.Contains(out, "node-1: 1 partitions are quarantined: corrupt: a block of 7.sst: 7") && strings.Contains(out, "1 of 720 partitions have fewer than 2 ready replicas: 7")
	})
	c.says("node-1: 1 partitions are quarantined: corrupt", fails, c.doctor()...)
	c.must(kafka.EnsureTopics(c.ctx, kafka.At(c.kafka), kafka.Topics{}, nil))
	full := topology.Report{State: "ready", Reason: "disk_full", Detail: "store: disk full: 9 bytes free in /data, 99 needed", Partitions: report.Partitions}
	c.nodes["node-1"].SetReports([]topology.Report{full})
	clitest.WaitFor(c.ctx, t, "doctor to say where space is wanted", func() bool {
		out, err := c.command(c.doctor()...)
		return err != nil && strings.Contains(out, "are ready, and take in nothing new: disk_full: store: disk full: 9 bytes free in /data, 99 needed") && strings.Contains(out, "way out: free space on the disks of [node-1], as much as it says where it says: they go on by themselves, and need no restart\n")
	})
	taken := topology.Report{State: "quarantined", Reason: "by_operator", Detail: "doubt", Partitions: report.Partitions}
	c.nodes["node-1"].SetReports([]topology.Report{taken})
	clitest.WaitFor(c.ctx, t, "doctor to name the way back", func() bool {
		out, err := c.command(c.doctor()...)
		return err != nil && strings.Contains(out, "by_operator: doubt") && strings.Contains(out, "millrace partition release PARTITION --node NODE --apply")
	})
	c.nodes["node-1"].SetReports([]topology.Report{report})

	c.must(second.Close()) // as if killed: its lease ends
	clitest.WaitFor(c.ctx, t, "node-2 to be shown as gone", func() bool {
		out, err := c.command(c.show()...)
		return err != nil && strings.Contains(out, "GONE, last heard 20")
	})
	out := c.says("1 of 720 partitions have no ready replica: 7", fails, c.show()...)
	if !strings.Contains(out, "719 of 720 partitions have fewer than 2") || !strings.Contains(out, "node-2:7070") {
		t.Errorf("shown:\n%s", out)
	}
	c.says("node-2 is gone, last heard 20", fails, c.doctor()...)

	var got struct {
		Unserved, Below []int
		Nodes           []struct {
			State   string
			Seen    *time.Time
			Reports []struct{ Reason string }
		}
		Assignment topology.Assignment
	}
	c.must(json.Unmarshal([]byte(c.says(`"ok":false`, fails, c.show("-o", "json")...)), &got))
	if len(got.Nodes) != 2 || got.Nodes[1].State != "gone" || got.Nodes[1].Seen == nil || len(got.Unserved) != 1 || len(got.Below) != 719 || got.Nodes[0].Reports[0].Reason != "corrupt" || got.Assignment.Epoch != 1 {
		t.Errorf("as JSON: %+v", got)
	}
	c.says("say text or json", fails, c.show("-o", "xml")...)
}

// Doctor advises to assign only where there never was an assignment.
func TestDoctorAdvisesRestoreWhereEtcdWasLost(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	const assign, restore = "way out: millrace cluster assign", "way out: millrace cluster restore"
	lacks := func(out, what string) {
		t.Helper()
		if strings.Contains(out, what) {
			t.Errorf("doctor says %q:\n%s", what, out)
		}
	}
	c.must(kafka.EnsureTopics(c.ctx, kafka.At(c.kafka), kafka.Topics{}, nil))
	out := c.says(assign, fails, c.doctor()...)
	lacks(out, restore)
	lacks(out, "start a broker") // one that runs cannot answer yet
	doubtsDocuments(t, out)
	c.ok()
	out = c.says("epoch 1, 2 nodes, 2 replicas", fails, c.doctor()...) // there is no broker
	lacks(out, assign)
	lacks(out, restore)

	// Nodes that register again remember.
	c.lose()
	clitest.WaitFor(c.ctx, t, "a node to register again", func() bool {
		out, _ := c.command(c.doctor()...)
		return strings.Contains(out, "nodes remember what it has lost")
	})
	out = c.says(restore, fails, c.doctor()...)
	lacks(out, assign)
	if !strings.Contains(out, "FAIL  a broker answers") { // by what it remembers
		t.Errorf("the broker is not asked:\n%s", out)
	}
	doubtsDocuments(t, out)
	c.says(`etcd has lost the assignment: ["node-1`, fails, c.show()...)
	anew := []string{"cluster", "assign", "--etcd", c.addr, "--nodes", "node-1,node-2"}
	c.says("millrace cluster restore --data", fails, anew...)
	c.says("not the name of this cluster", fails, append(anew, "--override", "other")...)
	c.says("millrace cluster restore --data", fails, "cluster", "assign", "--etcd", c.addr, "--from", filepath.Join(clusters.LastGood(c.data), "map.json"))
	for _, line := range []string{"node drain node-1", "cluster plan"} {
		c.says("millrace cluster restore --data", fails, append(strings.Fields(line), "--etcd", c.addr)...)
	}
	if out = c.says("epoch 2", nil, "cluster", "restore", "--etcd", c.addr, "--data", c.data); !strings.Contains(out, "no broker is registered: whether one has heard of it is not known\n") {
		t.Errorf("who has heard of what is restored is not told:\n%s", out)
	}
	c.says(clusters.Who()+"  restore  what etcd had lost  no assignment", nil, "cluster", "history", "--etcd", c.addr)
	clitest.WaitFor(c.ctx, t, "the nodes to have registered again", func() bool { _, err := c.command(c.show()...); return err == nil })

	// With the nodes gone, too, the log tells that there was a cluster.
	for _, m := range c.nodes {
		c.must(m.Leave(c.ctx))
	}
	c.lose()
	p, err := kafka.NewProducer(kafka.At(c.kafka), kafka.Topics{}.WithDefaults().DeadLetters, slog.New(slog.DiscardHandler))
	c.must(err)
	defer p.Close()
	p.Produce(c.ctx, kafka.Outgoing{Topic: kafka.Topics{}.WithDefaults().Timeline, Value: []byte("x")})
	c.must(p.Flush(c.ctx))
	lacks(c.says(restore, fails, c.doctor()...), assign)
	if out, err := c.command(c.show()...); err == nil || !strings.Contains(out, "etcd holds nothing of this cluster") {
		t.Errorf("show: %s, %v", out, err)
	}
}

// Looking at a cluster writes nothing into its etcd: an empty one stays so.
func TestLookingAtAClusterWritesNothing(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	for range 2 {
		c.says("etcd holds nothing of this cluster", fails, c.show("--cluster", "misspelt")...)
		c.says("etcd holds nothing of this cluster", fails, append(c.doctor(), "--cluster", "misspelt")...)
	}
}

func TestDoctorChecksTopics(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.says("does not exist", fails, c.doctor()...)
	c.must(kafka.EnsureTopics(c.ctx, kafka.At(c.kafka), kafka.Topics{}, nil))
	c.says("at most 0 dead letters", fails, c.doctor()...) // ends of transactions have offsets, too
	c.says("ok    its topics fit", fails, c.doctor()...)
	c.says("no partitioner has ever reported progress", fails, c.doctor()...)
}

// Each of its own topics is as roles need it, or doctor says which is not and what to set.
func TestDoctorChecksHowTopicsAreKept(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	topics := kafka.Topics{}.WithDefaults()
	c.must(kafka.EnsureTopics(c.ctx, kafka.At(c.kafka), topics, nil))
	cl, err := kafka.NewClient(kafka.At(c.kafka), nil)
	c.must(err)
	defer cl.Close()
	admin := kadm.NewClient(cl)
	set := func(topic, key, value string) {
		t.Helper()
		_, err := admin.AlterTopicConfigs(c.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, topic)
		c.must(err)
	}
	for _, x := range []struct{ topic, key, value, back, says, wayOut string }{
		{topics.Progress, "cleanup.policy", "delete", "compact", "FAIL  its topics fit           topic progress has cleanup.policy=delete", "set cleanup.policy=compact on it"},
		{topics.Progress, "cleanup.policy", "compact,delete", "compact", "FAIL  its topics fit           topic progress has cleanup.policy=compact,delete", "set cleanup.policy=compact on it"},
		{topics.DeadLetters, "retention.ms", "604800000", "-1", "warn  its topics fit           topic dead-letters deletes what is older than 168h0m0s", "cannot be replayed"},
		{topics.DeadLetters, "cleanup.policy", "compact", "delete", "warn  its topics fit           topic dead-letters keeps only the newest record of each key", "cannot be replayed"},
		{topics.Features, "retention.bytes", "1000", "-1", "FAIL  its topics fit           topic features deletes what is beyond 1000 bytes", "retention.bytes=-1"},
	} {
		set(x.topic, x.key, x.value)
		if out := c.says(x.says, fails, c.doctor()...); !strings.Contains(out, x.wayOut) {
			t.Errorf("%s: no %q in\n%s", x.says, x.wayOut, out)
		}
		set(x.topic, x.key, x.back)
	}
	c.says("ok    its topics fit", fails, c.doctor()...)
	_, err = admin.CreatePartitions(c.ctx, 1, topics.Progress)
	c.must(err)
	c.says("topic progress has 2 partitions, not 1", fails, c.doctor()...)
	_, err = admin.DeleteTopics(c.ctx, topics.Progress)
	c.must(err)
	c.says("topic progress does not exist", fails, c.doctor()...)
}

// Of a log that nodes have read doctor does not say that starting a role makes it.
func TestDoctorOfALogThatIsGone(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.says("start any role once: it creates them", fails, c.doctor()...)
	c.ok()
	out := c.says("topic timeline is gone, which index nodes have read", fails, c.doctor()...)
	for want, is := range map[string]bool{"start nothing and restart nothing": true, "docs/backup.md": true, "start any role": false, "start one: millrace partitioner": false, "start the nodes": false} {
		if strings.Contains(out, want) != is {
			t.Errorf("%q, %v:\n%s", want, is, out)
		}
	}
	args := c.doctor()
	args[slices.Index(args, "--etcd")+1] = clitest.FreeAddr(t)
	c.says("bring etcd back first", fails, args...)
}

// While Kafka or etcd is away doctor says so, and gives no advice on what only
// follows from that.
func TestDoctorWhileKafkaOrEtcdIsAway(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.must(kafka.EnsureTopics(c.ctx, kafka.At(c.kafka), kafka.Topics{}, nil))
	c.ok()
	stale := topology.Report{State: "stale", Reason: "kafka_away", Detail: "no answer", Partitions: topology.All()}
	c.nodes["node-1"].SetReports([]topology.Report{stale})
	clitest.WaitFor(c.ctx, t, "the report to be shown", func() bool {
		out, _ := c.command(c.show()...)
		return strings.Contains(out, "kafka_away")
	})
	ways := func(out string) (all []string) {
		for line := range strings.Lines(out) {
			if _, way, ok := strings.Cut(line, "way out: "); ok {
				all = append(all, strings.TrimSpace(way))
			}
		}
		return all
	}
	without := func(flag string) []string {
		args := c.doctor()
		args[slices.Index(args, flag)+1] = clitest.FreeAddr(t)
		return args
	}
	const broker = "start a broker, or name it with --grpc; of one that runs, look at its log and /readyz"
	const needsKafka, needsEtcd = "bring Kafka back first: nodes that cannot ask it are stale, which mends itself", "start etcd, or name it with --etcd and --cluster"
	if got := ways(c.says("FAIL  Kafka answers", fails, without("--brokers")...)); !slices.Equal(got, []string{"start Kafka, or name it with --brokers", needsKafka, broker}) {
		t.Errorf("Kafka is away: %q", got)
	}
	out := c.says("FAIL  etcd answers", fails, without("--etcd")...)
	doubtsDocuments(t, out)
	got := ways(out)
	if !slices.Equal(got, []string{"start one: millrace partitioner --config FILE", needsEtcd, broker}) {
		t.Errorf("etcd is away: %q", got)
	}
	for _, m := range c.nodes {
		c.must(m.Leave(c.ctx))
	}
	c.lose()
	for _, way := range ways(c.says("cannot be told while Kafka does not answer", fails, without("--brokers")...)) {
		if strings.Contains(way, "assign --nodes") || strings.Contains(way, "cluster restore") {
			t.Errorf("nothing can be read, and it advises: %s", way)
		}
	}
}

// A log that has lost its beginning while all replicas are well is told, by
// doctor and by cluster show, and nothing fails for it.
func TestATrimmedLogIsWarnedOf(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.must(kafka.EnsureTopics(c.ctx, kafka.At(c.kafka), kafka.Topics{}, nil))
	c.ok()
	c.says("ok    the log is whole", fails, c.doctor()...) // there is no broker
	p, err := kafka.NewProducer(kafka.At(c.kafka), "dead-letters", slog.New(slog.DiscardHandler))
	c.must(err)
	defer p.Close()
	for range 3 {
		p.Produce(c.ctx, kafka.Outgoing{Topic: "timeline", Partition: 7, Value: []byte("x")})
	}
	c.must(p.Flush(c.ctx))
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.kafka))
	c.must(err)
	defer cl.Close()
	var to kadm.Offsets
	to.AddOffset("timeline", 7, 2, -1)
	_, err = kadm.NewClient(cl).DeleteRecords(c.ctx, to)
	c.must(err)
	c.says("warn  the log is whole         timeline has lost its beginning in 1 of 720 partitions, 2 records at most", fails, c.doctor()...)

	told := topology.Report{State: "ready", Reason: "log_trimmed", Detail: "timeline begins at 2", Warning: true}
	told.Partitions.Add(7)
	c.nodes["node-1"].SetReports([]topology.Report{told})
	clitest.WaitFor(c.ctx, t, "the warning to be shown, and all to be well", func() bool {
		out, err := c.command(c.show()...)
		return err == nil && strings.Contains(out, "all is well") && strings.Contains(out, "node-1: 1 partitions are ready: log_trimmed: timeline begins at 2")
	})
	c.says(`"warnings":["node-1: 1 partitions are ready: log_trimmed`, nil, c.show("-o", "json")...)
	c.says("warn  index nodes are ready", fails, c.doctor()...)
}

// An assignment that was a mistake is gone back from, by what show printed or
// a process kept.
func TestClusterAssignGoesBack(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.says("have never registered", fails, "cluster", "assign", "--etcd", c.addr, "--nodes", "nodel,node-2", "--wait", "0s")
	c.says("2 replicas of each partition are wanted, and 1 nodes may host any", fails, "cluster", "assign", "--etcd", c.addr, "--nodes", "node-1,node-1", "--force")
	c.ok()
	file := filepath.Join(t.TempDir(), "good.json")
	c.must(os.WriteFile(file, []byte(c.says("", nil, c.show("-o", "json")...)), 0o644))
	c.says("move everything with --replace", fails, "cluster", "assign", "--etcd", c.addr, "--nodes", "node-1")
	c.says("shrinks by more than a fifth", fails, "cluster", "assign", "--etcd", c.addr, "--nodes", "node-1", "--replicas", "1", "--replace")
	c.says("epoch 2", nil, "cluster", "assign", "--etcd", c.addr, "--nodes", "node-1", "--replicas", "1", "--replace", "--allow-shrink")
	c.says("epoch 3: 720 partitions on 2 nodes", nil, "cluster", "assign", "--etcd", c.addr, "--from", file)
	c.says("epoch 500", nil, "cluster", "assign", "--etcd", c.addr, "--from", filepath.Join(clusters.LastGood(c.data), "map.json"), "--epoch", "500", "--allow-shrink")
	c.says("epoch 500, so the next is 501", fails, "cluster", "assign", "--etcd", c.addr, "--from", file, "--epoch", "1501")
	c.must(os.WriteFile(file, []byte(`{"assignment":{"epoch":1,"replicas":[]}}`), 0o644))
	c.says("0 partitions, not 720", fails, "cluster", "assign", "--etcd", c.addr, "--from", file)
}

// doubtsDocuments wants doctor to say nothing of single documents while all that etcd
// holds is in doubt: least of all that they be removed.
func doubtsDocuments(t *testing.T, doctor string) {
	t.Helper()
	for _, check := range []string{"models do not fail", "feeds are whole", "experiments are whole"} {
		if want := fmt.Sprintf("-     %-24s cannot be told before what is wrong above is mended", check); !strings.Contains(doctor, want) {
			t.Errorf("doctor does not say %q:\n%s", want, doctor)
		}
	}
	if strings.Contains(doctor, " drop ") {
		t.Errorf("doctor advises to drop:\n%s", doctor)
	}
}
