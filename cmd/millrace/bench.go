package main

import (
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/bench"
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
  team        652 timelines and 3,919 candidates in the mean, of two million
              records; and the same by Redis, if a redis-server is installed:
              a sorted set a timeline, filtered and scored in the client

The model has 50 features, and the filter lets 69 % of the candidates pass; of
team it is 30 and 26 %.

What is told of each cluster:
  1 client      one question after the other: latency, and CPU time by role
  most answers  a second, of as many clients as raise it, each of which waits
                for its answer
  saturation    the highest rate of questions, arriving whether those before
                are answered or not, of which all but one of a thousand are
                answered within 500 ms
  half of it    latency from the instant each was due, and of that until the
                client sent it. The p99 is to be within 10 ms.

The processes share the machine's processors: the nodes are given all among
them, the broker and the client all.

The client stands for many on machines of their own: it looks whether an answer
is the right one, and does not decode it.

The first answers are held against a naive feed in memory, and every further
answer against the first to its question; one that differs ends the run.
Figures depend on the machine and on what else it does.`,
		Example: `  millrace bench --shape fishdb
  millrace bench --shape followfeed --nodes 3 --duration 20s --data /tmp/bench
  millrace bench --shape fishdb --nodes 1 --profile . && go tool pprof -top fishdb-nodes-1-node-1.pprof`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			spareCollector() // or the client's collector would run all the time, and be taken for latency
			cfg.Out, cfg.Progress = c.OutOrStdout(), os.Stderr
			return bench.Run(c.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Shape, "shape", "", "one of "+strings.Join(bench.Names(), ", "))
	f.IntSliceVar(&cfg.Nodes, "nodes", []int{1, 3}, "index nodes; a cluster of each number is measured")
	f.DurationVar(&cfg.Duration, "duration", 5*time.Second, "of a step; a cluster takes about twelve of them")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the world and the arrivals")
	f.IntVar(&cfg.Entities, "entities", 0, "in the world; 0: as the shape says")
	f.IntVar(&cfg.Viewers, "viewers", 0, "who ask, in turn; 0: as the shape says")
	f.StringVar(&cfg.Data, "data", "", "keep the log and the stores here, for the next run")
	f.StringVar(&cfg.Profile, "profile", "", "write CPU profiles of the saturated processes to this directory")
	if err := c.MarkFlagRequired("shape"); err != nil {
		panic(err) // the flag above exists
	}
	c.AddCommand(benchBacking())
	return c
}

// benchBacking is the log and etcd of a benchmark.
func benchBacking() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "backing --data DIR", Short: "The log and etcd of a benchmark", Args: cobra.NoArgs, Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return bench.Backing(c.Context(), dir, os.Stdin, os.Stdout)
		},
	}
	c.Flags().StringVar(&dir, "data", "", "directory")
	return c
}
