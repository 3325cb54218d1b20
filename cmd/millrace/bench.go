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
	c.AddCommand(benchIngest(), benchBacking())
	return c
}

func benchIngest() *cobra.Command {
	var cfg bench.Ingest
	c := &cobra.Command{
		Use:   "ingest --kafka HOST:PORT",
		Short: "Measure the way in, from a file or a producer to what feeds show",
		Long: `Starts a partitioner, an index node and a broker in processes of their own on
loopback, on a Kafka that is there already, and brings records in: a text and 24
floats each, of any entity, in the order of their times.

  idle  CPU time of the roles before anything comes in
  file  millrace load of an NDJSON file, until the node has applied all of it
  avro  the same of as many further records by a producer that has them ready
  half  records at half the rate of the latter, and after what time some of them
        are in a feed

CPU time is told a record and by process; that of Kafka too, if the id of its
process is given. Another build of millrace can be measured by turns with this
one, which is what to believe on a machine that does other things too: its
figures end in _against.

Each turn makes topics of its own, which stay in that Kafka.`,
		Example: `  KAFKA_PORT=29192 scripts/kafka
  millrace bench ingest --kafka 127.0.0.1:29192 --kafka-pid "$(cat .kafka/kafka-29192.pid)"
  millrace bench ingest --kafka 127.0.0.1:29192 --against /tmp/millrace-before --turns 3`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg.Progress = os.Stderr
			return bench.RunIngest(c.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Kafka, "kafka", "", "a Kafka that nobody else uses, host:port")
	f.IntVar(&cfg.KafkaPID, "kafka-pid", 0, "the id of its process, if its CPU time is to be told")
	f.IntVar(&cfg.Records, "records", 0, "of the file, and of the producer (default 500,000)")
	f.IntVar(&cfg.Entities, "entities", 0, "whose they are (default one for twenty records)")
	f.DurationVar(&cfg.Duration, "duration", 0, "of the latency (default 20s)")
	f.IntVar(&cfg.Turns, "turns", 0, "how many times all is measured (default 1)")
	f.StringVar(&cfg.Against, "against", "", "another build of millrace, measured by turns with this one")
	f.StringVar(&cfg.Data, "data", "", "directory for files and stores (default a temporary one)")
	f.StringVar(&cfg.Profile, "profile", "", "write CPU profiles of the partitioner and the node to this directory")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the records")
	if err := c.MarkFlagRequired("kafka"); err != nil {
		panic(err) // the flag above exists
	}
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
