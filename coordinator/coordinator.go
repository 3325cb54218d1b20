package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/digest"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/wait"
)

// Config is what a coordinator works with.
type Config struct {
	Cluster *cluster.Client
	Name    string // of this coordinator, unique in the cluster
	Addr    string // of its admin port, shown to people
	// Grace is how long a node may be gone before its replicas are made
	// elsewhere; default DefaultGrace. RepairOff: they never are.
	Grace     time.Duration
	RepairOff bool
	// DropAfter is how long a node keeps a replica that moved away; default
	// DefaultDropAfter.
	DropAfter time.Duration
	// Limits are those of repairs, and of plans that have none of their own.
	Limits Limits
	// Every is how often it looks at the cluster, besides when something changes; default
	// a second. With nothing under way it looks five times less often.
	Every time.Duration
	// Dial calls nodes, to compare replicas every CompareEvery (default a minute; below
	// 0: never). nil: they are not compared.
	Dial         digest.Dial
	CompareEvery time.Duration
	// Exposures is the evidence by which experiments are ramped and paused. nil: only
	// people change them.
	Exposures Exposures
	// Leans knows the feeds and models that experiments lean on. nil: all answers are
	// evidence.
	Leans Leans
	// Outcomes is further evidence, for experiments with outcomes. nil: none.
	Outcomes Outcomes
	Log      *slog.Logger // nil: slog.Default()

	// at is called at each named step, so that tests can stop there.
	at func(step string)
	// settles is the constant settles, unless a test says otherwise.
	settles time.Duration
	// maxUnits follows from the machine's memory, unless a test says otherwise.
	maxUnits int
	// yields is yieldsAfter, unless a test says otherwise.
	yields time.Duration
}

func (c Config) withDefaults() Config {
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.DropAfter = cmp.Or(c.DropAfter, DefaultDropAfter)
	c.Limits.PerNode = cmp.Or(c.Limits.PerNode, DefaultPerNode)
	c.Every = cmp.Or(c.Every, time.Second)
	c.CompareEvery = cmp.Or(c.CompareEvery, time.Minute)
	c.settles = cmp.Or(c.settles, settles)
	c.yields = cmp.Or(c.yields, yieldsAfter)
	c.maxUnits = cmp.Or(c.maxUnits, unitsIn(memory.Machine()))
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.at == nil {
		c.at = func(string) {}
	}
	return c
}

// The defaults of a [Config]. DefaultPerNode is how many moves to a node are under way at a
// time. It is large because restores of small partitions share flushes of the store.
const (
	DefaultGrace     = time.Minute
	DefaultDropAfter = 10 * time.Minute
	DefaultPerNode   = 48
)

// Validate returns all faults, joined, or nil.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, detail, wayOut string) {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut})
	}
	if c.Cluster == nil {
		bad("etcd", "a coordinator works on a cluster", "say where etcd is")
	}
	if c.Name == "" {
		bad("name", "a coordinator has a name", "give each coordinator of a cluster one of its own")
	}
	if c.Grace < 0 {
		bad("grace", fmt.Sprintf("%s is below zero", c.Grace), "say a time such as 60s")
	}
	if c.DropAfter < 0 {
		bad("drop_after", fmt.Sprintf("%s is below zero", c.DropAfter), "say a time such as 10m")
	}
	return errors.Join(append(errs, c.Limits.validate())...)
}

// validate refuses limits below zero, which would limit nothing.
func (l Limits) validate() error {
	var errs []error
	for _, x := range []struct {
		field string
		limit int64
	}{{"moves_per_node", int64(l.PerNode)}, {"moves_per_second", int64(l.PerSecond)}, {"mib_per_second", l.BytesPerSecond}} {
		if x.limit < 0 {
			errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: x.field, Detail: "a limit is below zero", WayOut: "say 1 or more, or leave it out"})
		}
	}
	return errors.Join(errs...)
}

// Coordinator is one of a cluster's coordinators.
type Coordinator struct {
	cfg Config

	// Only for the goroutine of Run.
	pace  pace
	busy  bool                                                 // something is under way
	gone  map[millrace.NodeID]time.Time                        // nodes seen to be gone, since when
	lost  map[millrace.NodeID]bool                             // those of gone that it has given up
	held  map[millrace.NodeID]map[millrace.Partition]time.Time // replicas that moved away and a node was seen to keep, since when
	since map[string]time.Time                                 // when each alarm was first raised

	yielded time.Time // when it last let another lead; zero: never

	mu struct {
		sync.Mutex
		leads     bool
		fault     error      // why the cluster is not steered now; nil: it is
		last      *Steered   // the state after the last step; nil: none, or it does not lead
		unguarded error      // why experiments are not guarded as they should be
		paused    []string   // experiments that guards have paused
		seen      sight      // how much guards see of exposures
		acts      []actsSeen // how much they see of outcomes
		units     int        // how many units (such as viewers) guards keep, of all experiments together
		differ    differing  // differences between replicas that are not settled
	}
}

// New returns a coordinator. It does nothing before Run.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Coordinator{cfg: cfg.withDefaults()}, nil
}

// Run leads whenever no other coordinator does, until ctx is done. No outage of etcd ends
// it. It returns the error of ctx.
func (c *Coordinator) Run(ctx context.Context) error {
	if c.cfg.Cluster.Dir() != "" { // watching keeps the map in that directory, for a start while etcd is away and for restoring etcd
		if _, err := c.cfg.Cluster.Watch(ctx); err != nil {
			return ctx.Err()
		}
	}
	watched, err := c.experiments(ctx)
	if err != nil {
		return ctx.Err() // ctx, or the client, has ended
	}
	for ctx.Err() == nil {
		lead, err := c.cfg.Cluster.Lead(ctx, cluster.Leader{Name: c.cfg.Name, Addr: c.cfg.Addr})
		if err != nil {
			break // ctx, or the client, has ended
		}
		yields := c.lead(ctx, lead, watched)
		lead.Resign(context.WithoutCancel(ctx))
		if yields {
			c.cfg.Log.Warn("letting another coordinator lead: what experiments showed cannot be read here", "for", yieldsFor)
			c.yielded = time.Now()
			_ = wait.For(ctx, yieldsFor)
		}
	}
	return ctx.Err()
}

// lead does a leader's work until it loses the lead or ctx ends. It returns yields if it
// ended to let another coordinator lead.
func (c *Coordinator) lead(ctx context.Context, lead *cluster.Lead, watched *watchedExperiments) (yields bool) {
	c.tell(true, nil, nil)
	c.tellDiffer(nil, topology.Set{}) // another leader may have settled the differences since
	defer c.tell(false, nil, nil)
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { c.compare(ctx) })
	beside.Go(func() {
		if yields = c.guard(ctx, lead, watched); yields {
			cancel()
		}
	})
	c.steer(ctx, lead)
	cancel()
	beside.Wait()
	return yields
}

// actsEvery is the time between two readings of outcomes as a multiple of Config.Every,
// whether or not anything is under way.
const actsEvery = 15

// watchedExperiments is the experiments as etcd has them. A coordinator watches them
// even while it does not lead, so that it knows the newest state, and notices when etcd is
// set back to an older one.
type watchedExperiments struct {
	documents *artefacts.Kind     // the definitions
	trails    *experiments.Trails // what was decided about each, and why
}

// experiments begins to watch experiments. It returns nil if only people change them.
func (c *Coordinator) experiments(ctx context.Context) (*watchedExperiments, error) {
	if c.cfg.Exposures == nil {
		return nil, nil
	}
	documents, err := artefacts.Watch(ctx, c.cfg.Cluster, experiments.Kind)
	if err != nil {
		return nil, err
	}
	trails, err := experiments.OpenTrails(ctx, c.cfg.Cluster)
	return &watchedExperiments{documents, trails}, err
}

// guard ramps and pauses experiments until ctx ends. It returns yields if another
// coordinator is to lead, because this one cannot read the evidence.
func (c *Coordinator) guard(ctx context.Context, lead *cluster.Lead, of *watchedExperiments) (yields bool) {
	if of == nil {
		return false
	}
	sees := sight{rest: c.cfg.settles, patience: c.cfg.yields}
	if !c.yielded.IsZero() && time.Since(c.yielded) < yieldsEvery {
		sees.patience = 0
	}
	g := &guard{lead: lead, seen: c.tellSeen, most: c.cfg.maxUnits, sight: sees, trails: of.trails, store: &experiments.Store{Documents: of.documents}, name: c.cfg.Name, log: c.cfg.Log, leans: c.cfg.Leans, tell: c.tellPaused, fault: c.tellUnguarded, outcomes: c.cfg.Outcomes, every: actsEvery * c.cfg.Every}
	yields = g.run(ctx, c.cfg.Exposures)
	c.tellPaused(nil)
	c.tellSeen(sight{}, nil, 0)
	c.tellUnguarded(nil)
	return yields
}

// tellUnguarded notes why experiments are not guarded; nil: they are, or this coordinator
// does not guard.
func (c *Coordinator) tellUnguarded(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.unguarded = why
}

// tellSeen notes how much guards see of exposures and outcomes, and how many units they
// keep. Zero values: this coordinator does not guard.
func (c *Coordinator) tellSeen(s sight, acts []actsSeen, units int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.seen, c.mu.acts, c.mu.units = s, acts, units
}

// tellPaused notes which experiments guards have paused.
func (c *Coordinator) tellPaused(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.paused = names
}

// tell notes whether it leads, the state after a step (nil: the one before stays while it
// leads), and why the cluster is not steered.
func (c *Coordinator) tell(leads bool, s *Steered, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.leads, c.mu.fault = leads, fault
	if s != nil || !leads {
		c.mu.last = s
	}
}

// Leads reports whether this coordinator leads. fault says why it cannot do its work now;
// nil: it can.
func (c *Coordinator) Leads() (leads bool, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.leads, errors.Join(c.mu.fault, c.mu.unguarded)
}

// steer takes one step after the other until the lead is lost or ctx ends.
func (c *Coordinator) steer(ctx context.Context, lead *cluster.Lead) {
	c.pace, c.gone, c.lost, c.held, c.since = pace{limits: c.cfg.Limits}, map[millrace.NodeID]time.Time{}, nil, map[millrace.NodeID]map[millrace.Partition]time.Time{}, map[string]time.Time{}
	said := fault{again: tellEvery}
	for {
		err := c.step(ctx, lead)
		switch {
		case ctx.Err() != nil || errors.Is(err, cluster.ErrNotLeader):
			return
		case errors.Is(err, steering.ErrRaced):
			continue // a person's command came first: look again
		case err != nil:
			c.tell(true, nil, err)
		}
		if said.isNews(err, true, time.Now()) {
			c.cfg.Log.Warn("the cluster is not steered now; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-lead.Lost():
			c.cfg.Log.Warn("not leading any more: etcd was not heard for as long as the leadership lasts")
			return
		case <-c.news(ctx):
		}
	}
}

// fault remembers the error that was logged last, so that the same one is not logged each
// time.
type fault struct {
	again time.Duration // how often the same one is logged; 0: once
	text  string        // of the error that was logged last; empty: none, or all was well since
	at    time.Time     // when it was logged
}

// isNews reports whether err is to be logged, and then remembers it as logged. A nil err
// says that all is well, so that the next error is news, only if looked is true.
func (f *fault) isNews(err error, looked bool, now time.Time) bool {
	switch {
	case err != nil && (err.Error() != f.text || f.again > 0 && now.Sub(f.at) > f.again):
		f.text, f.at = err.Error(), now
		return true
	case err == nil && looked:
		f.text = ""
	}
	return false
}

// idleTimes is how many times less often a coordinator looks while nothing is under way.
const idleTimes = 5

// news returns a channel that is closed when it is time to look again: something changed in
// etcd, or Every has passed.
func (c *Coordinator) news(ctx context.Context) <-chan struct{} {
	every := c.cfg.Every
	if !c.busy {
		every *= idleTimes
	}
	ctx, cancel := context.WithTimeout(ctx, every)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		steering.Changed(ctx, c.cfg.Cluster)
	}()
	return done
}

// step looks at the cluster once, and does what can be done now, in one transaction of etcd.
func (c *Coordinator) step(ctx context.Context, lead *cluster.Lead) error {
	stats, err := members.Stats(ctx, c.cfg.Cluster)
	if err != nil {
		return err
	}
	var after *Steered
	var did []string
	paid := c.pace
	c.cfg.at("read")
	err = steering.Change(ctx, c.cfg.Cluster, lead, func(raw *steering.State) error {
		s, err := read(raw)
		if err != nil {
			return err
		}
		after, did = s, nil
		if s.Assignment.Epoch == 0 {
			return nil
		}
		e := &evidence{now: time.Now(), nodes: s.Map, stats: stats, givenUp: map[millrace.NodeID]bool{}}
		c.look(s, e)
		did = c.do(s, e)
		c.cfg.at("write")
		return s.write()
	})
	if errors.Is(err, steering.ErrRaced) {
		c.pace = paid // nothing was begun
	}
	if err != nil {
		return err
	}
	for _, what := range did {
		c.cfg.Log.Info(what)
		c.cfg.at(what)
	}
	if after.unread != nil {
		c.cfg.Log.Error("the document steer/notes in etcd could not be read, and is written anew", "err", after.unread)
	}
	c.cfg.at("written")
	c.busy = len(c.gone) > 0 || after.Plan != nil && !after.Plan.Status.Ended()
	c.tell(true, after, nil)
	return nil
}

// do advances the plan, makes one for lost nodes if needed, and orders nodes to delete what
// moved away, all in s. It returns in words what it did.
func (c *Coordinator) do(s *Steered, e *evidence) (did []string) {
	id, last := s.Plan.told()
	if err := c.repair(s, e); err != nil {
		c.alarm(s, e.now, "no_repair", err.Error())
	}
	if p := s.Plan; p != nil {
		status := p.Status
		if p.advance(&s.Assignment, e, &c.pace) && p.Status != status {
			did = append(did, fmt.Sprintf("plan %s (%s): %s", p.ID, p.Kind, p.Status))
		}
	}
	c.drop(s, e)
	c.forgetAlarms(s)
	for _, what := range s.Plan.after(id, last) {
		did = append(did, "plan "+s.Plan.ID+": "+what.What)
	}
	return did
}

// told returns the plan's id and the last event of its log; zero values for a nil plan.
func (p *Plan) told() (id string, last Event) {
	if p == nil {
		return "", last
	}
	if n := len(p.Log); n > 0 {
		last = p.Log[n-1]
	}
	return p.ID, last
}

// after returns the events of the plan's log that follow last, which told returned with id.
// If id was another plan, it returns the whole log. It searches for last because the log
// drops its oldest events, so that lengths do not compare.
func (p *Plan) after(id string, last Event) []Event {
	if p == nil {
		return nil
	}
	for i := len(p.Log); i > 0 && p.ID == id; i-- {
		if p.Log[i-1] == last {
			return p.Log[i:]
		}
	}
	return p.Log
}

// look notes which nodes are gone, of those that host something or that the plan gives
// something, and raises alarms. A node that is gone for the grace is given up, unless
// repairs are off: its replicas are made elsewhere. While more than a third of the hosting
// nodes are gone, no further node is given up; one that already is stays so, since its
// repair is under way. If so many are gone for longer than the grace, an alarm asks for a
// person.
func (c *Coordinator) look(s *Steered, e *evidence) {
	hosts := s.Assignment.Nodes()
	gone := map[millrace.NodeID]time.Time{}
	see := func(id millrace.NodeID) {
		if e.nodes.Alive(id) {
			return
		}
		since, ok := c.gone[id]
		if !ok {
			since = e.now
		}
		gone[id] = since
	}
	for _, id := range hosts {
		see(id)
	}
	lost := len(gone) // of those that host something
	for id := range s.Plan.takers() {
		see(id)
	}
	c.gone = gone
	s.Notes.Leader = c.cfg.Name
	s.Notes.Gone = map[millrace.NodeID]time.Time{}
	for id, since := range gone {
		s.Notes.Gone[id] = since.UTC().Truncate(time.Second)
	}
	s.Notes.Alarms = nil
	mass := 3*lost > len(hosts)
	var waits []millrace.NodeID
	long := 0 // how many that host something are gone for longer than the grace
	for id, since := range gone {
		past := e.now.Sub(since) >= c.cfg.Grace
		if past && slices.Contains(hosts, id) {
			long++
		}
		switch {
		case s.Intent.Nodes[id].Lost || c.lost[id]:
			e.givenUp[id] = true
		case !past:
		case mass:
			waits = append(waits, id)
		case !c.cfg.RepairOff:
			e.givenUp[id] = true
		}
	}
	c.lost = maps.Clone(e.givenUp)
	s.Notes.GivenUp = slices.Sorted(maps.Keys(e.givenUp))
	for id, m := range s.Intent.Nodes { // a node that is back is no longer lost
		if m.Lost && e.nodes.Alive(id) {
			m.Lost = false
			s.Intent.Nodes[id] = m
		}
	}
	c.mu.Lock()
	differ := c.mu.differ
	c.mu.Unlock()
	if len(differ) > 0 {
		c.alarm(s, e.now, "replicas_differ", fmt.Sprintf("%d differences, such as: %s", len(differ), differ.first()))
	}
	if len(waits) > 0 && 3*long > len(hosts) {
		all := slices.Sorted(maps.Keys(gone)) // to give up only some of them is refused
		names := strings.Trim(fmt.Sprint(all), "[]")
		c.alarm(s, e.now, "mass_loss", fmt.Sprintf("%d of %d nodes that host something are gone at once; gone are, with those that a plan leads to, %q; no more is repaired until they are back, or somebody gives them up: millrace node remove %s --apply", lost, len(hosts), all, names))
	}
}

// alarm adds an alarm to the notes, with the time when it was first raised. what is its
// stable word.
func (c *Coordinator) alarm(s *Steered, now time.Time, what, detail string) {
	since, ok := c.since[what]
	if !ok {
		since = now
		c.since[what] = since
		c.cfg.Log.Error("alarm: "+what, "detail", detail)
	}
	s.Notes.Alarms = append(s.Notes.Alarms, Alarm{what, detail, since.UTC().Truncate(time.Second)})
}

// forgetAlarms forgets the times of alarms that are not raised any more.
func (c *Coordinator) forgetAlarms(s *Steered) {
	maps.DeleteFunc(c.since, func(what string, _ time.Time) bool {
		return !slices.ContainsFunc(s.Notes.Alarms, func(a Alarm) bool { return a.What == what })
	})
}

// drop orders nodes to delete replicas that moved away from them for at least DropAfter, as
// long as enough others serve the partition and the plan does not give it back. It takes
// back orders that are carried out, and orders to nodes that are not alive; for such a
// node the time begins anew. Backup nodes (topology.Node.Keeps) get no orders.
func (c *Coordinator) drop(s *Steered, e *evidence) {
	seen := map[millrace.NodeID]map[millrace.Partition]time.Time{}
	orders := map[millrace.NodeID]topology.Set{}
	for id, st := range e.stats {
		n, _ := e.nodes.Node(id)
		if !e.nodes.Alive(id) || n.Keeps != "" {
			continue
		}
		seen[id] = map[millrace.Partition]time.Time{}
		ordered := s.Assignment.Drop[id]
		var order topology.Set
		for p := range st.Held.All() {
			owners := s.Assignment.Replicas[p]
			if slices.Contains(owners, id) {
				continue
			}
			since, ok := c.held[id][p]
			if !ok {
				since = e.now
			}
			seen[id][p] = since
			old := ordered.Has(p) || e.now.Sub(since) >= c.cfg.DropAfter
			if old && !s.returns(id, p) && e.serving(p, owners, "") >= max(1, s.Map.Wanted()) {
				order.Add(p)
			}
		}
		if order.Len() > 0 {
			orders[id] = order
		}
	}
	c.held = seen
	if !maps.Equal(orders, s.Assignment.Drop) {
		s.Assignment.Drop = orders
		if len(orders) == 0 {
			s.Assignment.Drop = nil
		}
	}
}

// returns reports whether the plan is to give a partition to a node, or may still be told to
// give it back.
func (s *Steered) returns(id millrace.NodeID, p millrace.Partition) bool {
	switch {
	case s.Plan == nil || s.Plan.Status.Ended():
		return false
	case (s.Plan.Status == Paused || s.Plan.Status == RollingBack) && slices.Contains(s.Plan.Base[p], id):
		return true
	}
	return slices.ContainsFunc(s.Plan.Moves, func(m Move) bool { return m.State != Moved && m.To == id && m.Partition == p })
}
