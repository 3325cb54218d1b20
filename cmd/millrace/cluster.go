package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

func clusterCommand() *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "Show the cluster, or give it its first assignment"}
	var cm Common
	c.PersistentFlags().StringSliceVar(&cm.Etcd, "etcd", []string{"127.0.0.1:2379"}, "etcd, host:port each")
	c.PersistentFlags().StringVar(&cm.Cluster, "cluster", "millrace", "the cluster's name in etcd")
	c.AddCommand(clusterShow(&cm), clusterAssign(&cm))
	return c
}

func clusterShow(cm *Common) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Nodes, what they host, and what is ready",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cm.openCluster(c.Context(), "")
			if err != nil {
				return err
			}
			defer cl.Close()
			w, err := cl.Watch(c.Context())
			if err != nil {
				return err
			}
			m := w.Current()
			t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(t, "assignment epoch %d, %d partitions\n\nNODE\tADDRESS\tZONE\tALIVE\tHOSTS\tREADY\n", m.Epoch(), partition.Count)
			for _, n := range m.Nodes() {
				hosted := m.Hosted(n.ID)
				ready := hosted.And(m.Ready(n.ID))
				fmt.Fprintf(t, "%s\t%s\t%s\t%t\t%d\t%d\n", n.ID, n.Addr, n.Zone, m.Alive(n.ID), hosted.Len(), ready.Len())
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
