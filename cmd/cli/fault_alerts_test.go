//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// TestFaultAlerts has a real Prometheus watch processes by the alerts of ops/, and
// breaks them: the alerts fire that are for the fault, and no others; in an hour of
// normal load none does. The tests whose names begin like its do so with clusters that
// are set up otherwise. onMadeUpSeriesAlone has what none of them does.
func TestFaultAlerts(t *testing.T) {
	const good = "busy a-token-of-some-length\n"
	tokens := clitest.Written(t, good)
	w := startWatched(t, watchedConfig{nodes: 3, coordinator: "grace: 1h\n", broker: fmt.Sprintf("authorization: {identities: {\"token:busy\": [caller]}, tokens: %q}\nquotas: {\"token:busy\": {per_second: 1}}\n", tokens)})
	c, second := w.faultCluster, w.second
	busy, err := client.Dial(second.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	w.normal()

	of := kafkatest.Cluster{Brokers: kafka.At(c.kafka), Topics: kafka.Prefixed(c.prefix), Content: c.prefix + "activity"}
	var host string  // of a replica of partition 17
	var end func()   // of a transaction
	var files string // of the second broker
	w.breaks(
		alertFault{"a node is killed", fires{"MillraceProcessDown", "MillraceNodesGone"}, nil, c.nodes[2].kill, c.nodes[2].restart},
		alertFault{
			"both replicas of some partitions are gone", fires{"MillraceProcessDown", "MillraceNodesGone", "MillraceAnswersPartial"}, nil,
			func() { c.nodes[1].kill(); c.nodes[2].kill() }, func() { c.nodes[1].restart(); c.nodes[2].restart() },
		},
		alertFault{
			"a node is paused", fires{"MillraceNodePaused", "MillraceNodeBehind"}, []string{"MillraceAnswersOld"},
			func() { w.command("ingest pause node-1 --for 1h --apply --yes") }, func() { w.command("ingest resume node-1 --apply --yes") },
		},
		alertFault{"a replica is quarantined", fires{"MillraceReplicasQuarantined"}, nil, func() {
			for _, host = range []string{"node-1", "node-2"} { // one of which has it
				if _, err := output("partition", "quarantine", "17", "--node", host, "--why", "a test", "--apply", "--yes", "--etcd", c.etcd.Addr()); err == nil {
					return
				}
			}
			t.Fatal("no node has a replica of partition 17")
		}, func() { w.command("partition release 17 --apply --yes --node " + host) }},
		alertFault{
			"a caller asks for more than its quota", fires{"MillraceQuotaRefusals"}, nil,
			func() {
				w.beside = func() {
					ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(c.ctx, "authorization", "Bearer a-token-of-some-length"), time.Second)
					defer cancel()
					_, _ = busy.GetFeed(ctx, w.question) // most are refused
				}
			}, func() { w.beside = func() {} },
		},
		alertFault{"a file of tokens is malformed", fires{"MillraceFilesUnusable"}, nil, func() { rewrite(t, tokens, "busy short\n") }, func() { rewrite(t, tokens, good) }},
		alertFault{
			"no node is there", fires{"MillraceProcessDown", "MillraceNodesGone", "MillraceRequestsFail"}, []string{"MillraceAnswersPartial"},
			func() {
				for _, n := range c.nodes {
					n.kill()
				}
			}, func() {
				for _, n := range c.nodes {
					n.restart()
				}
			},
		},
		alertFault{
			"a process has few files left", fires{"MillraceFilesNearLimit"}, nil,
			func() {
				files = strings.TrimSpace(second.broker.files(t, "--raw", "--noheadings", "--output", "SOFT", "--nofile"))
				second.broker.files(t, fmt.Sprintf("--nofile=%.0f:", metric(c.ctx, second.front, "process_open_fds")+1))
			}, func() { second.broker.files(t, "--nofile="+files+":") },
		},
		alertFault{
			"the plan in etcd is none", fires{"MillraceCoordinatorFault"}, nil,
			func() { c.put("steer/plan", "{") }, func() { c.put("steer/plan", "") },
		},
		alertFault{
			"a feed's definition is none", fires{"MillraceFeedNotTaken"}, nil,
			func() { c.serve(feeds.Kind, "broken", "feed: [") }, func() { c.serve(feeds.Kind, "broken", "") },
		},
		alertFault{
			"a document of experiments is none", fires{"MillraceExperimentNotTaken"}, nil,
			func() { c.serve(experiments.Kind, "broken", "[") }, func() { c.serve(experiments.Kind, "broken", "") },
		},
		alertFault{
			"a model is none", fires{"MillraceModelRefused"}, nil,
			func() { c.serve(indexnode.ModelsKind, "broken", "no archive") }, func() { c.serve(indexnode.ModelsKind, "broken", "") },
		},
		alertFault{
			"a process has little memory", fires{"MillraceMemoryNearLimit"}, []string{"MillraceProcessDown"},
			func() {
				os.Setenv("GOMEMLIMIT", "32MiB")
				second.broker.kill()
				second.broker.restart()
				os.Unsetenv("GOMEMLIMIT")
			}, func() { second.broker.kill(); second.broker.restart() },
		},
		alertFault{
			"a producer leaves its transaction open", fires{"MillraceIngestWaits", "MillraceAnswersOld"}, []string{"MillraceNodeBehind"},
			func() { end = c.holdsUp(of.Content) }, func() { end() },
		},
		alertFault{
			"a batch cannot be opened", fires{"MillraceIngestStuck"}, []string{"MillraceNodeBehind", "MillraceAnswersOld", "MillraceIngestWaits"},
			func() { kafkatest.Bomb(t, of, of.Content, 1) },
			func() {
				_, way, ok := strings.Cut(w.inKafka("topics show"), "millrace topics ")
				way, _, _ = strings.Cut(way, "\n")
				if !ok {
					t.Fatal("topics show names no way out")
				}
				w.inKafka("topics " + way + " --yes")
			},
		},
		alertFault{"records are refused", fires{"MillraceDeadLetters"}, nil, func() { w.bad = true }, func() { w.bad = false }},
		alertFault{
			"etcd is away", fires{"MillraceEtcdAway", "MillraceNoLeader"}, nil,
			func() { w.etcdAt = c.etcd.Addr(); c.etcd.Close() }, func() { c.startEtcd(w.etcdAt) },
		},
	)
}
