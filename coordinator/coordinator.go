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
	Name    string // of this coordinator, among those of the cluster
	Addr    string // of its admin port, for people
	// Grace is how long a node may be gone before its replicas are made
	// elsewhere; default DefaultGrace. RepairOff: they never are.
	Grace     time.Duration
	RepairOff bool
	// DropAfter is how long a node keeps what moved away; default DefaultDropAfter.
	DropAfter time.Duration
	// Limits are those of repairs, and of plans that do not say.
	Limits Limits
	// Every is how often it looks, besides when it is told; default a second. With
	// nothing under way it looks five times as seldom.
	Every time.Duration
	// Dial calls nodes, to compare replicas every CompareEvery, default a minute,
	// below 0 never. nil: they are not compared.
	Dial         digest.Dial
	CompareEvery time.Duration
	// Exposures is what experiments are ramped and paused by. nil: only people
	// change them.
	Exposures Exposures
	// Leans are what experiments lean on. nil: all answers are evidence.
	Leans Leans
	// Outcomes are what experiments that name some are paused by besides.
	Outcomes Outcomes
	Log      *slog.Logger // nil: slog.Default()

	// at is called at each named step. Of tests, to stop there.
	at func(step string)
	// settles is as the constant, unless a test says otherwise.
	settles time.Duration
	// maxUnits is by the memory of the machine, unless a test says otherwise.
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

// The defaults of a [Config]. DefaultPerNode is how many moves to a node are
// under way at a time: restores of small partitions share flushes of the store.
const (
	DefaultGrace     = time.Minute
	DefaultDropAfter = 10 * time.Minute
	DefaultPerNode   = 48
)

// Validate reports every fault at once.
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

// validate refuses limits below zero, which would be none.
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

	// Of the goroutine that leads.
	pace  pace
	busy  bool                                                 // something is under way
	gone  map[millrace.NodeID]time.Time                        // since when each is seen to be gone
	lost  map[millrace.NodeID]bool                             // of those that are gone, whom it has given up
	held  map[millrace.NodeID]map[millrace.Partition]time.Time // since when each is seen to keep what moved away
	since map[string]time.Time                                 // of alarms

	yielded time.Time // when it last let another lead

	mu struct {
		sync.Mutex
		leads     bool
		fault     error // why it does not get on
		last      *Steered
		unguarded error    // why experiments are not guarded as they should be
		paused    []string // experiments, by guards
		seen      sight    // by them
		acts      []actsSeen
		units     int // of experiments that they keep
		differ    differing
	}
}

// New returns a coordinator that waits for Run.
func New(cfg Config) (*Coordinator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Coordinator{cfg: cfg.withDefaults()}, nil
}

// Run leads whenever nobody else does, until ctx is done. No outage of etcd
// ends it.
func (c *Coordinator) Run(ctx context.Context) error {
	if c.cfg.Cluster.Dir() != "" { // the map is kept there: a start while etcd is away, and a restoration, go by it
		if _, err := c.cfg.Cluster.Watch(ctx); err != nil {
			return ctx.Err()
		}
	}
	watched, err := c.experiments(ctx)
	if err != nil {
		return ctx.Err() // it, or the client, has ended
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

// lead does what a leader does until it leads no more, or is to let another lead,
// which it reports.
func (c *Coordinator) lead(ctx context.Context, lead *cluster.Lead, watched *watchedExperiments) (yields bool) {
	c.tell(true, nil, nil)
	c.tellDiffer(nil, topology.Set{}) // who led since may have settled what it knew
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

// actsEvery is how many times Config.Every passes from one reading of outcomes to the
// next, whether or not anything is under way.
const actsEvery = 15

// watchedExperiments is what is known of experiments. A coordinator watches them
// also while it does not lead, so that it knows the newest when etcd is set back to an
// older state, and notices that.
type watchedExperiments struct {
	documents *artefacts.Kind
	trails    *experiments.Trails
}

// experiments returns nil where only people change experiments.
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

// guard ramps and pauses experiments for as long as it leads. It reports whether
// another is to lead.
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

// tellUnguarded tells why experiments are not guarded; nil: they are, or not by it.
func (c *Coordinator) tellUnguarded(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.unguarded = why
}

// tellSeen tells how much guards see of what was shown, and of what viewers did;
// nothing: nobody guards.
func (c *Coordinator) tellSeen(s sight, acts []actsSeen, units int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.seen, c.mu.acts, c.mu.units = s, acts, units
}

// tellPaused tells which experiments guards have paused.
func (c *Coordinator) tellPaused(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.paused = names
}

func (c *Coordinator) tell(leads bool, s *Steered, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.leads, c.mu.fault = leads, fault
	if s != nil || !leads {
		c.mu.last = s
	}
}

// Leads reports whether this coordinator leads, and why it does not get on if
// it does not.
func (c *Coordinator) Leads() (leads bool, fault error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.leads, errors.Join(c.mu.fault, c.mu.unguarded)
}

// steer does what there is to do for as long as it leads.
func (c *Coordinator) steer(ctx context.Context, lead *cluster.Lead) {
	c.pace, c.gone, c.lost, c.held, c.since = pace{limits: c.cfg.Limits}, map[millrace.NodeID]time.Time{}, nil, map[millrace.NodeID]map[millrace.Partition]time.Time{}, map[string]time.Time{}
	said := fault{again: tellEvery}
	for {
		err := c.step(ctx, lead)
		switch {
		case ctx.Err() != nil || errors.Is(err, cluster.ErrNotLeader):
			return
		case errors.Is(err, steering.ErrRaced):
			continue // somebody's command: look again
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

// fault is what was logged last, until all is well again.
type fault struct {
	again time.Duration // how often the same one is logged; 0: once
	text  string
	at    time.Time
}

// isNews reports whether err is to be logged, and takes it that it is. A nil err
// means that all is well only if it looked; else nothing was looked at.
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

// idleTimes is how many times less often a coordinator looks that has nothing
// under way.
const idleTimes = 5

// news is closed when it is time to look again.
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

// step looks once, and does what can be done now.
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

// do takes the plan on, makes one where nodes are gone for good, and has nodes
// delete what moved away. It returns what it did, in words.
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

// told returns which plan it is, and the last that happened to it.
func (p *Plan) told() (id string, last Event) {
	if p == nil {
		return "", last
	}
	if n := len(p.Log); n > 0 {
		last = p.Log[n-1]
	}
	return p.ID, last
}

// after returns what happened to a plan since that was the last of the plan id: all, if
// that was another one. The log keeps the newest, so its length says nothing.
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

// look notes which nodes are gone, of those that host something or that the plan
// leads to, and raises alarms. While more than a third are gone, for however short, nobody
// else is given up; whom it has given up stays so, for a repair is under way. A person is
// needed only when so many are gone for longer than the grace.
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
	long := 0 // of those that host something, for longer than the grace
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
	for id, m := range s.Intent.Nodes { // who is back is lost no more
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

// alarm raises an alarm, since when it was first raised.
func (c *Coordinator) alarm(s *Steered, now time.Time, what, detail string) {
	since, ok := c.since[what]
	if !ok {
		since = now
		c.since[what] = since
		c.cfg.Log.Error("alarm: "+what, "detail", detail)
	}
	s.Notes.Alarms = append(s.Notes.Alarms, Alarm{what, detail, since.UTC().Truncate(time.Second)})
}

// forgetAlarms forgets since when alarms were raised that are no more.
func (c *Coordinator) forgetAlarms(s *Steered) {
	maps.DeleteFunc(c.since, func(what string, _ time.Time) bool {
		return !slices.ContainsFunc(s.Notes.Alarms, func(a Alarm) bool { return a.What == what })
	})
}

// drop orders nodes to delete what moved away from them long enough ago, and
// takes orders back that are carried out, and those to nodes that are not alive, for which
// the time begins anew. What is deleted is served by as many
// as are wanted.
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

// returns reports whether the plan is to give a partition back to a node, or may
// yet be told to.
func (s *Steered) returns(id millrace.NodeID, p millrace.Partition) bool {
	switch {
	case s.Plan == nil || s.Plan.Status.Ended():
		return false
	case (s.Plan.Status == Paused || s.Plan.Status == RollingBack) && slices.Contains(s.Plan.Base[p], id):
		return true
	}
	return slices.ContainsFunc(s.Plan.Moves, func(m Move) bool { return m.State != Moved && m.To == id && m.Partition == p })
}
