package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/config"
)

// What a role is given is what the reference says, whatever its package would
// use where nothing is said.
func TestRolesUseTheDefaults(t *testing.T) {
	defaults := func(of string) (config.Configuration, map[string]string) {
		cfg, err := Files().Named(of)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, k := range Files().ReferenceOf(cfg) { // which completes it
			all[k.Key] = k.Default
		}
		return cfg, all
	}
	is := func(of, key string, used any, want string) {
		if fmt.Sprint(used) != want || want == "" {
			t.Errorf("%s: %s is %v, and the reference says %q", of, key, used, want)
		}
	}
	cfg, want := defaults("partitioner")
	p := cfg.(*partitionerConfig).partitioner()
	is("partitioner", "group", p.Group, want["group"])
	is("partitioner", "future", p.Future, want["future"])

	cfg, want = defaults("indexnode")
	n, err := cfg.(*indexnodeConfig).node()
	if err != nil {
		t.Fatal(err)
	}
	is("indexnode", "question_memory_mib", n.QuestionMemory>>20, want["question_memory_mib"])
	is("indexnode", "min_free_mib", n.Store.MinFreeBytes>>20, want["min_free_mib"])
	is("indexnode", "weight", n.Weight, want["weight"])
	is("indexnode", "drain", n.Drain, want["drain"])
	is("indexnode", "backup.every", n.Backup.Every, want["backup.every"])
	is("indexnode", "backup.keep", n.Backup.Keep, want["backup.keep"])
	is("indexnode", "backup.mib_per_second", n.Backup.MiBPerSecond, want["backup.mib_per_second"])
	is("indexnode", "backup.drill", n.Backup.Drill, want["backup.drill"])
	is("indexnode", "serves", n.Keeps.Len() == 0, want["serves"])

	cfg, want = defaults("broker")
	b := cfg.(*brokerConfig)
	made, err := b.broker()
	if err != nil {
		t.Fatal(err)
	}
	is("broker", "request_memory_mib", made.RequestMemory>>20, want["request_memory_mib"])
	is("broker", "connections", b.grpcPort().conns, want["connections"])
	is("broker", "connections", b.httpPort().conns, want["connections"])
	is("broker", "cluster", b.inEtcd("").Name, want["cluster"])
	is("broker", "drain", b.drain(), want["drain"])

	cfg, want = defaults("coordinator")
	co, err := cfg.(*coordinatorConfig).coordinator()
	if err != nil {
		t.Fatal(err)
	}
	is("coordinator", "grace", co.Grace, want["grace"])
	is("coordinator", "drop_after", co.DropAfter, want["drop_after"])
	is("coordinator", "moves_per_node", co.Limits.PerNode, want["moves_per_node"])
	is("coordinator", "moves_per_second", co.Limits.PerSecond, want["moves_per_second"])
	is("coordinator", "repair", !co.RepairOff, want["repair"])
}

// A node's id is refused before the node touches its data directory.
func TestTheIDOfANodeIsCheckedFirst(t *testing.T) {
	for id, well := range map[millrace.NodeID]bool{"node-4": true, "no de/4": false} {
		bad := slices.ContainsFunc(config.Flat((&indexnodeConfig{ID: id}).Validate()), func(err error) bool {
			e, ok := errors.AsType[*millrace.Error](err)
			return ok && e.Field == "id"
		})
		if bad == well {
			t.Errorf("%q is refused: %t", id, bad)
		}
	}
}

// Processes of a role can have one configuration: what they differ in comes from
// the environment, which goes before the file, and from flags, which go before
// both.
func TestProcessesOfARoleShareAFile(t *testing.T) {
	file := clitest.Written(t, "role: indexnode\nid: node-0\ndata: /data\nbrokers: [\"127.0.0.1:1\"]\netcd: [\"127.0.0.1:1\"]\nlisten: 127.0.0.1:0\nadvertise: node-0:7070\nzone: z\n")
	t.Setenv("MILLRACE_ID", "node-1")
	t.Setenv("MILLRACE_ADVERTISE", "node-1:7070")
	var got *indexnodeConfig
	c := roleCommand("indexnode", "", "", func(_ context.Context, c *indexnodeConfig) error {
		got = c
		return nil
	})
	c.SetArgs([]string{"--config", file, "--id", "node-2"})
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.ID != "node-2" || got.Advertise != "node-1:7070" || got.Zone != "z" {
		t.Errorf("the flag, the variable and the file say %q, %q, %q", got.ID, got.Advertise, got.Zone)
	}
}

// A backup node stops at once: it answers nobody.
func TestBackupNodesDoNotDrain(t *testing.T) {
	no, long := false, time.Minute
	for _, c := range []struct {
		cfg  indexnodeConfig
		want time.Duration
	}{{indexnodeConfig{}, DrainFor}, {indexnodeConfig{Serves: &no}, 0}, {indexnodeConfig{Serves: &no, Drain: &long}, long}} {
		if got := c.cfg.drain(); got != c.want {
			t.Errorf("serves %v, drain %v: %v", c.cfg.Serves, c.cfg.Drain, got)
		}
	}
}
