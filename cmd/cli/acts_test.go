package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// acts are what AdminService changes: each is called with apply and without.
var acts = map[string]func(context.Context, nodev1.AdminServiceClient, bool) error{
	"DeleteRecords": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.DeleteRecords(ctx, &nodev1.DeleteRecordsRequest{Apply: apply, Tombstones: []*nodev1.Tombstone{
			{Id: "a", Type: "post", Entities: []string{"member:1"}}, {Id: "b", Type: "post", Entities: []string{"member:1"}},
		}})
		return err
	},
	"DropCache": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.DropCache(ctx, &nodev1.DropCacheRequest{Entity: "member:1", Apply: apply})
		return err
	},
	"PauseIngest": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.PauseIngest(ctx, &nodev1.PauseIngestRequest{ForMs: 3600_000, Apply: apply})
		return err
	},
	"ResumeIngest": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.ResumeIngest(ctx, &nodev1.ResumeIngestRequest{Apply: apply})
		return err
	},
	"QuarantinePartition": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.QuarantinePartition(ctx, &nodev1.QuarantinePartitionRequest{Partition: 17, Why: "a test", Apply: apply})
		return err
	},
	"ReleasePartition": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.ReleasePartition(ctx, &nodev1.ReleasePartitionRequest{Partition: 17, Apply: apply})
		return err
	},
	"ReplayDeadLetters": func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
		_, err := node.ReplayDeadLetters(ctx, &nodev1.ReplayDeadLettersRequest{Offsets: []int64{0}, Apply: apply})
		return err
	},
}

// onlyShow are what AdminService only shows.
var onlyShow = []string{"ReadTimeline", "ReadHistory", "FindRecords", "ReadState", "CountDeadLetters"}

// others are the methods of the nodes' other service: what is written down of
// each that changes something.
var others = map[string]string{
	"Query": "", "GetSchema": "", "Hot": "", "Digests": "", "ReadPartition": "", "WitnessPartition": "",
	"CheckPartition":   "a replica that it takes out",
	"CondemnPartition": "every order: see TestReplicaThatDiffersIsFoundAndRenewed",
}

// Every method of AdminService is for operators alone. Each that changes
// something touches nothing without apply, and with it is in the audit log
// first: what cannot be written down is not done.
func TestEveryActIsAuthorisedAndAudited(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	p, err := kafka.NewProducer(kafka.At(o.Kafka), "", nil)
	o.must(err)
	defer p.Close()
	body, err := schemas.Note().EncodeJSON([]byte(`{"id":"z","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`))
	o.must(err)
	p.Produce(o.ctx, kafka.Outgoing{Topic: "dead-letters", Value: schemas.Frame(schemas.Note().Fingerprint(), body), Headers: []kafka.Header{
		{Key: kafka.HeaderReason, Value: []byte("unknown-schema")}, {Key: kafka.HeaderSource, Value: []byte(o.ContentTopic() + "/0/0")},
	}})
	o.must(p.Flush(o.ctx))
	cm := clusters.Flags{Etcd: []string{o.Etcd}}
	at, err := cm.Operate(o.ctx)
	o.must(err)
	defer at.Close()
	first, err := at.Node("node-1")
	o.must(err)
	conn, err := grpc.NewClient(first.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	o.must(err)
	defer conn.Close()
	node := nodev1.NewAdminServiceClient(conn)

	var methods []string
	for _, m := range nodev1.AdminService_ServiceDesc.Methods {
		methods = append(methods, m.MethodName)
	}
	for _, m := range nodev1.AdminService_ServiceDesc.Streams {
		methods = append(methods, m.StreamName)
	}
	slices.Sort(methods)
	for _, m := range nodev1.NodeService_ServiceDesc.Methods {
		if _, ok := others[m.MethodName]; !ok {
			t.Errorf("nothing says what is written down of %s", m.MethodName)
		}
	}
	for _, m := range methods {
		if may := permit.RolesFor("/millrace.node.v1.AdminService/" + m); !slices.Equal(may, []permit.Role{permit.Operator}) {
			t.Errorf("%s is for %v", m, may)
		}
		act, is := acts[m]
		if is == slices.Contains(onlyShow, m) {
			t.Errorf("nothing says whether %s changes something: add it to acts or to onlyShow", m)
		}
		if !is {
			continue
		}
		before := len(o.audited())
		o.must(act(o.ctx, node, false))
		if all := o.audited(); len(all) != before {
			t.Errorf("%s is written down, and so was done perhaps, without apply: %+v", m, all[before:])
		}
		o.must(act(o.ctx, node, true))
		all := o.audited()
		if len(all) == before {
			t.Errorf("%s is not in the audit log", m)
		}
		for _, e := range all[before:] {
			if e.Time.IsZero() || e.Who == "" || e.Act == "" || e.On == "" || e.Before == "" || e.After == "" || e.Fault != "" {
				t.Errorf("%s: the entry lacks something: %+v", m, e)
			}
		}
	}
	o.must(acts["ResumeIngest"](o.ctx, node, true))
	clitest.WaitFor(o.ctx, t, "the partition to be made anew", func() bool { return acts["QuarantinePartition"](o.ctx, node, false) == nil })
	o.must(acts["QuarantinePartition"](o.ctx, node, true)) // for ReleasePartition to have something to release
	o.must(o.logs["node-1"].Close())                       // from here on nothing can be written down
	for m, act := range acts {
		if m == "QuarantinePartition" { // of 17, which is quarantined already
			act = func(ctx context.Context, node nodev1.AdminServiceClient, apply bool) error {
				_, err := node.QuarantinePartition(ctx, &nodev1.QuarantinePartitionRequest{Partition: 18, Why: "a test", Apply: apply})
				return err
			}
		}
		if err := act(o.ctx, node, true); err == nil || !strings.Contains(err.Error(), "audit") {
			t.Errorf("%s without an audit log: %v", m, err)
		}
	}
	if paused := o.gauge("millrace_indexnode_ingest_paused_seconds"); paused > 0 {
		t.Error("what could not be written down was done")
	}
}

// How each command is kept from doing harm by mistake: it changes nothing of a
// cluster, it shows what it would do unless --apply, or it acts at once for the
// reason that is said.
const (
	looks  = ""
	awaits = "it waits, and its exit code says for what"
	isDry  = "dry"
	isOwn  = "it runs a process, or writes what the caller has in files"
	isKept = "every version is kept, with who and when, and there is a way back"
	isBack = "another command takes it back at once"
	adds   = "it adds to a bucket, and takes nothing away"
)

var guards = map[string]string{
	"record delete": isDry, "cache drop": isDry, "ingest pause": isDry, "ingest resume": isDry, "deadletters replay": isDry, "partition quarantine": isDry, "partition release": isDry,
	"cluster page-keys": isDry, "cluster roll": isDry, "cluster cancel": isDry, "cluster rollback": isDry,
	"node add": isDry, "node drain": isDry, "node remove": isDry, "node replace": isDry, "node restart": isDry,
	"schema refuse": isDry, "schema retire": isDry, "topics adopt": isDry, "topics forget": isDry, "topics skip": isDry,
	"feed drop": isDry, "feed rollback": isDry, "model drop": isDry, "model rollback": isDry, "experiment drop": isDry,
	"backup adopt": isDry, "backup cut-remove": isDry, "backup expire": isDry,

	"cluster apply":  "its name is --apply, and cluster plan is its dry run; it asks unless --yes",
	"cluster assign": "a new cluster has nothing to lose; what moves, shrinks or is unknown is refused without a flag for each",
	"cluster pause":  isBack, "cluster resume": isBack, "experiment hold": isBack, "experiment resume": isBack, "experiment pause": isBack,
	"cluster restore": "it brings back what etcd has lost, and leaves alone what it has",
	"trace":           "it ends by itself, and --off ends it",
	"feed define":     isKept, "model push": isKept, "experiment define": isKept, "experiment start": isKept, "experiment ramp": isKept, "experiment stop": isKept,
	"model release": "it lets a version be asked for again, and nodes condemn it anew if it fails",
	"backup cut":    adds, "backup drill": adds,
	"backup restore": "it makes a store where there is none, and leaves the bucket as it is",
	"load":           isOwn, "schema define": isOwn, "demo": isOwn, "dev": isOwn, "broker": isOwn, "indexnode": isOwn, "partitioner": isOwn, "coordinator": isOwn, "bench backing": isOwn, "bench compare": isOwn, "bench handwritten": isOwn,
	"context use": isOwn, "init": isOwn, "generate": isOwn, "model seal": isOwn, "model golden": isOwn, "model features": isOwn, "model replay": isOwn, "export exposures": isOwn, "model pull": isOwn, "model bench": isOwn,

	"backup acts": looks, "backup cuts": looks, "backup diff": looks, "backup list": looks, "backup show": looks, "backup status": looks, "backup verify": looks,
	"cluster explain": looks, "cluster history": looks, "cluster plan": looks, "cluster show": looks, "cluster status": looks, "connections": looks, "context list": looks, "context show": looks,
	"config check": looks, "config reference": looks,
	"deadletters list": looks, "deadletters show": looks, "doctor": looks, "experiment diff": looks, "experiment explain": looks, "experiment history": looks,
	"experiment list": looks, "experiment rule": looks, "experiment show": looks, "experiment status": looks, "experiment wait": awaits, "feed diff": looks, "feed history": looks, "feed list": looks,
	"feed shadows": looks, "feed show": looks, "model diff": looks, "model history": looks, "model list": looks, "model show": looks, "model validate": looks,
	"node list": looks, "state": looks, "partition check": looks, "partition diff": looks, "ready": looks, "schema check": looks, "schema list": looks, "timeline get": looks,
	"timeline history": looks, "topics history": looks, "topics show": looks, "version": looks, "why": looks,
}

// trails are where it is written down who had each act done, and when. Most are
// commands.
var trails = map[string]string{
	"record delete": nodeAudit, "cache drop": nodeAudit, "ingest pause": nodeAudit, "ingest resume": nodeAudit, "deadletters replay": nodeAudit, "partition quarantine": nodeAudit, "partition release": nodeAudit,
	"cluster apply": "cluster history", "cluster assign": "cluster history", "cluster cancel": "cluster history", "cluster page-keys": "cluster history", "cluster pause": "cluster history",
	"cluster restore": "cluster history", "cluster resume": "cluster history", "cluster roll": "cluster history", "cluster rollback": "cluster history",
	"node add": "cluster history", "node drain": "cluster history", "node remove": "cluster history", "node replace": "cluster history", "node restart": "cluster history",
	"trace":       "cluster history",
	"feed define": "feed history", "feed drop": "feed history", "feed rollback": "feed history",
	"model push": "model history", "model drop": "model history", "model rollback": "model history", "model release": "model history",
	"experiment define": "experiment history", "experiment drop": "experiment history", "experiment hold": "experiment history", "experiment resume": "experiment history", "experiment pause": "experiment history", "experiment ramp": "experiment history", "experiment start": "experiment history", "experiment stop": "experiment history",
	"schema refuse": "schema list", "schema retire": "schema list",
	"topics adopt": "topics history", "topics forget": "topics history", "topics skip": "topics history",
	"backup adopt": "backup acts", "backup cut": "backup acts", "backup cut-remove": "backup acts", "backup expire": "backup acts", "backup restore": "backup acts",
	"backup drill": "backup status",
}

// nodeAudit is no command: TestEveryActIsAuthorisedAndAudited reads it.
const nodeAudit = "the node's file of audit"

// operators are the commands that ask AdminService: they teach by an example.
var operators = []string{"record delete", "cache drop", "ingest pause", "ingest resume", "deadletters replay", "partition quarantine", "partition release", "timeline get", "timeline history", "state"}

// Every command says how it is kept from doing harm by mistake, has the flags for
// it, and no others; and of every act somebody can find out who had it done.
func TestEveryCommandIsGuarded(t *testing.T) {
	seen := map[string]bool{}
	commands(root(), func(path string, c *cobra.Command) {
		if c.HasSubCommands() {
			return
		}
		seen[path] = true
		guard, said := guards[path]
		if !said {
			t.Errorf("nothing says how %q is kept from doing harm", path)
		}
		apply, yes := c.Flag("apply"), c.Flag("yes")
		switch {
		case guard == isDry:
			if apply == nil || yes == nil || apply.DefValue != "false" || yes.DefValue != "false" {
				t.Errorf("%q lacks --apply or --yes, or does it at once", path)
			}
		case apply != nil || yes != nil && path != "cluster apply":
			t.Errorf("%q has --apply or --yes, and is not said to be dry without it", path)
		}
		where, trailed := trails[path]
		if isAct := guard != looks && guard != isOwn && guard != awaits; isAct != trailed {
			t.Errorf("%q is an act: %v, and where it is written down: %q", path, isAct, where)
		}
		if guards[where] != looks || where != nodeAudit && trailed && !isCommand(where) {
			t.Errorf("%q is written down in %q, which shows nothing", path, where)
		}
		if slices.Contains(operators, path) && !strings.Contains(c.Example, "millrace "+path) {
			t.Errorf("the help of %q has no example", path)
		}
	})
	for _, paths := range [][]string{slices.Collect(maps.Keys(guards)), slices.Collect(maps.Keys(trails)), operators} {
		for _, path := range paths {
			if !seen[path] {
				t.Errorf("there is no command %q", path)
			}
		}
	}
}

func isCommand(path string) bool {
	c, rest, err := root().Find(strings.Fields(path))
	return err == nil && len(rest) == 0 && c.HasParent()
}

// rehearsal is a cluster on which every dry command has something to do.
type rehearsal struct {
	*operated
	bucket, touched string
	retired         millrace.Fingerprint
	log             *kgo.Client
}

func startRehearsal(t *testing.T) *rehearsal {
	r := &rehearsal{operated: startOperated(t), bucket: "file://" + t.TempDir(), touched: filepath.Join(t.TempDir(), "touched")}
	r.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	var err error
	r.log, err = kgo.NewClient(kgo.SeedBrokers(r.Kafka))
	r.must(err)
	t.Cleanup(r.log.Close)

	for _, limit := range []string{"10", "20"} {
		r.done("feed define " + r.file("news.yaml", "name: news\nmodel: recency\nlimit: "+limit+"\n"))
	}
	r.done("experiment define " + r.file("ranking.yaml", clitest.Fresher))
	r.done("experiment stop fresher")
	cl, err := (&clusters.Flags{Etcd: []string{r.Etcd}}).Open(r.ctx)
	r.must(err)
	defer cl.Close()
	models, err := artefacts.Watch(r.ctx, cl, indexnode.ModelsKind)
	r.must(err)
	for _, version := range []string{"1", "2"} {
		v, _, err := models.Publish(r.ctx, "likes", version, []byte("a pack "+version), "somebody")
		r.must(err)
		r.must(models.Serve(r.ctx, v, nil, "somebody"))
	}
	r.fillLog()
	r.fillBucket()
	return r
}

func (r *rehearsal) file(name, text string) string {
	file := filepath.Join(r.dir, name)
	r.must(os.WriteFile(file, []byte(text), 0o600))
	return file
}

// done runs a command that must do it.
func (r *rehearsal) done(line string) {
	r.t.Helper()
	if out, err := r.run(line); err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// fillLog writes a schema to be retired, a group that is stuck, one that has
// written to other topics, and a dead letter.
func (r *rehearsal) fillLog() {
	longer, err := schemas.Parse([]byte(strings.Replace(schemas.Note().JSON(), `"fields": [`, `"fields": [{"name": "more", "type": "long", "default": 0},`, 1)))
	r.must(err)
	r.retired = longer.Fingerprint()
	known, err := registry.New(nil, nil)
	r.must(err)
	log, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(r.Kafka), Topic: "schemas", Registry: known})
	r.must(err)
	defer log.Close()
	r.must(log.Publish(r.ctx, longer))
	stuck, err := json.Marshal(progress.Progress{AtMillis: time.Now().Add(-time.Hour).UnixMilli(), Stuck: []progress.Stuck{{Topic: "posts", Offset: 5, Next: 6}}})
	r.must(err)
	body, err := schemas.Note().EncodeJSON([]byte(`{"id":"z","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`))
	r.must(err)
	r.must(r.log.ProduceSync(r.ctx,
		&kgo.Record{Topic: "progress", Key: []byte("stuck"), Value: stuck},
		&kgo.Record{Topic: "dead-letters", Value: schemas.Frame(schemas.Note().Fingerprint(), body), Headers: []kgo.RecordHeader{
			{Key: kafka.HeaderReason, Value: []byte("unknown-schema")}, {Key: kafka.HeaderSource, Value: []byte(r.ContentTopic() + "/0/0")},
		}},
	).FirstErr())
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: r.ContentTopic(), At: 1, LeaderEpoch: -1, Metadata: `{"cluster":"another","in":"AAAAAAAAAAAAAAAAAAAAAA","out":{}}`})
	r.must(kadm.NewClient(r.log).CommitAllOffsets(r.ctx, "moved", offsets))
}

// fillBucket makes a bucket of a cluster that is lost, with a cut, though a torn one.
func (r *rehearsal) fillBucket() {
	b, err := backup.Open(r.ctx, r.bucket, backup.Options{})
	r.must(err)
	r.must(errors.Join(b.Claim(r.ctx, backup.Identity{Name: "lost", ID: "1"}), b.Close()))
	dir := filepath.Join(strings.TrimPrefix(r.bucket, "file://"), "cuts")
	r.must(errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "torn.json"), []byte("{"), 0o644)))
}

// picture is all that acts change, but for what nodes and partitioners say of
// themselves all the time.
func (r *rehearsal) picture() map[string]string {
	r.t.Helper()
	all := map[string]string{"audit": fmt.Sprint(len(r.audited()))}
	for key, revision := range etcdtest.Lasting(r.t, r.Etcd, "/millrace/") {
		_, name, _ := strings.Cut(strings.TrimPrefix(key, "/millrace/"), "/")
		top, _, _ := strings.Cut(name, "/")
		if !slices.Contains([]string{"map", "seen", "stats", "steer", "brokers"}, top) || name == "map/assignment" {
			all["etcd "+key] = fmt.Sprint(revision)
		}
	}
	cl, err := (&clusters.Flags{Etcd: []string{r.Etcd}}).Open(r.ctx)
	r.must(err)
	defer cl.Close()
	steered, _, err := coordinator.Look(r.ctx, cl)
	r.must(err)
	intent, err := json.Marshal(steered.Intent)
	r.must(err)
	all["intent"] = string(intent)
	if p := steered.Plan; p != nil {
		all["plan"] = p.ID + " " + string(p.Status)
	}
	adm := kadm.NewClient(r.log)
	ends, err := adm.ListEndOffsets(r.ctx, "schemas", "dead-letters", r.ContentTopic())
	r.must(errors.Join(err, ends.Error()))
	ends.Each(func(o kadm.ListedOffset) {
		all[fmt.Sprintf("end of %s/%d", o.Topic, o.Partition)] = fmt.Sprint(o.Offset)
	})
	moved, err := adm.FetchOffsets(r.ctx, "moved")
	r.must(err)
	moved.Each(func(o kadm.OffsetResponse) { all["moved"] += fmt.Sprint(o.Offset) })
	progress, err := progress.Open(progress.Config{Brokers: kafka.At(r.Kafka), Topic: "progress"})
	r.must(err)
	defer progress.Close()
	r.must(progress.Refresh(r.ctx))
	_, there := progress.Group("stuck")
	all["progress"] = fmt.Sprint(there, progress.Skips("stuck"), progress.History())
	r.must(filepath.WalkDir(strings.TrimPrefix(r.bucket, "file://"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, bad := os.ReadFile(name)
			all["bucket "+name], err = string(text), bad
		}
		return err
	}))
	if clitest.Exists(r.touched) {
		all["a node"] = "was restarted"
	}
	return all
}

// Without --apply nothing is done: each command says so, or why it would be
// refused, and neither the cluster nor its log nor a bucket is another then.
func TestDryCommandsChangeNothing(t *testing.T) {
	t.Parallel()
	r := startRehearsal(t)
	touch, on := " --exec touch\\ "+r.touched, " --node node-1 "
	log, bucket := " --brokers "+r.Kafka, " --from "+r.bucket
	runs := map[string]string{
		"record delete": "a --entity member:1", "cache drop": "--entity member:1", "ingest pause": "node-1 --for 1m --override millrace", "ingest resume": "node-1",
		"deadletters replay": "0" + log, "partition quarantine": "17 --why doubt --override millrace" + on, "partition release": "19" + on,
		"cluster page-keys": "--rotate", "cluster roll": touch, "cluster cancel": "", "cluster rollback": "",
		"node add": "node-1", "node drain": "node-1", "node remove": "node-1", "node replace": "node-1 node-2", "node restart": "node-1" + touch,
		"schema refuse": "0123456789abcdef" + log, "schema retire": r.retired.String() + log,
		"topics adopt": "--group moved" + log, "topics forget": "--group stuck" + log, "topics skip": "--group stuck --topic posts --partition 0 --offset 5" + log,
		"feed drop": "news", "feed rollback": "news", "model drop": "likes 1 --override millrace", "model rollback": "likes", "experiment drop": "ranking",
		"backup adopt": "lost" + bucket, "backup cut-remove": "torn" + bucket, "backup expire": "--keep 1" + bucket,
	}
	refused := map[string]string{ // what cannot be done to this cluster
		"node remove": "node-1 is there", "cluster cancel": "there is nothing to cancel",
	}
	r.done("cluster apply --replicas 1 --override millrace --yes")
	r.until("done: ")
	r.done("partition quarantine 19 --why doubt --override millrace --apply --yes" + on)
	for path, guard := range guards {
		if guard != isDry {
			continue
		}
		line, ok := runs[path]
		if !ok {
			t.Errorf("%q is to be run without --apply", path)
			continue
		}
		r.dry(path, line, refused[path])
	}
	r.done("node drain node-1 --moves-per-node 1 --apply --yes")
	r.done("cluster pause")
	r.dry("cluster cancel", "", "")
	for _, line := range []string{"cluster resume", "cluster cancel --apply --yes", "cluster page-keys --rotate --apply --yes", "trace --viewer member:9", "trace --viewer member:9 --off"} {
		r.done(line)
	}
	if _, err := r.run("node restart node-1 --exec false --override millrace --apply --yes"); err == nil {
		t.Error("a command that fails restarts a node")
	}
	out := r.shows("cluster history")
	for _, want := range []string{"resize +all partitions +epoch", `drain +\[node-1\] +epoch`, "pause +plan .* running +paused", "resume +plan ", "cancel +plan .* cancelling", "rotate +secret pages +the first +from 20", `trace +viewer "member:9" +not traced +traced for 10m`, `trace +viewer "member:9" +traced, if it was +not traced`, "restart +node-1 +start [0-9]+ +FAILED: the command that restarts node-1: exit status 1"} {
		if !regexp.MustCompile(regexp.QuoteMeta(clusters.Who()) + " +" + want).MatchString(out) {
			t.Errorf("the history lacks %q:\n%s", want, out)
		}
	}
}

// until waits until the last plan is as cluster status says it.
func (r *rehearsal) until(status string) {
	r.t.Helper()
	last := ""
	defer func() {
		if r.t.Failed() {
			r.t.Log(last)
		}
	}()
	clitest.WaitFor(r.ctx, r.t, "the plan to be "+status, func() bool {
		out, err := r.run("cluster status")
		last = fmt.Sprintf("%v\n%s", err, out)
		return err == nil && strings.Contains(out, status)
	})
}

// words are those of a line, in which a backslash keeps a space in a word.
func words(line string) []string {
	all := strings.Fields(strings.ReplaceAll(line, `\ `, "\x00"))
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], "\x00", " ")
	}
	return all
}

// dry runs a command without --apply, which does nothing, or is refused for why.
func (r *rehearsal) dry(path, line, why string) {
	r.t.Helper()
	args, before := slices.Concat(strings.Fields(path), words(line)), r.picture()
	if f, _, err := root().Find(args); err == nil && f.Flag("etcd") != nil {
		args = append(args, "--etcd", r.Etcd)
	}
	run := func(args []string) (string, error) {
		var out strings.Builder
		c := root()
		c.SetArgs(args)
		c.SetOut(&out)
		c.SetErr(&out)
		err := c.ExecuteContext(r.ctx)
		return out.String(), err
	}
	out, err := run(args)
	switch {
	case why != "" && (err == nil || !strings.Contains(err.Error(), why)):
		r.t.Errorf("%q is not refused, as %q: %v\n%s", path, why, err, out)
	case why == "" && (err != nil || !strings.Contains(out, "nothing was done: --apply does it")):
		r.t.Errorf("%q without --apply: %v\n%s", path, err, out)
	}
	if out, err := run(append(args, "--yes")); err == nil || !strings.Contains(err.Error(), "add --apply to do it") {
		r.t.Errorf("%q with --yes alone: %v\n%s", path, err, out)
	}
	after := r.picture()
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if before[what] != after[what] {
			r.t.Errorf("%q without --apply: %s was %q, and is %q", path, what, before[what], after[what])
		}
		delete(before, what)
	}
	if len(before) > 0 {
		r.t.Errorf("%q without --apply: gone is %v", path, before)
	}
}
