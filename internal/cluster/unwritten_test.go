package cluster_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// What the disk has no room for is written once it has: the documents, and the
// bytes of versions. Meanwhile a metric tells it.
func TestWhatIsNotOnDiskIsWrittenAgain(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), filepath.Join(t.TempDir(), "data")
	c := etcd.open(dir)
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	away := dir + "-away" // root may write to what it may not
	check(t, os.Rename(dir, away))
	check(t, os.WriteFile(dir, nil, 0o600))
	v, _, err := a.Publish(ctx, "m", "1", []byte("m 1"), "ann")
	check(t, err)
	check(t, a.Serve(ctx, v, nil, "ann"))
	_, err = a.Body(ctx, v)
	check(t, err)
	a.Use(map[string]artefacts.Version{"m": v})
	if files, seconds := c.Unwritten(); a.Unkept(v) == nil || seconds == 0 || files < 2 {
		t.Fatalf("%v is not on disk, and %d files are to be written for %v s", a.Unkept(v), files, seconds)
	}
	late, _, err := a.Publish(ctx, "m", "2", []byte("m 2"), "ann")
	check(t, err)
	_, err = a.Body(ctx, late)
	if check(t, err); a.Unkept(late) == nil {
		t.Error("it is on a disk that takes nothing")
	}
	check(t, a.Drop(ctx, late, nil, "ann"))
	await(t, "what was dropped is no longer to be written", func() <-chan struct{} { return closedAfter(t) }, func() bool { return a.Unkept(late) == nil })
	if a.Unkept(v) == nil {
		t.Error("nothing is to be written")
	}
	if n := testutil.CollectAndCount(c, "millrace_cluster_unwritten_seconds"); n != 1 {
		t.Errorf("%d series", n)
	}
	check(t, os.Remove(dir))
	check(t, os.Rename(away, dir))
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		files, _ := c.Unwritten()
		if files == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are not on disk", files)
		}
	}
	if _, seconds := c.Unwritten(); a.Unkept(v) != nil || seconds != 0 {
		t.Errorf("all is on disk: %v, %v s", a.Unkept(v), seconds)
	}
	next := etcd.open(dir)
	defer next.Close()
	again, err := artefacts.Watch(ctx, next, "models")
	check(t, err)
	if got := again.LastUsed(); string(got[v]) != "m 1" {
		t.Errorf("on disk are %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "docs-models.json")); err != nil {
		t.Error(err)
	}
}
