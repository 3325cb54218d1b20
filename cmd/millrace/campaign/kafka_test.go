//go:build linux

package campaign

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// realKafka is a Kafka of the campaign's own, with a port and a data directory
// that nobody else uses, so that it can be killed.
type realKafka struct {
	root string // of the repository
	dir  string // of its data
	port int
}

func startKafka(t *testing.T, dir string) *realKafka {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	k := &realKafka{root, dir, freePorts(t, 2)}
	t.Cleanup(func() {
		k.signal(syscall.SIGCONT)
		if err := k.script("stop"); err != nil {
			t.Error(err)
		}
		os.RemoveAll(filepath.Join(k.root, ".kafka", fmt.Sprintf("kafka-%d.log", k.port)))
	})
	if err := k.start(); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *realKafka) addr() string { return local(k.port) }

func (k *realKafka) script(verb string) error {
	cmd := exec.Command(filepath.Join(k.root, "scripts", "kafka"), verb)
	cmd.Env = append(os.Environ(), fmt.Sprintf("KAFKA_PORT=%d", k.port), "KAFKA_DATA="+k.dir, "KAFKA_HEAP=768m")
	cmd.WaitDelay = time.Second // Kafka keeps its output
	if out, err := cmd.CombinedOutput(); err != nil && err != exec.ErrWaitDelay {
		return fmt.Errorf("scripts/kafka %s: %w: %s", verb, err, out)
	}
	return nil
}

// start starts it and waits until it answers. A busy machine may need more
// than one try.
func (k *realKafka) start() (err error) {
	for range 3 {
		if err = k.script("start"); err == nil {
			return nil
		}
	}
	return err
}

// signal reports whether Kafka ran.
func (k *realKafka) signal(s syscall.Signal) (ran bool) {
	text, err := os.ReadFile(filepath.Join(k.root, ".kafka", fmt.Sprintf("kafka-%d.pid", k.port)))
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && syscall.Kill(pid, s) == nil
}

// client returns a client of the campaign's own, which no fault touches.
func (k *realKafka) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(k.addr()), kgo.MetadataMinAge(250 * time.Millisecond), kgo.MetadataMaxAge(10 * time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8 << 20), kgo.RetryTimeout(20 * time.Second),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// awaitTopic returns when a topic exists and is served.
func awaitTopic(ctx context.Context, adm *kadm.Client, topic string) error {
	return eventually(ctx, patience, func(ctx context.Context) error {
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		if err := ends.Error(); err != nil {
			return err
		}
		if len(ends[topic]) == 0 {
			return fmt.Errorf("topic %s does not exist", topic)
		}
		return nil
	})
}

// trim deletes what a topic has before some offsets.
func trim(ctx context.Context, adm *kadm.Client, topic string, before map[int32]int64) error {
	var offsets kadm.Offsets
	for p, at := range before {
		offsets.AddOffset(topic, p, at, -1)
	}
	deleted, err := adm.DeleteRecords(ctx, offsets)
	if err != nil {
		return fmt.Errorf("trim %s: %w", topic, err)
	}
	return deleted.Error()
}
