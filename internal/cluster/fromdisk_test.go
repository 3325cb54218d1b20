package cluster_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/steering"
)

type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

// has reports whether the log has a text.
func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.String(), text)
}

// Who starts by what is on its disk tells how old that is, until etcd has told what is
// so now.
func TestAStartFromDiskTellsTheAge(t *testing.T) {
	t.Parallel()
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	before := etcd.open(dir)
	docs, err := documents.Watch(ctx, before, "feeds")
	check(t, err)
	check(t, putDocument(ctx, docs, "home", []byte("name: home")))
	await(t, "it is known", docs.Changed, func() bool { return len(docs.Current()) == 1 })
	w, err := before.Watch(ctx)
	check(t, err)
	check(t, steering.Assign(ctx, before, spreadOver(t, 1, "n1", "n2")))
	await(t, "the assignment is known", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	check(t, before.Close())
	file := filepath.Join(dir, "docs-feeds.json")
	old := time.Now().Add(-time.Hour)
	check(t, os.Chtimes(file, old, old))
	etcd.stop()

	var log logged
	c, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.addr}, Name: "test", Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	check(t, err)
	defer c.Close()
	c.SetRelist(200 * time.Millisecond)
	docs, err = documents.Watch(ctx, c, "feeds")
	check(t, err)
	if age := gauges(t, c, "millrace_cluster_from_disk_seconds")["feeds"]; age < 3600 || age > 7200 {
		t.Errorf("what is an hour old is said to be of %v s ago", age)
	}
	if !log.has("etcd is away; starting with the last good map") {
		t.Errorf("the log does not tell by what it starts:\n%s", &log)
	}
	said := func() bool { return log.has("of=feeds written=" + old.UTC().Format(time.RFC3339)) }
	for end := time.Now().Add(time.Minute); !said(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log does not tell it:\n%s", &log)
		}
	}
	etcd.start()
	await(t, "etcd is back", docs.Changed, func() bool { return docs.Fault() == nil })
	for end := time.Now().Add(time.Minute); gauges(t, c, "millrace_cluster_from_disk_seconds")["feeds"] != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is said to go by the disk when etcd has told")
		}
	}
}
