package answers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
)

// What a version of a model is condemned for, as the metric has it.
const (
	causePanic = "panic"
	causeNaN   = "nan"
	causeCost  = "cost"
)

// condemnAfter is how many questions in a row, or portions of them (see costWatch),
// must speak against a version before it is condemned. A single one may have another
// reason: a viewer of whom nothing is known, or a machine that was busy with something else.
const condemnAfter = 10

// condemner knows the versions of models that failed on this node, and tells the
// cluster of them. From then on the node refuses such a version to brokers that take
// another one instead (give way). Brokers go by what the cluster says, which outlives the
// node. See "Last good" in DESIGN.md.
type condemner struct {
	node     *Server
	counters *prometheus.CounterVec // by model, version, cause
	wake     chan struct{}          // has a value when there is something to tell

	here atomic.Pointer[map[relevance.ID]condemned] // never changed once there
	mu   sync.Mutex                                 // of changes of here

	joint   atomic.Uint32                                    // questions that several models ranked beside another
	seen    sync.Map                                         // *relevance.Model to *evidence
	silence time.Duration                                    // the constant silent, or less of tests
	earlier atomic.Pointer[func(string) []artefacts.Version] // returns which versions of a name served before; nil: not known
}

// condemned is what is known of a version that failed.
type condemned struct {
	why  string
	told bool // the cluster says so too
	seen time.Time
}

// evidence counts questions in a row that speak against a model.
type evidence struct {
	nan      atomic.Int32
	weighted atomic.Int32  // without a finite score by the weights of a variant
	since    atomic.Int64  // when the first of the row had no finite score, in nanoseconds
	last     atomic.Int64  // when the last one had none
	slow     atomic.Int32  // portions that took too long
	slowIn   atomic.Int32  // questions with such portions
	limit    time.Duration // that scoring a record may take, without what is read of it
}

func newCondemner(n *Server) *condemner {
	c := &condemner{node: n, silence: silent, wake: make(chan struct{}, 1), counters: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_indexnode_models_condemned_total",
		Help: "Versions of models that this node has condemned, by cause: panic, nan (no candidate had a score that is a finite number), cost (fifty times what its admission reckoned).",
	}, []string{"model", "version", "cause"})}
	c.here.Store(&map[relevance.ID]condemned{})
	return c
}

// why returns why a version is condemned; "" if it is not.
func (c *condemner) why(id relevance.ID) string {
	if all := *c.here.Load(); len(all) > 0 {
		return all[id].why
	}
	return ""
}

// refusal is the error by which brokers that give way ask for another version.
func refusal(id relevance.ID, why string) error {
	return &millrace.Error{
		Reason: millrace.ReasonCondemned, Field: "model", Detail: fmt.Sprintf("model %s is condemned: %s", id, why),
		WayOut: "leave model out, for the feed's; who pushed it mends it and pushes another version, or lets it be asked for again with millrace model release",
	}
}

// change replaces what is condemned here.
func (c *condemner) change(by func(all map[relevance.ID]condemned)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(*c.here.Load())
	by(all)
	c.here.Store(&all)
}

// condemn condemns a version, once. A model that is part of every binary (it has no version
// here) cannot be condemned: nothing could rank instead.
func (c *condemner) condemn(id relevance.ID, cause, format string, args ...any) {
	if id.Version == "" {
		return
	}
	fresh, why := false, fmt.Sprintf(format, args...)
	c.change(func(all map[relevance.ID]condemned) {
		if _, is := all[id]; !is {
			all[id], fresh = condemned{why: why, seen: time.Now()}, true
		}
	})
	if !fresh {
		return
	}
	c.counters.WithLabelValues(id.Name, id.Version, cause).Inc()
	c.node.log.Error("model condemned: brokers ask by the last good version", "model", id.Name, "version", id.Version, "sum", id.Sum, "why", why)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// blame, deferred, makes an error of a panic, as [panics.Contain] does, and condemns the
// version whose code it was in.
func (c *condemner) blame(req *nodev1.QueryRequest, q *query.Query, err *error) {
	broken := recover()
	if broken == nil {
		return
	}
	panicked := panics.Of(broken)
	*err = panicked
	if id := idOf(req); q.Scoring() && id.Version != "" {
		c.condemn(id, causePanic, "it panicked on %s: %v", c.node.id, broken)
		if req.GivesWay {
			*err = errors.Join(refusal(id, c.why(id)), panicked)
		}
	}
}

func idOf(req *nodev1.QueryRequest) relevance.ID {
	return relevance.ID{Name: req.Model, Version: req.ModelVersion, Sum: req.ModelSum}
}

// suspect reports whether a model took too long before.
func (c *condemner) suspect(m *relevance.Model) bool {
	e, ok := c.seen.Load(m)
	return ok && e.(*evidence).suspected()
}

// judge looks at the scores that a question got by each model that ranked in it. How long
// that took was judged while it ranked.
func (c *condemner) judge(ctx context.Context, req *nodev1.QueryRequest, r *question, q *query.Query, err error) {
	if ctx.Value(ownQuestion{}) != nil {
		return
	}
	id, m := idOf(req), r.spec.Model.Own()
	r.cost.end(q.Measured())
	if err != nil { // it may have been over before all was scored
		return
	}
	ofPages := !atAnother(req)
	switch {
	case !ofPages:
	case req.Weights == "":
		c.judgeScores(ctx, req, id, m, q.Measured())
	default:
		c.judgeWeighted(ctx, req, id, m, q.Measured())
	}
	for i := range r.beside {
		if o := &r.beside[i]; o.err == nil {
			if o.alone {
				o.cost.end(o.Measured)
			}
			if ofPages {
				c.judgeScores(ctx, req, o.id(), o.model, o.Measured)
			}
		}
	}
}

// silent is for how long a version must have given nobody a finite score, with a question in
// each tenth of that time at least, before it is condemned by what callers asked alone.
const silent = 10 * time.Second

// atAnother reports whether a question is as of a time that no viewer's page can have. What
// a version makes of ages that no viewer sees is no reason to condemn it.
func atAnother(req *nodev1.QueryRequest) bool {
	return time.Since(time.UnixMilli(req.AsOfMs)).Abs() > pageLife
}

// pageLife is for how long later pages of a feed may be asked for, and an hour more for
// clocks that differ.
const pageLife = 25 * time.Hour

// judgeScores condemns a pushed version that had no finite score for any
// candidate. NaN and the infinities can be ranked, but say nothing of a record, and golden
// rows refuse them, too. Questions like that in a row may all come from one caller, who
// chooses viewer, window and entities. So the version is tried on records that no caller
// chooses. If it gives finite scores there, or cannot be tried, it is condemned only once
// nobody's question has had a finite score for the time silent.
func (c *condemner) judgeScores(ctx context.Context, req *nodev1.QueryRequest, id relevance.ID, m *relevance.Model, by query.Measured) {
	if id.Version == "" || by.Scored == 0 {
		return
	}
	e := c.evidence(m)
	if by.Finite {
		reset(&e.nan)
		return
	}
	now := time.Now().UnixNano()
	if last := time.Duration(now - e.last.Swap(now)); e.nan.Load() == 0 || last > c.silence/10 {
		e.since.Store(now) // a time in which nobody asked does not count
	}
	n := e.nan.Add(1)
	if n%condemnAfter != 0 || !c.othersScore(ctx, req, id) {
		return
	}
	if has, tried := c.try(ctx, id, m); tried && !has {
		c.condemn(id, causeNaN, "it gave no score that is a finite number to %d questions in a row on %s, nor to records of its own choice", n, c.node.id)
	} else if quiet := time.Duration(now - e.since.Load()); quiet >= c.silence {
		c.condemn(id, causeNaN, "it gave no score that is a finite number to any question for %s on %s, %d in a row", quiet.Round(time.Second), c.node.id, n)
	}
}

// judgeWeighted looks at a question that was ranked by the weights of a variant and had no
// finite score. The weights of a variant are no fault of the version, so the question is
// asked again by the version's own weights, and judged by that. One such question in
// condemnAfter is asked again, and each while the answers speak against the version.
func (c *condemner) judgeWeighted(ctx context.Context, req *nodev1.QueryRequest, id relevance.ID, m *relevance.Model, by query.Measured) {
	if id.Version == "" || by.Scored == 0 || by.Finite {
		return
	}
	e := c.evidence(m)
	if n := e.nan.Load(); e.weighted.Add(1)%condemnAfter == 1 || 0 < n && n < condemnAfter {
		_, _ = c.node.query(ctx, probeOf(req, id)) // which judges it; the answer is not used
	}
}

// probeOf returns a question for the best item alone, by another version or by the same one
// without weights.
func probeOf(req *nodev1.QueryRequest, by relevance.ID) *nodev1.QueryRequest {
	return &nodev1.QueryRequest{
		Entities: req.Entities, Types: req.Types, FromMs: req.FromMs, ToMs: req.ToMs, AsOfMs: req.AsOfMs, Viewer: req.Viewer,
		Filter: req.Filter, RequestFilter: req.RequestFilter, Model: by.Name, ModelVersion: by.Version, ModelSum: by.Sum, Limit: 1,
	}
}

// reset sets n to 0. It writes only if n is not 0 already, since many processors read it.
func reset(n *atomic.Int32) {
	if n.Load() != 0 {
		n.Store(0)
	}
}

func (c *condemner) evidence(m *relevance.Model) *evidence {
	if e, ok := c.seen.Load(m); ok {
		return e.(*evidence)
	}
	e, _ := c.seen.LoadOrStore(m, &evidence{limit: slower * m.CostLimit()})
	return e.(*evidence)
}

// othersScore reports whether a version that would rank instead has a finite score for a
// question for which this one has none. If not, the question or the features are at fault,
// and not the version.
func (c *condemner) othersScore(ctx context.Context, req *nodev1.QueryRequest, of relevance.ID) bool {
	earlier := c.earlier.Load()
	if earlier == nil {
		return true
	}
	for _, v := range (*earlier)(of.Name) {
		id := relevance.ID(v)
		if c.why(id) != "" || id == of {
			continue
		}
		resp, err := c.node.query(context.WithValue(ctx, ownQuestion{}, true), probeOf(req, id))
		return err == nil && len(resp.Items) > 0 && !math.IsNaN(resp.Items[0].Score) && !math.IsInf(resp.Items[0].Score, 0)
	}
	return true // no version is left, and a model of every binary would rank instead
}

// dropped forgets a version that was dropped, or that was released before the cluster was
// told that it is condemned.
func (c *condemner) dropped(id relevance.ID) {
	c.forget(id)
	c.change(func(all map[relevance.ID]condemned) { delete(all, id) })
}

// forget forgets what spoke against a version, as when it is released or
// dropped.
func (c *condemner) forget(id relevance.ID) {
	if m, err := c.node.models.Find(id); err == nil {
		c.seen.Delete(m)
	}
}

// tellAgain is the pause before the cluster is told again.
const tellAgain = 2 * time.Second

// run tells the cluster what is condemned here, and takes over what the cluster says, until
// ctx ends. What the cluster no longer says has been released.
func (c *condemner) run(ctx context.Context, models *artefacts.Kind, all *artefacts.Condemned) error {
	for {
		changed := all.Changed()
		c.takeOver(all.Current())
		err := c.report(ctx, models, all)
		var again <-chan time.Time
		if err != nil && ctx.Err() == nil {
			c.node.log.Warn("it is not told that a model is condemned; trying again", "err", err)
			again = time.After(tellAgain)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-c.wake:
		case <-again:
		}
	}
}

// takeOver takes over what the cluster says.
func (c *condemner) takeOver(says map[artefacts.Version]artefacts.Condemnation) {
	c.change(func(all map[relevance.ID]condemned) {
		for id, x := range all {
			if _, still := says[artefacts.Version(id)]; x.told && !still {
				delete(all, id)
				c.forget(id)
			}
		}
		for v, x := range says {
			all[relevance.ID(v)] = condemned{why: x.Why, told: true}
		}
	})
}

// report writes to the cluster what it does not know yet.
func (c *condemner) report(ctx context.Context, models *artefacts.Kind, all *artefacts.Condemned) error {
	var errs []error
	for id, x := range *c.here.Load() {
		if x.told {
			continue
		}
		err := all.Condemn(ctx, models, artefacts.Version(id), x.why, string(c.node.id), x.seen)
		if errors.Is(err, artefacts.ErrReleased) {
			c.dropped(id)
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
