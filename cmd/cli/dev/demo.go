// Package dev has the commands demo and dev, which run a whole cluster in one process, to
// try Millrace out. It also has those for a module, the Go module of a team with its
// schemas, models and feeds: init writes a module, generate writes its Go code, and dev
// --module loads what it has into a cluster.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/cmd/cli/leans"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/ask"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/version"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/schemas"
)

// demoMember is the member whose feed the demo prints: one with a good number
// of people to follow.
const demoMember millrace.Entity = "member:9"

// Demo returns the command demo, which runs a cluster with the sample network in it.
func Demo() *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "A whole cluster in this process, with a sample network in it",
		Long: `Starts Kafka, etcd, a partitioner, three index nodes and a broker in this
process, loads the bundled social network (LDBC SNB), prints one member's feed
and the curl line that gives the same, and stays up. State is kept in --data; a
second start finds it there.`,
		Args: cobra.NoArgs,
	}
	cfg := miniFlags(c, filepath.Join(".millrace", "demo"))
	c.Flags().BoolVar(&once, "once", false, "print the feed and exit")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return runCluster(c.Context(), *cfg, func(mc *minicluster.Cluster) error {
			if err := loadSample(c.Context(), mc); err != nil {
				return err
			}
			if err := printDemo(c.Context(), c.OutOrStdout(), mc); err != nil {
				return err
			}
			if once {
				return nil
			}
			fmt.Fprintln(c.OutOrStdout(), "\nThe cluster stays up until Ctrl-C.")
			return stayUp(c.Context(), mc)
		})
	}
	return c
}

// Command returns the command dev, which runs a cluster that begins empty.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "dev",
		Short: "A whole cluster in this process, empty and durable",
		Long: `Starts what "millrace demo" starts, without the sample. It reads the topics that
--content and --features name; "millrace load" brings records into them. State
is kept in --data, and a later start may name other topics.

With --module it brings in what a module has that "millrace init" made, by the
commands that it prints: the records of sample/, the models and the feeds.`,
		Example: `  millrace dev
  millrace dev --content activity,reviews --features entity-features,signals
  millrace dev --module .
  millrace dev --backup file:///backups`,
		Args: cobra.NoArgs,
	}
	cfg := miniFlags(c, filepath.Join(".millrace", "dev"))
	var keep backups.Config
	c.Flags().StringVar(&keep.To, "backup", "", "have the index nodes back up to this bucket, such as file:///dir")
	c.Flags().DurationVar(&keep.Every, "backup-every", 0, "how often; 0: 15m")
	c.Flags().StringSliceVar(&cfg.Content, "content", []string{"activity"}, "topics of content records, all that are to be read")
	c.Flags().StringSliceVar(&cfg.Features, "features", []string{"entity-features"}, "topics of feature records, all that are to be read")
	var dir string
	c.Flags().StringVar(&dir, "module", "", "bring in the sample records, models and feeds of the module in this directory")
	c.RunE = func(c *cobra.Command, _ []string) error {
		var bring []topic
		var own *module
		if dir != "" {
			var err error
			if own, err = openModule(dir); err != nil {
				return err
			}
			if bring, err = own.topics(); err != nil {
				return err
			}
			own.read(c.Flags(), cfg, bring)
		}
		cfg.Node = func(n *indexnode.Config) { n.Backup = keep }
		cfg.Exposures = "exposures"
		return runCluster(c.Context(), *cfg, func(mc *minicluster.Cluster) error {
			w := c.OutOrStdout()
			if own != nil {
				if err := own.bring(c.Context(), w, mc, bring); err != nil {
					return err
				}
			}
			at := ""
			if mc.Kafka != "127.0.0.1:9092" {
				at = " --brokers " + mc.Kafka
			}
			fmt.Fprintln(w, "\nLoad records:")
			for _, topic := range slices.Concat(cfg.Content, cfg.Features) {
				fmt.Fprintf(w, "  millrace load%s --topic %s --schema SCHEMA.avsc FILE.ndjson\n", at, topic)
			}
			fmt.Fprintln(w, "The cluster stays up until Ctrl-C.")
			return stayUp(c.Context(), mc)
		})
	}
	return c
}

// miniFlags adds the flags of a cluster in one process to c. It returns the configuration
// that the flags set. dir is the default of --data.
func miniFlags(c *cobra.Command, dir string) *minicluster.Config {
	var cfg minicluster.Config
	f := c.Flags()
	f.StringVar(&cfg.Dir, "data", dir, "directory of everything kept")
	f.IntVar(&cfg.Nodes, "nodes", 0, "index nodes; 0: those that the directory has, 3 when it is new. More than it has host nothing until they are added")
	f.IntVar(&cfg.Replicas, "replicas", 2, "replicas of each partition, when the directory is new")
	f.StringVar(&cfg.HTTPAddr, "http", "127.0.0.1:8080", "listen here for JSON")
	f.StringVar(&cfg.GRPCAddr, "grpc", "127.0.0.1:9090", "listen here for gRPC")
	f.StringVar(&cfg.KafkaAddr, "kafka-listen", "127.0.0.1:9092", "listen here for Kafka")
	f.StringVar(&cfg.EtcdAddr, "etcd-listen", "127.0.0.1:2379", "listen here for etcd")
	f.StringVar(&cfg.AdminAddr, "admin", "127.0.0.1:6060", "listen here for /livez /readyz /metrics /log /debug/pprof")
	f.StringVar(&cfg.Kafka, "kafka", "", "use the Kafka at this address instead of starting one")
	f.StringVar(&cfg.Etcd, "etcd", "", "use the etcd at this address instead of starting one")
	return &cfg
}

// runCluster starts a cluster, calls use once it serves, and closes it when use returns.
func runCluster(ctx context.Context, cfg minicluster.Config, use func(*minicluster.Cluster) error) (err error) {
	defer func() { err = command.ToldToStop(err) }()
	for _, addr := range []string{cfg.HTTPAddr, cfg.GRPCAddr, cfg.KafkaAddr, cfg.EtcdAddr, cfg.AdminAddr} {
		if err := (secure.Plain{}).Check(addr); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	cfg.Log, cfg.LogLevels = slog.Default(), command.LevelsOf(ctx).Handler(nil)
	cfg.Leans, cfg.Version = leans.Of, version.Here()
	mc, err := minicluster.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mc.Close()) }()
	wait, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// The schemas that ship are known from the start, so that filters on
	// their fields are understood before the first record.
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		if _, err := mc.Produce(wait, mc.ContentTopic(), s, none); err != nil {
			return err
		}
	}
	if err := mc.WaitReady(wait); err != nil {
		return fmt.Errorf("the cluster is not ready: %w", err)
	}
	fmt.Printf("Ready in %.1f s. JSON %s, gRPC %s, Kafka %s, etcd %s, admin %s; data in %s\n",
		time.Since(began).Seconds(), mc.HTTP, mc.GRPC, mc.Kafka, mc.Etcd, mc.Admin, cfg.Dir)
	return use(mc)
}

// none yields no records: with it, Produce writes nothing but the schema.
func none(func([]byte, error) bool) {}

// stayUp waits for Ctrl-C, or for a part of the cluster to fail.
func stayUp(ctx context.Context, mc *minicluster.Cluster) error {
	select {
	case <-ctx.Done():
		return nil
	case <-mc.Failed():
		return nil // Close returns the error
	}
}

// loadSample writes the bundled network into the cluster, unless all of it is there. A load
// that was cut short is done again as a whole, which does no harm: a record that is written
// twice is indexed once.
func loadSample(ctx context.Context, mc *minicluster.Cluster) error {
	have, err := mc.Produced(ctx, mc.ContentTopic())
	if err != nil {
		return err
	}
	records := 0
	for range sample.Records() {
		records++
	}
	if have < int64(records) {
		began := time.Now()
		if _, err := mc.Produce(ctx, mc.ContentTopic(), schemas.Activity(), sampleLines()); err != nil {
			return err
		}
		if err := mc.WaitIndexed(ctx); err != nil {
			return err
		}
		fmt.Printf("Loaded %d records of %d members in %.1f s.\n", records, len(sample.Members()), time.Since(began).Seconds())
		return nil
	}
	return mc.WaitIndexed(ctx)
}

func sampleLines() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for line := range sample.Records() {
			if !yield(line, nil) {
				return
			}
		}
	}
}

// demoRequest asks for the member's home feed as of the day the sample ends.
func demoRequest() *feedv1.GetFeedRequest {
	req := &feedv1.GetFeedRequest{
		Feed: "home",
		Viewer: &feedv1.Viewer{Id: string(demoMember), Attributes: map[string]*structpb.Value{
			"languages": texts("ko", "en"),
			"types":     texts("post"),
		}},
		AsOf: timestamppb.New(sample.End().Std()),
	}
	for _, e := range sample.Follows(demoMember) {
		req.Entities = append(req.Entities, string(e))
	}
	return req
}

func texts(values ...string) *structpb.Value {
	list := &structpb.ListValue{}
	for _, v := range values {
		list.Values = append(list.Values, structpb.NewStringValue(v))
	}
	return structpb.NewListValue(list)
}

func printDemo(ctx context.Context, w io.Writer, mc *minicluster.Cluster) error {
	c, err := client.Dial(mc.GRPC)
	if err != nil {
		return err
	}
	defer c.Close()
	req := demoRequest()
	resp, err := c.GetFeed(ctx, req)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe feed of %s (%s), who follows %d members, as of %s:\n\n",
		sample.Name(demoMember), demoMember, len(req.Entities), req.AsOf.AsTime().Format(time.DateOnly))
	ask.Print(w, resp, sample.Name)

	body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(req)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nThe same by curl:\n\n  curl -s %s/v1/feed -d '%s'\n", mc.HTTP, body)
	return nil
}
