package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// Compare says which two binaries to compare, and when head counts as worse than base.
type Compare struct {
	Config           // the load: Shape, Entities, Viewers, Duration, Seed, Progress, Out
	Base     string  // the path of the binary to compare with
	Head     string  // the path of the other one; "": this binary
	Rounds   int     // how many rounds; each measures both binaries
	Slack    float64 // the share by which head may need more CPU time, such as 0.05
	SlackP99 float64 // the share by which head's p99 may be longer
}

const (
	compareAlpha  = 0.05  // intervals are of the confidence 1 - compareAlpha
	leastRounds   = 6     // fewer rounds give no such interval
	failuresSlack = 0.001 // the share of questions that head may fail to answer beyond base's share
)

// Validate returns all faults, joined, or nil.
func (c *Compare) Validate() error {
	errs := []error{c.Config.Validate()}
	if c.Rounds < leastRounds {
		errs = append(errs, fmt.Errorf("rounds: %d say nothing; want at least %d", c.Rounds, leastRounds))
	}
	for name, file := range map[string]string{"base": c.Base, "head": c.Head} {
		if _, err := os.Stat(file); err != nil && file != "" {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if !(c.Slack >= 0) || !(c.SlackP99 >= 0) {
		errs = append(errs, fmt.Errorf("slack: %v, slack-p99: %v; want shares that are not negative", c.Slack, c.SlackP99))
	}
	return errors.Join(errs...)
}

// turn is what was measured of one binary in one round.
type turn struct {
	// CPU time: of the partitioner and of the index node for a record, of the broker and of
	// the nodes for a query.
	partition, ingest, broker, nodes time.Duration
	p99                              time.Duration // of the questions that arrived at the rate
	asked, failed                    int           // those questions; failed: refused or not answered in time
	execution                        string        // how the model ran: generated or interpreted
	digests                          []uint64      // of the answer to each question
}

// query returns the CPU time of all roles for a query.
func (t *turn) query() time.Duration { return t.broker + t.nodes }

// comparison is a run of [Compare].
type comparison struct {
	*Compare
	family  *rig.Family
	backing *rig.Backing
	world   *world
	records int     // in the timeline topic, and as many in the content topic
	rate    float64 // questions a second that arrive, the same for both: half of what one client gets answered; 0: not known yet
	turns   int     // how many sides were started, in all rounds; it numbers their directories
}

// RunCompare measures two binaries in turns under the same load, which this process makes,
// and prints a table and figures. The error says that a run failed, that the two cannot be
// compared, or that head has lost: the whole confidence interval of some measure is above
// its slack.
func RunCompare(ctx context.Context, c Compare) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	c.defaults()
	w, err := newWorld(c.Config)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "millrace-compare-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &comparison{Compare: &c, family: rig.NewFamily(ctx, dir), world: w}
	defer func() { err = errors.Join(err, r.family.Close()) }()
	if r.backing, err = rig.StartBacking(r.family); err != nil {
		return err
	}
	if err := fill(r.family.Ctx, &c.Config, w, r.backing, filepath.Join(dir, "filled")); err != nil {
		return err
	}
	if r.records, err = r.backing.FillContent(r.family.Ctx, schemas.Activity(), w.bodies(new(atomic.Int64))); err != nil {
		return err
	}
	base, head, err := r.all()
	if err != nil {
		return cmp.Or(context.Cause(r.family.Ctx), err) // an ended process explains the rest
	}
	return r.report(base, head)
}

// side is one of the two binaries in a round.
type side struct {
	name, binary, own string // own: the name of its directory, and the beginning of its files' names
	d                 *driver
	cpu               cpuTime  // used while one client asked
	queries           int      // how many that client had answered
	arrived           arrivals // what became of the questions that arrived at the rate
	turn                       // the results of the round
}

// all measures all rounds. A round before them finds the rate at which questions arrive;
// it is not counted, because the machine is still cold.
func (r *comparison) all() (base, head []*turn, err error) {
	for i := range r.Rounds + 1 {
		sides := [2]*side{{name: "base", binary: r.Base}, {name: "head", binary: r.Head}}
		if err := r.round(sides, i%2 == 1); err != nil {
			return nil, nil, err
		}
		if i == 0 {
			continue
		}
		for _, s := range sides {
			r.say("round %d, %s: CPU a query %s (broker %s), p99 %s, %d of %d not answered; CPU a record %v, partitioned %v",
				i, s.name, rig.US(s.query()), rig.US(s.broker), rig.MS(s.p99), s.failed, s.asked, s.ingest, s.partition)
		}
		base, head = append(base, &sides[0].turn), append(head, &sides[1].turn)
	}
	return base, head, nil
}

// round starts the roles of both sides with empty stores, and asks both in turns. The turns
// are short, so that whatever else the machine does meets both sides alike. swapped says
// that the second side goes first, as it does every other round.
func (r *comparison) round(sides [2]*side, swapped bool) (err error) {
	before := r.family.Size()
	first, second := sides[0], sides[1]
	if swapped {
		first, second = second, first
	}
	for _, s := range []*side{first, second} {
		if err := r.start(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		defer s.d.run.Conn.Close()
	}
	turns := func(do func(*side) error) error {
		for i := range quartets * 4 {
			s := []*side{first, second, second, first}[i%4]
			if err := do(s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	}
	if err := turns(r.closed); err != nil { // warms both up, and gives the rate
		return err
	}
	if r.rate == 0 {
		r.rate = float64(first.queries+second.queries) / r.Duration.Seconds() / 2 / 2
	}
	for _, s := range sides {
		s.cpu, s.queries = cpuTime{}, 0
	}
	if err := errors.Join(turns(r.closed), turns(r.open)); err != nil {
		return err
	}
	for _, s := range sides {
		each := s.cpu.each(s.queries)
		s.broker, s.nodes = each.broker, each.nodes
		slices.Sort(s.arrived.took)
		s.p99, s.failed = s.arrived.took.At(0.99), s.arrived.refused+s.arrived.missed
		s.asked = len(s.arrived.took) + s.failed
	}
	err = r.family.End(before)
	for _, s := range sides { // their processes have ended
		err = errors.Join(err, os.RemoveAll(filepath.Join(r.family.Dir, s.own)))
	}
	return err
}

// quartets is how many times the sides take the turns A, B, B, A.
const quartets = 4

// slice returns how long a turn is: each side has 2*quartets turns in Duration.
func (r *comparison) slice() time.Duration { return r.Duration / (2 * quartets) }

// start has a side partition the content topic, then starts its cluster, which reads the
// timeline topic, and checks its answers. It notes the CPU time of both for a record.
func (r *comparison) start(s *side) error {
	ctx := r.family.Ctx
	r.turns++
	s.own = fmt.Sprintf("%s-%d", s.name, r.turns)
	each := func(cpu time.Duration) time.Duration { return cpu / time.Duration(r.records) }
	cpu, err := r.family.Partition(r.backing, s.binary, s.own+"-partitioner")
	if err != nil {
		return err
	}
	s.partition = each(cpu)
	run, err := r.family.StartCluster(r.backing, rig.Setup{
		Name: s.own, Nodes: 1, Replicas: 1, Binary: s.binary,
		Packs: []*modelpack.Pack{r.world.pack}, Feeds: map[string][]byte{r.world.feed.Name: r.world.feedText},
	})
	if err != nil {
		return err
	}
	s.d = &driver{run: run, world: r.world}
	used, err := cpuOf(run)
	if err != nil {
		return err
	}
	s.ingest = each(used.nodes)
	if err := run.Settle(ctx, func(ctx context.Context) error { _, err := s.d.get(ctx, r.world.asked[0].req); return err }); err != nil {
		return err
	}
	var seen result
	err = s.d.check(ctx, nil, &seen)
	s.execution = seen.execution
	for _, right := range s.d.right {
		s.digests = append(s.digests, right.digest)
	}
	return err
}

// closed has one client ask for a slice, one question after the other. It measures the CPU
// time of queries.
func (r *comparison) closed(s *side) error {
	before, err := cpuOf(s.d.run)
	if err != nil {
		return err
	}
	l, _, err := s.d.closed(r.family.Ctx, 1, r.slice())
	if err != nil {
		return err
	}
	after, err := cpuOf(s.d.run)
	used := after.less(before)
	s.cpu.broker, s.cpu.nodes, s.queries = s.cpu.broker+used.broker, s.cpu.nodes+used.nodes, s.queries+len(l)
	return err
}

// open has questions arrive at the rate for a slice. It measures how long they take.
func (r *comparison) open(s *side) error {
	got, err := s.d.open(r.family.Ctx, r.rate, r.slice())
	s.arrived.took = append(s.arrived.took, got.took...)
	s.arrived.refused, s.arrived.missed = s.arrived.refused+got.refused, s.arrived.missed+got.missed
	return err
}

// ratio is one measure in which head is compared with base, round by round.
type ratio struct {
	name  string
	of    func(*turn) float64 // the measure in unit; larger is worse
	unit  string
	slack float64 // the share by which head's may be larger
}

func (r *comparison) ratios() []ratio {
	micros := func(of func(*turn) time.Duration) func(*turn) float64 {
		return func(t *turn) float64 { return rig.Micros(of(t)) }
	}
	return []ratio{
		{"cpu_per_query", micros((*turn).query), "us", r.Slack},
		{"cpu_per_query_broker", micros(func(t *turn) time.Duration { return t.broker }), "us", r.Slack},
		{"cpu_per_record_indexed", micros(func(t *turn) time.Duration { return t.ingest }), "us", r.Slack},
		{"cpu_per_record_partitioned", micros(func(t *turn) time.Duration { return t.partition }), "us", r.Slack},
		{"p99", func(t *turn) float64 { return rig.Millis(t.p99) }, "ms", r.SlackP99},
	}
}

// report prints what was found. The error says by which measures head has lost, or that the
// two cannot be compared.
func (r *comparison) report(base, head []*turn) error {
	if base[0].execution != head[0].execution {
		return fmt.Errorf("not comparable: the model of this benchmark is %s by base and %s by head, since it changed between them; compare commits that both have it", base[0].execution, head[0].execution)
	}
	var lost []string
	t := tabwriter.NewWriter(r.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(r.Out, "\n%s, %d entities, %d records, %.0f questions/s arriving; %d rounds\n\n", r.world.label, r.world.entities, r.records, r.rate, len(base))
	fmt.Fprintln(t, "\tbase\thead\thead/base\tis within\tmay be\t")
	for _, m := range r.ratios() {
		value, in, err := m.compare(base, head)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		said := ""
		if in.Above(1 + m.slack) {
			lost, said = append(lost, fmt.Sprintf("%s is %.2f times base's (%.2f to %.2f), and may be %.2f", m.name, value, in.Low, in.High, 1+m.slack)), "  LOST"
		}
		fmt.Fprintf(t, "%s\t%.1f %s\t%.1f %s\t%.3f\t%.3f to %.3f\t%.2f\t%s\n", m.name, middle(base, m.of), m.unit, middle(head, m.of), m.unit, value, in.Low, in.High, 1+m.slack, said)
		figure.Print("compare_"+m.name, value, "x")
	}
	more, in, err := moreFailures(base, head)
	if err != nil {
		return err
	}
	said := ""
	if in.Above(failuresSlack) {
		lost, said = append(lost, fmt.Sprintf("%.2f %% more questions are not answered in time (%.2f to %.2f)", 100*more, 100*in.Low, 100*in.High)), "  LOST"
	}
	fmt.Fprintf(t, "not answered\t%.2f %%\t%.2f %%\t%+.2f %%\t%.2f to %.2f %%\t%.2f %%\t%s\n", 100*middle(base, (*turn).failures), 100*middle(head, (*turn).failures), 100*more, 100*in.Low, 100*in.High, 100*failuresSlack, said)
	figure.Print("compare_not_answered", more, "of 1")
	if err := t.Flush(); err != nil {
		return err
	}
	if !slices.Equal(base[0].digests, head[0].digests) {
		fmt.Fprintln(r.Out, "\nThe answers differ: the two may not have done the same work.")
	}
	if lost == nil {
		return nil
	}
	return errors.New("head has lost: " + strings.Join(lost, "; "))
}

// compare returns the ratio head/base and its confidence interval, by the signed-rank test
// over the pairs of all rounds.
func (m *ratio) compare(base, head []*turn) (value float64, in stats.Interval, err error) {
	var logs []float64
	for i := range base {
		logs = append(logs, math.Log(m.of(head[i])/m.of(base[i])))
	}
	value, in, err = stats.SignedRank(logs, compareAlpha)
	return math.Exp(value), stats.Interval{Low: math.Exp(in.Low), High: math.Exp(in.High)}, err
}

// failures is the share of questions that were refused or not answered in time.
// Any other failure ends the run.
func (t *turn) failures() float64 { return float64(t.failed) / float64(max(1, t.asked)) }

// moreFailures returns by how much head's share of failures exceeds base's, and the
// confidence interval.
func moreFailures(base, head []*turn) (float64, stats.Interval, error) {
	var more []float64
	for i := range base {
		more = append(more, head[i].failures()-base[i].failures())
	}
	return stats.SignedRank(more, compareAlpha)
}

// middle returns the median of a measure, the upper one of two.
func middle(all []*turn, of func(*turn) float64) float64 {
	var values []float64
	for _, t := range all {
		values = append(values, of(t))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
