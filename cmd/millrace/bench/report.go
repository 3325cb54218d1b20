package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/figure"
)

// report prints a table with a column for each cluster, and then the figures of each.
func report(c *Config, w *world, all []result) error {
	features, inModel := len(w.model.Spec().Features), 0
	for _, f := range w.model.Spec().Features {
		inModel += strings.Count(f.Source, "record.")
	}
	inFilter := strings.Count(w.feed.Filter, "record.")
	t := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(label string, value func(r *result) string) {
		fmt.Fprint(t, label, "\t")
		for i := range all {
			fmt.Fprint(t, value(&all[i]), "\t")
		}
		fmt.Fprintln(t)
	}
	reads := func(r *result) float64 {
		return float64(inFilter)*r.candidates + float64(inModel)*r.scored
	}
	fmt.Fprintf(c.Out, "\n%s: %.0f timelines of %d entities a query, model of %d features, top %d of distinct objects\n\n", w.label, w.timelines(), w.entities, features, w.feed.Limit)
	line("nodes", func(r *result) string { return fmt.Sprint(r.nodes) })
	line("cores of a node", func(r *result) string { return fmt.Sprint(r.cores) })
	line("candidates a query", func(r *result) string { return fmt.Sprintf("%.0f", r.candidates) })
	line("the filter passes", func(r *result) string { return fmt.Sprintf("%.1f %%", 100*r.scored/r.candidates) })
	line("field reads a query", func(r *result) string { return fmt.Sprintf("%.0f", reads(r)) })
	line("model code", func(r *result) string { return r.execution })
	line("answers the oracle gave too", func(r *result) string { return fmt.Sprint(r.exact) })
	line("1 client: p50", func(r *result) string { return rig.MS(r.one.At(0.5)) })
	line("p99", func(r *result) string { return rig.MS(r.one.At(0.99)) })
	line("CPU a query, broker", func(r *result) string { return rig.US(r.oneCPU.broker) })
	line("nodes", func(r *result) string { return rig.US(r.oneCPU.nodes) })
	line("client", func(r *result) string { return rig.US(r.oneCPU.client) })
	line("most answers", func(r *result) string { return fmt.Sprintf("%.0f/s", r.most) })
	line("clients", func(r *result) string { return fmt.Sprint(r.clients) })
	line("CPU a query, broker", func(r *result) string { return rig.US(r.fullCPU.broker) })
	line("nodes", func(r *result) string { return rig.US(r.fullCPU.nodes) })
	line("client", func(r *result) string { return rig.US(r.fullCPU.client) })
	line("saturation", func(r *result) string { return fmt.Sprintf("%.0f/s", r.saturation) })
	line("half of it: p50", func(r *result) string { return rig.MS(r.half.took.At(0.5)) })
	line("p99", func(r *result) string { return rig.MS(r.half.took.At(0.99)) })
	line("p99 of the median second", func(r *result) string { return rig.MS(r.half.usual(0.99)) })
	line("p99.9", func(r *result) string { return rig.MS(r.half.took.At(0.999)) })
	line("sent late, p99", func(r *result) string { return rig.MS(r.half.late.At(0.99)) })
	line("refused, not in time", func(r *result) string { return fmt.Sprintf("%d, %d", r.half.refused, r.half.missed) })
	line("queries", func(r *result) string { return fmt.Sprint(len(r.half.took)) })
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.Out)
	for i := range all {
		r := &all[i]
		name := func(s string) string { return fmt.Sprintf("%s_%s_%d", w.label, s, r.nodes) }
		figure.Print(name("candidates"), r.candidates, "records")
		figure.Print(name("passes"), r.scored/r.candidates, "of 1")
		figure.Print(name("field_reads"), reads(r), "fields")
		figure.Print(name("oracle_equal"), float64(r.exact), "answers")
		figure.Print(name("p50_one_client_ms"), rig.Millis(r.one.At(0.5)), "ms")
		figure.Print(name("p99_one_client_ms"), rig.Millis(r.one.At(0.99)), "ms")
		figure.Print(name("cpu_per_query_us"), rig.Micros(r.oneCPU.served()), "us")
		figure.Print(name("cpu_per_query_broker_us"), rig.Micros(r.oneCPU.broker), "us")
		figure.Print(name("cpu_per_query_nodes_us"), rig.Micros(r.oneCPU.nodes), "us")
		figure.Print(name("cpu_per_query_saturated_us"), rig.Micros(r.fullCPU.served()), "us")
		figure.Print(name("most_qps"), r.most, "queries/s")
		figure.Print(name("saturation_qps"), r.saturation, "queries/s")
		figure.Print(name("p50_half_saturation_ms"), rig.Millis(r.half.took.At(0.5)), "ms")
		figure.Print(name("p99_half_saturation_ms"), rig.Millis(r.half.took.At(0.99)), "ms")
		figure.Print(name("p99_half_saturation_median_second_ms"), rig.Millis(r.half.usual(0.99)), "ms")
		figure.Print(name("refused_half_saturation"), float64(r.half.refused+r.half.missed), "queries")
		figure.Print(name("late_p99_half_saturation_ms"), rig.Millis(r.half.late.At(0.99)), "ms")
		figure.Print(name("p999_half_saturation_ms"), rig.Millis(r.half.took.At(0.999)), "ms")
	}
	return nil
}
