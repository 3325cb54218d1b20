package coordinator

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	leadsDesc  = prometheus.NewDesc("millrace_coordinator_leads", "1 while this coordinator leads. Of all of them together it should be 1.", nil, nil)
	faultDesc  = prometheus.NewDesc("millrace_coordinator_fault", "1 while the coordinator that leads does not get on, with moves or with experiments, as when etcd is away.", nil, nil)
	movesDesc  = prometheus.NewDesc("millrace_coordinator_moves", "Moves of the last plan, by state: waiting, building, done. Of the coordinator that leads.", []string{"state"}, nil)
	leftDesc   = prometheus.NewDesc("millrace_coordinator_plan_bytes_left", "Bytes of the last plan's moves that are not done. Of the coordinator that leads.", nil, nil)
	ageDesc    = prometheus.NewDesc("millrace_coordinator_plan_seconds", "For how long a plan has been under way, paused or not; 0 without one. Of the coordinator that leads.", nil, nil)
	goneDesc   = prometheus.NewDesc("millrace_coordinator_gone_nodes", "Nodes that are assigned partitions and are not there. Of the coordinator that leads.", nil, nil)
	pausedDesc = prometheus.NewDesc("millrace_coordinator_experiment_paused", "1 for each experiment that was paused because of a guard, until a person changes it. Of the coordinator that leads.", []string{"experiment"}, nil)
	seenDesc   = prometheus.NewDesc("millrace_coordinator_evidence_seconds", "Seconds since all that the topic of exposures had was last known to have been read: how old what guards and ramps go by is. 0 while no experiment has guards. Of the coordinator that leads, if its configuration has exposures.", nil, nil)
	actsDesc   = prometheus.NewDesc("millrace_coordinator_outcomes_seconds", "Seconds since all that the topic of an experiment's outcomes had was last known to have been read, of experiments with guards on what viewers do. Of the coordinator that leads.", []string{"experiment"}, nil)
	newestDesc = prometheus.NewDesc("millrace_coordinator_outcomes_newest_seconds", "How old the newest outcome is that belongs to what was shown, of experiments with guards on what viewers do; where none has come, since when there could be some. Of the coordinator that leads.", []string{"experiment"}, nil)
	unitsDesc  = prometheus.NewDesc("millrace_coordinator_units", "Units, such as viewers, that are kept of experiments with guards, of at most as many as millrace_coordinator_units_most: those that met a variant, and those that did something, each. Beyond it experiments are NOT WATCHED. Of the coordinator that leads.", nil, nil)
	mostDesc   = prometheus.NewDesc("millrace_coordinator_units_most", "How many units of experiments with guards there is room for: a third of the memory of the machine, or of its control group, and 10,000,000 at most. Of the coordinator that leads.", nil, nil)
	alarmDesc  = prometheus.NewDesc("millrace_coordinator_alarm", "1 for each thing that a person has to see to, by its word: mass_loss, no_repair, replicas_differ. Of the coordinator that leads.", []string{"what"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *Coordinator) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leadsDesc, faultDesc, movesDesc, leftDesc, ageDesc, goneDesc, pausedDesc, seenDesc, actsDesc, newestDesc, unitsDesc, mostDesc, alarmDesc} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Coordinator) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	leads, fault, s, paused, seen, acts, units := c.mu.leads, cmp.Or(c.mu.fault, c.mu.unguarded), c.mu.last, c.mu.paused, c.mu.seen.whole, c.mu.acts, c.mu.units
	c.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	is := map[bool]float64{true: 1}
	gauge(leadsDesc, is[leads])
	gauge(faultDesc, is[fault != nil])
	for _, name := range paused {
		gauge(pausedDesc, 1, name)
	}
	if !seen.IsZero() {
		gauge(seenDesc, time.Since(seen).Seconds())
		gauge(unitsDesc, float64(units))
		gauge(mostDesc, float64(c.cfg.maxUnits))
	}
	for _, a := range acts {
		gauge(actsDesc, time.Since(a.whole).Seconds(), a.experiment)
		gauge(newestDesc, time.Since(a.newest).Seconds(), a.experiment)
	}
	if s == nil {
		return
	}
	now := time.Now()
	pr := s.Progress(now)
	for _, state := range []MoveState{Waiting, Building, Moved} {
		gauge(movesDesc, float64(pr.Moves[state]), string(state))
	}
	age := 0.0
	if s.Plan != nil && !s.Plan.Status.Ended() {
		age = now.Sub(s.Plan.Created).Seconds()
	}
	gauge(leftDesc, float64(pr.Bytes-pr.Done))
	gauge(ageDesc, age)
	gauge(goneDesc, float64(len(s.Notes.Gone)))
	for _, a := range s.Notes.Alarms {
		gauge(alarmDesc, 1, a.What)
	}
}
