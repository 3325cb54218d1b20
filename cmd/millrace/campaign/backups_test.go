package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// backupEvery is how often nodes back up where backups are what is broken.
const backupEvery = 10 * time.Second

// backupsKept is how many a node keeps.
const backupsKept = 3

// startS3 starts a real S3 server of the campaign's own, and returns the URL of
// its bucket. Roles find its credentials in their environment.
func startS3(t *testing.T) (bucket string) {
	t.Helper()
	port := freePorts(t, 1)
	run := func(verb string) error {
		cmd := exec.Command(filepath.Join("..", "..", "..", "scripts", "s3"), verb)
		cmd.Env = append(os.Environ(), fmt.Sprintf("S3_PORT=%d", port))
		cmd.WaitDelay = time.Second // the server keeps its output
		if out, err := cmd.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return fmt.Errorf("scripts/s3 %s: %w: %s", verb, err, out)
		}
		return nil
	}
	t.Cleanup(func() {
		if err := run("stop"); err != nil {
			t.Error(err)
		}
		for _, left := range []string{"data-%d", "meta-%d", "s3-%d.log"} {
			os.RemoveAll(filepath.Join("..", "..", "..", ".s3", fmt.Sprintf(left, port)))
		}
	})
	if err := run("start"); err != nil {
		t.Fatal(err)
	}
	os.Setenv("AWS_ACCESS_KEY_ID", "millrace") // every server of the campaign has the same
	os.Setenv("AWS_SECRET_ACCESS_KEY", "millrace-secret")
	return "s3://millrace/campaign?endpoint=http://" + local(port)
}

// emptyDisk removes everything that a node keeps. It must not run.
func (w *world) emptyDisk(node *process) error {
	left, err := filepath.Glob(filepath.Join(w.dir, node.name, "*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// diskLost kills a node and its disk: what it had comes from backups and the
// log.
func diskLost(r *rand.Rand) fault {
	name := victim(r, "node")
	return fault{name + " killed, and its disk", name,
		func(w *world) error {
			w.process(name).kill(syscall.SIGKILL)
			return w.emptyDisk(w.process(name))
		},
		func(w *world) error { return w.process(name).start() }}
}

// backedUp waits until every node has begun and ended a round of backups after
// now.
func (w *world) backedUp() error {
	now := float64(time.Now().UnixMilli()) / 1000
	for _, node := range w.nodes {
		if err := eventually(w.ctx, patience, func(ctx context.Context) error {
			at, err := w.metric(ctx, node.name, "millrace_backup_last_success_timestamp_seconds")
			if err == nil && at < now {
				err = errors.New("the last backup is too old")
			}
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", node.name, err)
		}
	}
	return nil
}

// TestAnEmptiedDiskComesFromBackups trims the log to what is in backups, and
// empties one node's disk: it comes back from the bucket, has read next to
// nothing of the log, and equals the others.
func TestAnEmptiedDiskComesFromBackups(t *testing.T) {
	s := need(t)
	s.backups = backupEvery
	w := startWorld(t, s, "backups", false)
	w.load.burst(w.ctx, 40*members)
	w.settle()
	w.history.chapter("loaded")
	if err := w.backedUp(); err != nil {
		t.Fatal(err)
	}
	ends := w.wholes[len(w.wholes)-1].ends
	var logged int64
	for stream, topic := range w.truth.topics {
		before := map[int32]int64{}
		for p, end := range ends[stream] {
			before[int32(p)] = end
			logged += end
		}
		if err := trim(w.ctx, w.adm, topic, before); err != nil {
			t.Fatal(err)
		}
	}
	stop := w.underLoad()
	defer stop()
	node := w.nodes[0]
	node.kill(syscall.SIGKILL)
	if err := errors.Join(w.emptyDisk(node), node.start()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.settle()
	figure.Print("bootstrap_seconds", time.Since(began).Seconds(), "s")
	restored, err := w.metric(w.ctx, node.name, "millrace_backup_restored_bytes_total")
	if err != nil || restored == 0 {
		t.Errorf("%.0f bytes were restored, %v", restored, err)
	}
	figure.Print("bootstrap_restored", restored/(1<<20), "MiB")
	stop()
	w.asker.drain()
	t.Log(w.asker.take())
	if w.finish() {
		figure.Print("bootstrap_digests_compared", float64(w.digests()), "partitions")
	}
	w.verdict()
}
