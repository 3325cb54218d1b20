package random

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/figure"
)

// ratio is the CPU time of node and broker together, divided by the baseline's. nodeRatio is
// the node's alone, since the baseline serves no calls and so has no part like the broker.
func (r *result) ratio() float64     { return float64(r.node+r.broker) / float64(max(1, r.baseline)) }
func (r *result) nodeRatio() float64 { return float64(r.node) / float64(max(1, r.baseline)) }

// line returns the result as a line of text.
func (r *result) line() string {
	return fmt.Sprintf("%.0f candidates, %.0f %% pass, %s; CPU a query: node %s, broker %s (of a question about nobody both %s), baseline %s; ratio %.2f, of the node %.2f",
		r.candidates, 100*r.passes, r.execution, rig.US(r.node), rig.US(r.broker), rig.US(r.calls), rig.US(r.baseline), r.ratio(), r.nodeRatio())
}

// report prints the table, the highest ratio first, and the figures. It sorts all.
func (c *Config) report(all []result) error {
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b result) int { return cmp.Compare(b.ratio(), a.ratio()) })
	fmt.Fprintf(c.Out, "\n%d random workloads, the worst first; processor: %s\n", len(all), figure.Processor())
	fmt.Fprintf(c.Out, "CPU time of a query, of node and broker without what they use when nobody asks, against a baseline of plain Go in one process; every answer is the same\n\n")
	t := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "seed\tcandidates\tpass\tnode\tbroker\tof nobody\tbaseline\tratio\tof the node\tmemory\tbaseline's\t")
	for i := range all {
		r := &all[i]
		fmt.Fprintf(t, "%d\t%.0f\t%.0f %%\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%d MiB\t%d MiB\t\n", r.seed, r.candidates, 100*r.passes, rig.US(r.node), rig.US(r.broker), rig.US(r.calls), rig.US(r.baseline),
			r.ratio(), r.nodeRatio(), r.memory>>20, r.baselineMemory>>20)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.Out)
	for i := range all {
		fmt.Fprintf(c.Out, "seed %d: %s\n", all[i].seed, strings.Join(all[i].summary, "; "))
	}
	fmt.Fprintln(c.Out)
	nodes := make([]float64, len(all))
	for i := range all {
		nodes[i] = all[i].nodeRatio()
	}
	ratios, calls := make([]float64, len(all)), make([]float64, len(all))
	for i := range all {
		ratios[i] = all[i].ratio()
		calls[i] = float64(all[i].calls) / float64(max(1, all[i].baseline))
	}
	least := slices.MinFunc(all, func(a, b result) int { return cmp.Compare(a.candidates, b.candidates) })
	figure.Print("random_candidates_least", least.candidates, "records")
	figure.Print("random_seeds", float64(len(all)), "workloads")
	figure.Print("random_worst", all[0].ratio(), "x")
	figure.Print("random_worst_seed", float64(all[0].seed), "seed")
	figure.Print("random_median", median(ratios), "x")
	figure.Print("random_calls_median", median(calls), "x") // what a question about nobody takes, in the same unit
	figure.Print("random_node_worst", slices.Max(nodes), "x")
	figure.Print("random_node_median", median(nodes), "x")
	return nil
}

// median returns the middle value, or the mean of the two middle ones.
func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}
