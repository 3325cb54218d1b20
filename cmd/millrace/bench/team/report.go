package team

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/figure"
)

// perQuery returns the CPU time of a query, of all roles and the client together, without the
// log and etcd.
func (res *result) perQuery() time.Duration {
	all := res.client
	for _, d := range res.cpu {
		all += d
	}
	return all / time.Duration(max(1, res.queries))
}

// qps returns how many queries a second two clients had answered.
func (res *result) qps() float64 { return float64(res.queries) / res.elapsed.Seconds() }

// parts returns the CPU time of a query by role, as text, in microseconds.
func (res *result) parts() string {
	n := time.Duration(max(1, res.queries))
	var parts []string
	for i, role := range res.roles {
		parts = append(parts, fmt.Sprintf("%s %.0f", role.name, rig.Micros(res.cpu[i]/n)))
	}
	return strings.Join(append(parts, fmt.Sprintf("client %.0f", rig.Micros(res.client/n))), ", ")
}

// report prints the table and the figures. all[0] is Millrace. If an answer was wrong, report
// returns an error after that.
func (r *run) report(backing fmt.Stringer, besides overhead, all []*result) error {
	t := r.truth
	n := len(t.candidates)
	sum := 0
	for _, c := range t.candidates {
		sum += c
	}
	candidates, p99, passes := float64(sum)/float64(n), t.candidates[min(n-1, n*99/100)], float64(t.scored)/float64(max(1, sum))
	fmt.Fprintf(r.Out, "\n%s: %d entities; a mean query is of %.0f timelines and %.0f candidates (p99 %d), of which %.0f %% pass the filter\n", r.label(), r.Entities, r.w.timelines(), candidates, p99, 100*passes)
	fmt.Fprintf(r.Out, "processor: %s; with %s\n\n", figure.Processor(), backing)
	w := tabwriter.NewWriter(r.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\t1 client: p50\tp99\t2 clients\tCPU a query\tof it, us\tmemory\texact\t")
	for _, res := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f/s\t%s\t%s\t%.0f MiB\t%d of %d\t\n", res.name, rig.MS(res.one.At(0.5)), rig.MS(res.one.At(0.99)), res.qps(), rig.US(res.perQuery()),
			res.parts(), float64(res.memory)/(1<<20), res.exact, len(r.w.asked))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range r.skipped {
		fmt.Fprintln(r.Out, s)
	}
	ours := all[0]
	fmt.Fprintf(r.Out, "\nWhen nobody asks Millrace takes %.1f %% of a processor for the node and %.1f %% for the broker", 100*besides.node, 100*besides.broker)
	if math.IsNaN(besides.log) {
		fmt.Fprintln(r.Out, "; of the log and etcd it is not known.")
	} else {
		fmt.Fprintf(r.Out, ", and %.1f %% for the log and etcd; those took %.0f us a query, which are not in the table.\n", 100*besides.log, rig.Micros(ours.log/time.Duration(max(1, ours.queries))))
	}
	fmt.Fprintf(r.Out, "A question about an entity that nobody knows takes %s of node, broker and client.\n", rig.US(besides.calls))
	fmt.Fprintln(r.Out)
	r.figures(candidates, float64(p99), passes, besides, all)
	for _, res := range all {
		if res.wrong != "" {
			return fmt.Errorf("%s answered %d of %d questions otherwise than the oracle; the first:\n%s", res.name, len(r.w.asked)-res.exact, len(r.w.asked), res.wrong)
		}
	}
	return nil
}

// figures prints a line of JSON for each figure.
func (r *run) figures(candidates, p99, passes float64, besides overhead, all []*result) {
	name := func(s string) string { return r.label() + "_" + s }
	figure.Print(name("candidates"), candidates, "records")
	figure.Print(name("candidates_p99"), p99, "records")
	figure.Print(name("passes"), passes, "of 1")
	figure.Print(name("idle_node_percent"), 100*besides.node, "% of a processor")
	figure.Print(name("idle_broker_percent"), 100*besides.broker, "% of a processor")
	if !math.IsNaN(besides.log) {
		figure.Print(name("idle_log_percent"), 100*besides.log, "% of a processor")
	}
	ours := all[0]
	for _, res := range all {
		figure.Print(name(res.label+"_inexact"), float64(len(r.w.asked)-res.exact), "answers")
		figure.Print(name(res.label+"_cpu_per_query_us"), rig.Micros(res.perQuery()), "us")
		figure.Print(name(res.label+"_p50_ms"), rig.Millis(res.one.At(0.5)), "ms")
		figure.Print(name(res.label+"_p99_ms"), rig.Millis(res.one.At(0.99)), "ms")
		figure.Print(name(res.label+"_qps"), res.qps(), "queries/s")
		figure.Print(name(res.label+"_memory_mib"), float64(res.memory)/(1<<20), "MiB")
	}
	for _, res := range all[1:] {
		ratio := func(what string, ours, theirs float64) {
			if theirs > 0 { // 0: too little to measure
				figure.Print(name(what+"_vs_"+res.label), ours/theirs, "x")
			}
		}
		ratio("calls", float64(besides.calls), float64(res.perQuery()))
		ratio("cpu", float64(ours.perQuery()), float64(res.perQuery()))
		ratio("p50", float64(ours.one.At(0.5)), float64(res.one.At(0.5)))
		ratio("p99", float64(ours.one.At(0.99)), float64(res.one.At(0.99)))
		ratio("memory", float64(ours.memory), float64(res.memory))
		ratio("qps", ours.qps(), res.qps())
	}
}
