package cli

import (
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/roles"
	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/cmd/millrace/bench/team"
)

func benchCommand() *cobra.Command {
	var cfg bench.Config
	c := &cobra.Command{
		Use:   "bench --shape " + strings.Join(bench.Names(), "|"),
		Short: "Measure a whole cluster on this machine, and check its answers",
		Long: `Makes a synthetic world, writes it to a log, starts index nodes and a broker
in processes of their own on loopback, and asks them for feeds by gRPC:

  fishdb      300 timelines, 3,000 candidates and 150,000 field reads a query,
              as LinkedIn published of FishDB
  followfeed  1,000 timelines, 20,000 candidates a query, the tens of thousands
              of FollowFeed
  team        a workload that Millrace was not tuned for: two million records
              with a list of 24 floats, 652 timelines and 3,919 candidates in
              the mean, a filter that 26 % pass, two linear models by turns;
              beside an index written by hand in Go (behind grpc-go, and behind
              plain TCP), Redis and Lucene, where these are installed
  team-flat   the same with 24 fields instead of the list
  random      workloads drawn from --seed, as many as --seeds, of 1,000 to
              10,000 candidates a mean query; each beside a program in plain
              Go that is written for it and built

Every answer is checked: of team by an oracle in memory, of random by the
program beside it, of the others the first answers by the oracle and every
further one by the first to its question. One that is wrong ends the run.

What is told of fishdb and followfeed, whose model has 50 features and whose
filter lets 69 % pass, for each cluster:
  1 client      one question after the other: latency, and CPU time by role
  most answers  a second, of as many clients as raise it, each of which waits
                for its answer
  saturation    the highest rate of questions, arriving whether those before
                are answered or not, of which all but one of a thousand are
                answered within 500 ms
  half of it    latency from the instant each was due, and of that until the
                client sent it. The p99 is to be within 10 ms.

Of team, for each system: latency of one client; answers a second and CPU time
a query, by process, of two; memory; and the ratios. Of random: CPU time a
query, of node and broker against the program, and the worst and the median
ratio of the seeds.

The processes share the machine's processors: the nodes are given all among
them, the broker and the client all. Figures depend on the machine and on what
else it does.`,
		Example: `  millrace bench --shape fishdb
  millrace bench --shape followfeed --nodes 3 --duration 20s --data /tmp/bench
  millrace bench --shape fishdb --nodes 1 --profile . && go tool pprof -top fishdb-nodes-1-node-1.pprof
  millrace bench --shape team --against grpc,lucene --kafka 127.0.0.1:9092 --etcd 127.0.0.1:2379
  millrace bench --shape random --seed 1 --seeds 50`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			roles.SpareCollector() // otherwise the client's garbage collector would run all the time, and count as latency
			cfg.Out, cfg.Progress = c.OutOrStdout(), os.Stderr
			return bench.Run(c.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Shape, "shape", "", "one of "+strings.Join(bench.Names(), ", "))
	f.IntSliceVar(&cfg.Nodes, "nodes", []int{1, 3}, "index nodes; a cluster of each number is measured (fishdb, followfeed)")
	f.DurationVar(&cfg.Duration, "duration", 5*time.Second, "of a step; a cluster takes about twelve of them, a system of team eight, a random workload four")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the world and the arrivals")
	f.IntVar(&cfg.Entities, "entities", 0, "in the world; 0: as the shape says")
	f.IntVar(&cfg.Viewers, "viewers", 0, "who ask, in turn; 0: as the shape says")
	f.StringVar(&cfg.Data, "data", "", "keep the log and the stores here, for the next run (fishdb, followfeed)")
	f.StringVar(&cfg.Profile, "profile", "", "write CPU profiles of the saturated processes to this directory")
	f.StringSliceVar(&cfg.Against, "against", team.Baselines, "what team is compared with")
	f.StringVar(&cfg.Kafka, "kafka", "", "host:port of a Kafka to use; else one is started in a process of this binary (team)")
	f.StringVar(&cfg.Etcd, "etcd", "", "host:port of an etcd to use, likewise (team)")
	f.IntVar(&cfg.Seeds, "seeds", 1, "how many workloads to draw, of --seed and those that follow (random)")
	f.BoolVar(&cfg.Fault, "fault", false, "give the baseline a wrong number: the run must fail")
	if err := f.MarkHidden("fault"); err != nil {
		panic(err) // the flag above exists
	}
	if err := c.MarkFlagRequired("shape"); err != nil {
		panic(err) // the flag above exists
	}
	c.AddCommand(benchCompare(), benchBacking(), benchHandwritten())
	return c
}

// benchCompare returns the command bench compare, which fails if one binary is slower than
// another.
func benchCompare() *cobra.Command {
	var cfg bench.Compare
	c := &cobra.Command{
		Use:   "compare --base BINARY",
		Short: "Measure two binaries by turns under the same load, and fail if one has lost",
		Long: `Runs the roles of two binaries beside each other. In each round both start a
partitioner, an index node and a broker with nothing; then both are asked for feeds
by turns, in slices of a fraction of a second: base, head, head, base. The load, the
log and etcd are this binary's, for both.

What is compared is head's CPU time a query, all and the broker's, CPU time a
record of the partitioner and of the index node, the p99 of questions that arrive
at a rate, and how many are not answered. Of each round the ratio is taken, and of
these the interval of Wilcoxon's signed-rank test at 95 %. Head has lost where the
whole interval is above 1 and the slack.`,
		Example: `  millrace bench compare --base /tmp/base/millrace
  millrace bench compare --base /tmp/base/millrace --head /tmp/head/millrace --rounds 12`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			roles.SpareCollector()
			cfg.Nodes, cfg.Out, cfg.Progress = []int{1}, c.OutOrStdout(), os.Stderr
			return bench.RunCompare(c.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Base, "base", "", "the binary that is held against")
	f.StringVar(&cfg.Head, "head", "", "the other binary; left out: this one")
	f.IntVar(&cfg.Rounds, "rounds", 10, "6 at least")
	f.Float64Var(&cfg.Slack, "slack", 0.05, "by which share CPU time may be more")
	f.Float64Var(&cfg.SlackP99, "slack-p99", 0.25, "by which share the p99 may be more")
	f.StringVar(&cfg.Shape, "shape", "fishdb", "of the load: fishdb or followfeed")
	f.DurationVar(&cfg.Duration, "duration", 3*time.Second, "of a step of both sides; a round takes three of them, and what it takes to start")
	f.IntVar(&cfg.Entities, "entities", 10_000, "in the world")
	f.IntVar(&cfg.Viewers, "viewers", 50, "who ask, in turn")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the world and the arrivals")
	if err := c.MarkFlagRequired("base"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// benchBacking returns the hidden command that serves the log and etcd of a benchmark, in a
// process of their own.
func benchBacking() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "backing --data DIR", Short: "The log and etcd of a benchmark", Args: cobra.NoArgs, Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return rig.ServeBacking(c.Context(), dir, os.Stdin, os.Stdout)
		},
	}
	c.Flags().StringVar(&dir, "data", "", "directory")
	return c
}

// benchHandwritten returns the hidden command that serves an index written by hand, which
// bench --shape team compares Millrace with.
func benchHandwritten() *cobra.Command {
	var h team.Handwritten
	c := &cobra.Command{
		Use: "handwritten --entities N --seed N", Short: "An index written by hand, of a benchmark", Args: cobra.NoArgs, Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return h.Serve(c.Context(), os.Stdin, os.Stdout)
		},
	}
	f := c.Flags()
	f.IntVar(&h.Entities, "entities", 0, "in the world")
	f.Uint64Var(&h.Seed, "seed", 0, "of the world")
	f.BoolVar(&h.GRPC, "grpc", false, "serve by grpc-go")
	return c
}
