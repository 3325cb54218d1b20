package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// doctor is what the checks look at.
type doctor struct {
	Common
	grpc string
}

func doctorCommand() *cobra.Command {
	var d doctor
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check a cluster from end to end, and say how to mend what is wrong",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return d.run(c.Context(), c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.StringSliceVar(&d.Brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka, host:port each")
	f.StringSliceVar(&d.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&d.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	f.StringVar(&d.TopicPrefix, "topic-prefix", "", "before Millrace's own topics")
	f.StringVar(&d.grpc, "grpc", "127.0.0.1:9090", "the broker's gRPC address")
	return c
}

// checkTimeout bounds each check.
const checkTimeout = 5 * time.Second

func (d *doctor) run(ctx context.Context, w io.Writer) error {
	failed := 0
	for _, check := range []struct {
		name   string
		do     func(context.Context) (string, error)
		wayOut string
	}{
		{"Kafka answers", d.kafkaAnswers, "start Kafka, or name it with --brokers"},
		{"its topics fit", d.topicsFit, "start any role once: it creates them; a topic with another partition count must be deleted or another --topic-prefix used"},
		{"etcd answers", d.etcdAnswers, "start etcd, or name it with --etcd and --cluster"},
		{"partitions are assigned", d.assigned, "millrace cluster assign --nodes ..."},
		{"index nodes are ready", d.nodesReady, "look at the node's log and its /readyz"},
		{"a broker answers", d.brokerAnswers, "start a broker, or name it with --grpc"},
	} {
		limited, cancel := context.WithTimeout(ctx, checkTimeout)
		note, err := check.do(limited)
		cancel()
		if err != nil {
			failed++
			fmt.Fprintf(w, "FAIL  %-24s %v\n      %-24s way out: %s\n", check.name, err, "", check.wayOut)
			continue
		}
		fmt.Fprintf(w, "ok    %-24s %s\n", check.name, note)
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

func (d *doctor) kafkaAnswers(ctx context.Context) (string, error) {
	return fmt.Sprint(d.Brokers), kafka.WaitReady(ctx, d.Brokers)
}

func (d *doctor) topicsFit(ctx context.Context) (string, error) {
	look, err := kafka.NewInspector(d.Brokers)
	if err != nil {
		return "", err
	}
	defer look.Close()
	topics := kafka.Prefixed(d.TopicPrefix)
	var records int64
	for _, t := range []struct {
		name  string
		count int
	}{{topics.Timeline, partition.Count}, {topics.Features, partition.Count}, {topics.Schemas, 1}, {topics.DeadLetters, 1}} {
		ends, err := look.Ends(ctx, t.name)
		if err != nil {
			return "", err
		}
		if len(ends) != t.count {
			return "", fmt.Errorf("topic %s has %d partitions, not %d", t.name, len(ends), t.count)
		}
		if t.name == topics.DeadLetters {
			records = int64(ends[0])
		}
	}
	return fmt.Sprintf("%d partitions; %d dead letters", partition.Count, records), nil
}

func (d *doctor) etcdAnswers(ctx context.Context) (string, error) {
	cl, err := d.openCluster(ctx, "")
	if err != nil {
		return "", err
	}
	return "cluster " + d.Cluster, cl.Close()
}

func (d *doctor) assigned(ctx context.Context) (string, error) {
	m, err := d.clusterMap(ctx)
	if err != nil {
		return "", err
	}
	if m.Epoch() == 0 {
		return "", errors.New("the cluster has no assignment")
	}
	return fmt.Sprintf("epoch %d, %d nodes", m.Epoch(), len(m.Nodes())), nil
}

func (d *doctor) nodesReady(ctx context.Context) (string, error) {
	m, err := d.clusterMap(ctx)
	if err != nil {
		return "", err
	}
	var errs []error
	replicas := 0
	for _, n := range m.Nodes() {
		hosted := m.Hosted(n.ID)
		if !m.Alive(n.ID) {
			errs = append(errs, fmt.Errorf("%s is not alive", n.ID))
			continue
		}
		if behind := hosted.Minus(m.Ready(n.ID)); behind.Len() > 0 {
			errs = append(errs, fmt.Errorf("%s: %d of %d partitions are behind", n.ID, behind.Len(), hosted.Len()))
		}
		replicas += hosted.Len()
	}
	return fmt.Sprintf("%d replicas", replicas), errors.Join(errs...)
}

func (d *doctor) brokerAnswers(ctx context.Context) (string, error) {
	c, err := client.Dial(d.grpc)
	if err != nil {
		return "", err
	}
	defer c.Close()
	began := time.Now()
	resp, err := c.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "doctor"}, Entities: []string{"member:1"}})
	if err != nil {
		return "", err
	}
	if len(resp.Coverage.GetMissing()) > 0 {
		return "", fmt.Errorf("the answer misses partition %d: %s", resp.Coverage.Missing[0].Partition, resp.Coverage.Missing[0].Reason)
	}
	return fmt.Sprintf("in %.1f ms", float64(time.Since(began).Microseconds())/1000), nil
}
