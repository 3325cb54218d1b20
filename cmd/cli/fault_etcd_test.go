//go:build linux

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
)

// TestFaultEtcdAway stops etcd, starts it again empty, and restores it, while
// feeds are read and brokers are restarted. No read fails or lacks anything;
// the map, the definitions and the key of page tokens stay; and who operates
// the cluster is told.
func TestFaultEtcdAway(t *testing.T) {
	each, measured := faultTime(t, 5*time.Second)
	away := each
	if measured {
		away = time.Minute
	}
	c := startFaultCluster(t, 3, loadLines())
	addr := c.etcd.Addr()
	definition := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(definition, []byte("name: mine\nmodel: recency\nlimit: 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "feed", "define", "--etcd", addr, definition)
	mine := &feedv1.GetFeedRequest{Feed: "mine", Viewer: &feedv1.Viewer{Id: "v"}, Entities: []string{"member:1", "member:2"}}
	var first *feedv1.GetFeedResponse
	clitest.WaitFor(c.ctx, t, "the definition to arrive", func() bool {
		resp, err := c.ask(c.ctx, mine)
		first = resp
		return err == nil
	})
	// defined asks for the second page of the feed that etcd defines.
	defined := func(when string) {
		t.Helper()
		req := proto.Clone(mine).(*feedv1.GetFeedRequest)
		req.PageToken = first.NextPageToken
		resp, err := c.ask(c.ctx, req)
		if err != nil || len(resp.Items) != 7 || resp.Items[0].Id == first.Items[0].Id {
			t.Errorf("%s: the next page is %v, %v", when, resp.GetItems(), err)
		}
	}
	alarmed := func(state string, on bool) func() bool {
		return func() bool {
			for _, admin := range append(c.admin[:len(c.admin):len(c.admin)], c.front) {
				if state != "map" && admin != c.front {
					continue // nodes do not read feed definitions
				}
				if since := metric(c.ctx, admin, "millrace_cluster_fault_seconds", `of="`+state+`"`); since > 0 != on || since != since {
					return false
				}
			}
			return true
		}
	}
	asker := c.newAsker()
	restart := func() { // of the only broker, whose callers notice
		c.broker.kill()
		c.broker.restart()
		c.waitWhole()
	}

	stop := asker.run()
	asker.await(each / 5)
	c.etcd.Close()
	clitest.WaitFor(c.ctx, t, "the alarm that etcd is away", alarmed("map", true))
	asker.await(away)
	stop()
	defined("etcd away")
	restart()
	defined("restarted while etcd is away")
	clitest.WaitFor(c.ctx, t, "the alarm of a restarted broker", alarmed("map", true))

	c.etcdDir = t.TempDir()
	stop = asker.run()
	c.startEtcd(addr)
	logged := func(text string) func() bool {
		return func() bool {
			log, err := os.ReadFile(c.broker.log)
			return err == nil && strings.Contains(string(log), text)
		}
	}
	clitest.WaitFor(c.ctx, t, "the log to tell that etcd is empty", logged("holds nothing of this cluster"))
	asker.await(each)
	stop()
	restart()
	clitest.WaitFor(c.ctx, t, "the alarm that the past is lost", logged("the beginning of another"))
	clitest.WaitFor(c.ctx, t, "that of the definitions", alarmed(feeds.Kind, true))
	defined("restarted while etcd is empty")
	if epoch := metric(c.ctx, c.front, "millrace_broker_map_epoch"); epoch != 1 {
		t.Errorf("the map has epoch %v", epoch)
	}

	stop = asker.run()
	t.Log(run(t, "cluster", "restore", "--etcd", addr, "--data", c.data[0]+","+c.frontData))
	clitest.WaitFor(c.ctx, t, "the alarms to end", func() bool { return alarmed("map", false)() && alarmed(feeds.Kind, false)() })
	asker.await(each)
	stop()
	if epoch := metric(c.ctx, c.front, "millrace_broker_map_epoch"); epoch != 2 {
		t.Errorf("the restored map has epoch %v", epoch)
	}
	defined("restored")
}
