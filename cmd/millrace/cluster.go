package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

func clusterCommand() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Show the cluster, give it its first assignment, or restore what etcd lost"}
	cm := clusterFlagsOf(c.PersistentFlags())
	c.AddCommand(clusterShow(cm), clusterAssign(cm), clusterRestore(cm))
	return c
}

// clusterFlagsOf adds the flags that name a cluster.
func clusterFlagsOf(f *pflag.FlagSet) *Common {
	var cm Common
	f.StringSliceVar(&cm.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	f.StringVar(&cm.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	return &cm
}

// clusterMap reads the cluster's map once.
func (c *Common) clusterMap(ctx context.Context) (*cluster.Map, error) {
	cl, err := c.openCluster(ctx, "")
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	w, err := cl.Watch(ctx)
	if err != nil {
		return nil, err
	}
	return w.Current(), nil
}

func clusterShow(cm *Common) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Nodes, what they host, and what is ready",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m, err := cm.clusterMap(c.Context())
			if err != nil {
				return err
			}
			t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(t, "assignment epoch %d, %d partitions\n\nNODE\tADDRESS\tZONE\tALIVE\tHOSTS\tREADY\tBEHIND\tLAG\n", m.Epoch(), partition.Count)
			for _, n := range m.Nodes() {
				hosted := m.Hosted(n.ID)
				ready := hosted.And(m.Ready(n.ID))
				lag := m.Lag(n.ID)
				fmt.Fprintf(t, "%s\t%s\t%s\t%t\t%d\t%d\t%d\t%.0f s\n", n.ID, n.Addr, n.Zone, m.Alive(n.ID), hosted.Len(), ready.Len(), lag.Behind.Len(), lag.Seconds)
			}
			return t.Flush()
		},
	}
}

func clusterAssign(cm *Common) *cobra.Command {
	var nodes []string
	var replicas int
	c := &cobra.Command{
		Use:   "assign --nodes a,b,c --replicas 2",
		Short: "Spread all partitions over nodes, in a cluster that has no assignment yet",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.openCluster(c.Context(), "")
			if err != nil {
				return err
			}
			defer cl.Close()
			ids := make([]millrace.NodeID, len(nodes))
			for i, n := range nodes {
				ids[i] = millrace.NodeID(strings.TrimSpace(n))
			}
			a, err := cluster.Spread(ids, replicas)
			if err != nil {
				return err
			}
			if err := cl.Assign(c.Context(), a); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%d partitions on %d nodes, %d replicas each\n", partition.Count, len(ids), replicas)
			return nil
		},
	}
	c.Flags().StringSliceVar(&nodes, "nodes", nil, "ids of the index nodes")
	c.Flags().IntVar(&replicas, "replicas", 2, "replicas of each partition")
	return c
}

func clusterRestore(cm *Common) *cobra.Command {
	var data []string
	c := &cobra.Command{
		Use:   "restore --data DIR,DIR",
		Short: "Bring back what etcd lost, from what brokers and index nodes kept of it",
		Long: `Brings back what etcd lost, from what brokers and index nodes kept of it in
their data directories, the newest of each thing. Brokers keep feed definitions
and the key of page tokens, index nodes the list of models; so name one of each.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.openCluster(c.Context(), "")
			if err != nil {
				return err
			}
			defer cl.Close()
			dirs := make([]string, len(data))
			for i, d := range data {
				dirs[i] = lastGood(d)
			}
			r, err := cl.Restore(c.Context(), dirs...)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "assignment epoch %d, %d documents, %d secrets\n", r.Epoch, r.Documents, r.Secrets)
			return nil
		},
	}
	c.Flags().StringSliceVar(&data, "data", nil, "data directories (data) of a broker and an index node")
	return c
}
