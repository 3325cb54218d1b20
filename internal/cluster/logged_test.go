package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// What is wrong with etcd or with what it holds is in the log, once, and so is when a process
// leads or is registered.
func TestWhatGoesWrongIsLogged(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	var refused atomic.Int64
	etcd := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	etcd.judge = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if refuses.Load() {
			refused.Add(1)
			return nil, status.Error(codes.FailedPrecondition, "refused")
		}
		return handle(ctx, req)
	}
	etcd.start()
	t.Cleanup(etcd.stop)
	ctx, dir := t.Context(), t.TempDir()
	etcd.raw(func(c *clientv3.Client) error {
		for key, value := range map[string]string{
			"docs/models/broken": "{", "trace/viewer": "soon", "trace/" + strings.Repeat("v", 513): "1h", "brokers/x": "{", "stats/n9": "{", "acting": "{}", "secrets/pages.../x": strings.Repeat("x", secrets.Size),
		} {
			if _, err := c.Put(ctx, "/millrace/test/"+key, value); err != nil {
				return err
			}
		}
		return nil
	})
	for _, file := range []string{"map.json", "used-models.json"} {
		check(t, os.WriteFile(filepath.Join(dir, file), []byte("{"), 0o600))
	}
	var log logged
	logger := slog.New(slog.NewTextHandler(&log, nil))
	tells := func(what string, parts ...string) {
		t.Helper()
		await(t, fmt.Sprintf("the log says %q %q", what, parts), func() <-chan struct{} { return closedAfter(t) }, func() bool {
			log.mu.Lock()
			defer log.mu.Unlock()
			_, after, found := strings.Cut(log.String(), `msg="`+what)
			line, _, _ := strings.Cut(after, "\n")
			for _, p := range parts {
				found = found && strings.Contains(line, p)
			}
			return found
		})
	}
	c := etcd.openLogging(dir, logger)
	watch(t, c)
	tells("the last good map on disk is of no use", "err=")
	_, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	tells("what was last good is not known", "documents=models", "err=")
	tells("an artefact is as it was before", "documents=models name=broken err=")
	brokers.WatchTraced(ctx, c)
	tells("viewers are not traced", `viewer \"viewer\": time: invalid duration`, "512 bytes at most")
	_, err = brokers.Heard(ctx, c, nil)
	check(t, err)
	tells("what a broker says of itself is left out", "key=/millrace/test/brokers/x")
	_, err = members.Stats(ctx, c)
	check(t, err)
	tells("the stats of a node cannot be read", "node=n9 err=")
	check(t, c.Alone(ctx, "x", func(context.Context) error { return nil }))
	tells("removing a claim that has no lease", `key=/millrace/test/acting`, `by="\"{}\""`)
	pages, err := secrets.Watch(ctx, c, "pages")
	check(t, err)
	tells("a generation of a secret in etcd has a malformed name", "secret=pages err=")
	changed := pages.Changed()
	etcd.put("/millrace/test/secrets/pages", strings.Repeat("y", secrets.Size))
	<-changed
	tells("the first generation of a secret in etcd is not the one that was there", "secret=pages")

	first := lead(t, c, "one")
	tells("leading the cluster's coordinators", "name=one")
	second := make(chan *cluster.Lead, 1)
	begin := func(c *cluster.Client, who string) {
		go func() {
			l, err := c.Lead(ctx, cluster.Leader{Name: who, Addr: who + ":1"})
			if err != nil {
				t.Error(err)
			}
			second <- l
		}()
	}
	begin(c, "two")
	tells("another coordinator leads; waiting", "leader=one addr=")
	first.Resign(ctx)
	(<-second).Resign(ctx)
	registered(t, join(t, c, topology.Node{ID: "n1", Addr: "a:1"}))
	tells("node registered", "node=n1 addr=a:1")
	join(t, c, topology.Node{ID: "n1", Addr: "a:2"})
	tells("the node is not registered; trying again", "node=n1 err=", "at a:1")

	patient := etcd.openLogging("", logger)
	patient.SetRelist(time.Hour) // a call that fails is tried again before
	refuses.Store(true)
	begin(patient, "three")
	done := make(chan error, 2)
	go func() {
		late, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.addr}, Name: "test", Log: logger})
		if err == nil {
			err = late.Close()
		}
		done <- err
	}()
	brokers.Announce(c, brokers.Broker{Name: "b"}, "")
	tells("waiting for etcd, without which nothing is known of the cluster", "etcd=", "refused")
	go func() { _, err := secrets.Get(ctx, c, "other"); done <- err }()
	tells("waiting for etcd, which holds a secret of the cluster", "secret=other err=", "refused")
	tells("waiting to lead", "refused")
	tells("etcd does not have what this broker goes by", "refused")
	was := refused.Load()
	await(t, "all have tried again", func() <-chan struct{} { return closedAfter(t) }, func() bool { return refused.Load() > was+30 })
	refuses.Store(false)
	(<-second).Resign(ctx)
	for range cap(done) {
		check(t, <-done)
	}
	awaitBrokers(t, c, "b")
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, once := range []string{"an artefact is as it was", "viewers are not traced", "a generation of a secret", "waiting for etcd, without which", "waiting to lead", "etcd does not have", "another coordinator"} {
		if n := strings.Count(log.String(), `msg="`+once); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", once, n, log.String())
		}
	}
}
