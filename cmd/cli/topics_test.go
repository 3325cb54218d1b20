package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// logOfTest is a Kafka with Millrace's topics and a content topic posts.
func logOfTest(t *testing.T) (ctx context.Context, addr string) {
	t.Helper()
	ctx = clitest.Bounded(t)
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	addr = c.ListenAddrs()[0]
	if err := kafka.EnsureTopics(ctx, kafka.At(addr), kafka.Topics{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := kafka.EnsureContentTopic(ctx, kafka.At(addr), "posts", 3, nil); err != nil {
		t.Fatal(err)
	}
	return ctx, addr
}

// execute runs a command in this process and returns what it printed.
func execute(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	c := root()
	c.SetArgs(args)
	c.SetOut(&out)
	err := c.ExecuteContext(ctx)
	return out.String(), err
}

func TestSchemaCommand(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	registry, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: kafka.At(addr), Topic: "schemas", Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := log.Publish(ctx, schemas.Note()); err != nil {
		t.Fatal(err)
	}
	longer, err := schemas.Parse([]byte(strings.Replace(schemas.Note().JSON(), `"fields": [`, `"fields": [{"name": "more", "type": "long", "default": 0},`, 1)))
	if err == nil {
		err = log.Publish(ctx, longer)
	}
	if err != nil {
		t.Fatal(err)
	}
	const visits = `{"type":"record","name":"Visit","namespace":"shop","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}]}`
	stage := newStage(t, "n1")
	etcd := stage.Etcd[0]
	visit, changed := stage.File("visit.avsc", visits), stage.File("changed.avsc", strings.Replace(visits, `"kind","type":"string"`, `"kind2","type":"string"`, 1))
	again := longer.Fingerprint().String()
	const never = "0123456789abcdef"
	for _, step := range []struct {
		args []string
		out  []string
		err  string
	}{
		{args: []string{"define", visit, "--etcd", etcd, "--cluster", "test"}, out: []string{"schema shop.Visit ", " is defined"}},
		{args: []string{"define", visit, "--etcd", etcd, "--cluster", "test"}, out: []string{"schema shop.Visit ", " is known already"}},
		{args: []string{"define", changed, "--etcd", etcd, "--cluster", "test"}, err: "a role stays on its field"},
		{args: []string{"list"}, out: []string{"  shop.Visit  "}},
		{args: []string{"refuse", "notes"}, err: "16 hexadecimal digits"},
		{args: []string{"refuse", never}, out: []string{"would pass over the records of schema " + never}},
		{args: []string{"refuse", "--apply", "--yes", schemas.Note().Fingerprint().String()}, err: "is known"},
		{args: []string{"refuse", "--apply", "--yes", never}, out: []string{never + " is given up"}},
		{args: []string{"list"}, out: []string{schemas.Note().Fingerprint().String() + "  " + schemas.Note().Name() + "  known", again + "  " + longer.Name() + "  known", never, "refused  " + clusters.Who() + "  20"}},
		{args: []string{"retire", again, "--etcd", "127.0.0.1:1", "--wait", "1s"}, out: []string{"fields that no schema has then: more"}, err: "etcd: which feeds, models and experiments read the schema cannot be asked"},
		{args: []string{"retire", again, "--etcd", etcd, "--cluster", "test"}, out: []string{"would shape nothing any more; 1 others of the name do", "fields that no schema has then: more"}},
		{args: []string{"retire", "--apply", "--yes", again, "--etcd", etcd, "--cluster", "test"}, out: []string{again + " is retired"}},
		{args: []string{"retire", "--apply", "--yes", schemas.Note().Fingerprint().String()}, err: "no other schema of millrace.Note"},
		{args: []string{"list"}, out: []string{again + "  " + longer.Name() + "  retired  " + clusters.Who() + "  20"}},
	} {
		out, err := execute(ctx, append([]string{"schema", "--brokers", addr}, step.args...)...)
		if step.err == "" && err != nil || step.err != "" && (err == nil || !strings.Contains(err.Error(), step.err)) {
			t.Errorf("%v: error %v, want %q", step.args, err, step.err)
		}
		for _, want := range step.out {
			if !strings.Contains(out, want) {
				t.Errorf("%v: %q\nlacks %q", step.args, out, want)
			}
		}
	}
}

// A partitioner's process is stuck at a batch; its /readyz and commands tell,
// and a command has it go on.
func TestTopicsSkip(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	ctx, failed := context.WithCancelCause(ctx)
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerBatchMaxBytes(80<<20), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "posts", Value: make([]byte, 70<<20)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	admin := clitest.FreeAddr(t)
	start(t, failed, "partitioner", "partitioner", "--config", clitest.WriteConfig(t, "partitioner",
		"brokers: [%q]\ncontent: [posts]\ninstance: one\nadmin: %q\n", addr, admin))
	readyz := func(want string) {
		t.Helper()
		clitest.WaitFor(ctx, t, fmt.Sprintf("%q at /readyz", want), func() bool {
			resp, err := http.Get("http://" + admin + "/readyz")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return err == nil && strings.Contains(string(body), want)
		})
	}
	readyz("millrace topics skip --topic posts")

	flags := []string{"topics", "--brokers", addr}
	var way string
	clitest.WaitFor(ctx, t, "topics show to name the place", func() bool {
		out, err := execute(ctx, append(flags, "show")...)
		if err != nil {
			t.Fatal(err)
		}
		_, way, _ = strings.Cut(out, "millrace topics ")
		way, _, _ = strings.Cut(way, "\n")
		return way != ""
	})
	skip := append(append(flags, strings.Fields(way)...), "--yes")
	if out, err := execute(ctx, skip[:len(skip)-2]...); err != nil || !strings.Contains(out, "dead letters") || strings.Contains(out, "posts/0 goes on at") {
		t.Errorf("without --apply: %q, %v", out, err)
	}
	if _, err := execute(ctx, append(flags, "skip", "--topic", "posts", "--partition", "2", "--offset", "99")...); err == nil || !strings.Contains(err.Error(), "does not say") {
		t.Errorf("of a place that is not stuck: %v", err)
	}
	if out, err := execute(ctx, skip...); err != nil || !strings.Contains(out, "dead letters") {
		t.Errorf("%v: %q, %v", skip, out, err)
	}
	readyz("ok")
	if _, err := execute(ctx, append(flags, "forget", "--group", "nobody")...); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a group that never was: %v", err)
	}
	if _, err := execute(ctx, append(flags, "forget", "--group", "millrace-partitioner", "--apply", "--yes")...); err == nil || !strings.Contains(err.Error(), "runs: one told of itself") {
		t.Errorf("a group that runs: %v", err)
	}
	long := fmt.Sprintf(`{"instance": "two", "at_ms": %d}`, time.Now().Add(-time.Hour).UnixMilli())
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "progress", Key: []byte("retired"), Value: []byte(long)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	clitest.WaitFor(ctx, t, "a group to be forgotten", func() bool {
		_, err = execute(ctx, append(flags, "forget", "--group", "retired", "--apply", "--yes")...)
		return err == nil
	})
	out, err := execute(ctx, append(flags, "history")...)
	if err != nil || !regexp.MustCompile(`(?s)`+regexp.QuoteMeta(clusters.Who())+` +skip +group millrace-partitioner +stuck at posts/.*forget +group retired +heartbeat of two at`).MatchString(out) {
		t.Errorf("the history: %q, %v", out, err)
	}
}

// Topics are deleted and created again under a partitioner's process: it says
// so, and a command has it go on without a restart, which says what is lost.
func TestTopicsThatAreCreatedAgain(t *testing.T) {
	t.Parallel()
	ctx, addr := logOfTest(t)
	ctx, failed := context.WithCancelCause(ctx)
	send := func(topic string) {
		t.Helper()
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("poison")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	recreate := func(topic string) {
		t.Helper()
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if _, err := kadm.NewClient(cl).DeleteTopics(ctx, topic); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(kafka.EnsureTopics(ctx, kafka.At(addr), kafka.Topics{}, nil), kafka.EnsureContentTopic(ctx, kafka.At(addr), "posts", 3, nil)); err != nil {
			t.Fatal(err)
		}
	}
	topics := func(wants string, fails bool, args ...string) {
		t.Helper()
		clitest.WaitFor(ctx, t, fmt.Sprintf("topics %q to say %q", args, wants), func() bool {
			out, err := execute(ctx, append([]string{"topics", "--brokers", addr}, args...)...)
			return strings.Contains(fmt.Sprint(out, err), wants) && (err != nil) == fails
		})
	}
	caughtUp := func() bool {
		look, err := kafka.NewInspector(kafka.At(addr))
		if err != nil {
			t.Fatal(err)
		}
		defer look.Close()
		lag, err := look.Lag(ctx, "millrace-partitioner", "posts")
		return err == nil && lag == 0 // the group may not be there yet
	}
	send("posts")
	start(t, failed, "partitioner", "partitioner", "--config", clitest.WriteConfig(t, "partitioner",
		"brokers: [%q]\ncontent: [posts]\ninstance: one\nadmin: %q\n", addr, clitest.FreeAddr(t)))
	topics("has written to no other topics", true, "adopt")
	topics("does not say that it is stuck in posts", true, "skip", "--topic", "posts")

	clitest.WaitFor(ctx, t, "the first record to be read", caughtUp)
	recreate("timeline")
	topics("topic timeline was deleted and created again", false, "show")
	topics("1 records at most of its topics as they are now, which still have 1 of them", false, "adopt")
	topics("or created again, or are no longer the group's, is not known", false, "adopt")
	topics("--from-beginning brings", false, "adopt")
	topics("group millrace-partitioner goes on", false, "adopt", "--from-beginning", "--apply", "--yes")
	clitest.WaitFor(ctx, t, "the group to go on", caughtUp)

	recreate("posts")
	topics("posts/0 is stuck", false, "show")
	topics("of its records had not been read", false, "skip", "--topic", "posts")
	send("posts")
	topics("goes on at 0", false, "skip", "--topic", "posts", "--apply", "--yes")
	clitest.WaitFor(ctx, t, "the new topic to be read", caughtUp)
}
