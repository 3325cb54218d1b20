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
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/relevance"
)

// The causes for which a version of a model is condemned, as the metric has them.
const (
	causePanic = "panic"
	causeNaN   = "nan"
	causeCost  = "cost"
)

// condemnAfter is how many questions in a row without a finite score, or how many slow
// portions of questions (see costWatch), it takes to condemn a version. A single question or
// portion may have another reason: a viewer of whom nothing is known, or a machine that was
// busy with something else. But a single panic is enough.
const condemnAfter = 10

// condemner knows the versions of models that failed on this node or, as the cluster says,
// on others. It tells the cluster of those that failed here. From then on the node refuses
// such a version to brokers that give way, which means that they ask by another version
// instead. Brokers go by what the cluster says, which outlives the node. See "Last good" in
// DESIGN.md.
type condemner struct {
	node     *Server
	counters *prometheus.CounterVec // counts condemned versions by model, version and cause
	wake     chan struct{}          // has a value when there is something to tell the cluster

	here atomic.Pointer[map[relevance.ID]condemned] // the map is replaced, and never changed
	mu   sync.Mutex                                 // held to replace the map

	joint   atomic.Uint32                                    // counts questions in which several models ranked beside the question's own
	seen    sync.Map                                         // *relevance.Model to *evidence
	silence time.Duration                                    // the constant silent; tests have less
	earlier atomic.Pointer[func(string) []artefacts.Version] // returns the versions of a name that served before; nil: not known
}

// condemned is what is known of a version that is condemned.
type condemned struct {
	why  string
	told bool      // the cluster says so
	seen time.Time // when this node condemned it; zero if told
}

// evidence is what speaks against a version that is not condemned yet.
type evidence struct {
	nan      atomic.Int32  // questions in a row without a finite score, by the version's own weights
	weighted atomic.Int32  // questions without a finite score by the weights of a variant
	since    atomic.Int64  // when the first question of the row was, Unix ns
	last     atomic.Int64  // when the last question without a finite score was, Unix ns
	slow     atomic.Int32  // portions in a row that took too long
	slowIn   atomic.Int32  // questions with such portions
	limit    time.Duration // how long scoring a record may take, without the time for reading texts and lists
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

// refusal returns the error for a condemned version. After it, brokers that give way ask by
// another version.
func refusal(id relevance.ID, why string) error {
	return &millrace.Error{
		Reason: millrace.ReasonCondemned, Field: "model", Detail: fmt.Sprintf("model %s is condemned: %s", id, why),
		WayOut: "leave model out, for the feed's; who pushed it mends it and pushes another version, or lets it be asked for again with millrace model release",
	}
}

// change calls by with a copy of the map of condemned versions, which then replaces it.
func (c *condemner) change(by func(all map[relevance.ID]condemned)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(*c.here.Load())
	by(all)
	c.here.Store(&all)
}

// condemn condemns a version, unless it is condemned already. cause is for the metric; format
// and args make the reason in words. A built-in model, whose id has no version, cannot be
// condemned: nothing could rank instead.
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

// blame, deferred, turns a panic into an error, as [panics.Contain] does. It condemns the
// version that the request asks for if the panic was in scoring.
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

// idOf returns the version of the model that a request asks for.
func idOf(req *nodev1.QueryRequest) relevance.ID {
	return relevance.ID{Name: req.Model, Version: req.ModelVersion, Sum: req.ModelSum}
}

// suspect reports whether a model is suspected of taking too long.
func (c *condemner) suspect(m *relevance.Model) bool {
	e, ok := c.seen.Load(m)
	return ok && e.(*evidence).suspected()
}

// judge looks at the scores that each model gave in a question, and condemns a version if they
// speak against it for long enough. The time that scoring took is judged before, while a model
// ranks (see costWatch).
func (c *condemner) judge(ctx context.Context, req *nodev1.QueryRequest, r *question, q *query.Query, err error) {
	if ctx.Value(ownQuestion{}) != nil {
		return
	}
	id, m := idOf(req), r.spec.Model.Own()
	r.cost.end(q.Measured())
	if err != nil { // the question may have ended before all records were scored
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

// silent is how long a version must have given no finite score to any question before it is
// condemned by the questions of callers alone. The time counts only if no tenth of it was
// without a question.
const silent = 10 * time.Second

// atAnother reports whether a question is as of a time that no page of a viewer can have. The
// scores that a version gives for such ages are no reason to condemn it.
func atAnother(req *nodev1.QueryRequest) bool {
	return time.Since(time.UnixMilli(req.AsOfMs)).Abs() > pageLife
}

// pageLife is how long callers may ask for later pages of a feed, a day, and an hour more for
// clocks that differ.
const pageLife = 25 * time.Hour

// judgeScores condemns a version that gave no candidate a finite score, in condemnAfter
// questions in a row. NaN and the infinities can be ranked, but say nothing of a record, and
// golden rows refuse them, too. If the version that would rank instead gives none either, the
// version is not condemned (see othersScore). All these questions may come from one caller,
// who chooses viewer, window and entities. So the version is tried on records that no caller
// chooses. If it gives finite scores there, or cannot be tried, it is condemned only once no
// question has had a finite score for the time silent. by is what the version did in this
// question.
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
		e.since.Store(now) // a longer time in which nobody asked does not count
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
// finite score. The weights of a variant are no fault of the version. So the node asks the
// question again by the version's own weights, and judges that. It does so for one of
// condemnAfter such questions. It does so for each of them while the version's own weights
// have failed in some questions in a row, but in fewer than condemnAfter.
func (c *condemner) judgeWeighted(ctx context.Context, req *nodev1.QueryRequest, id relevance.ID, m *relevance.Model, by query.Measured) {
	if id.Version == "" || by.Scored == 0 || by.Finite {
		return
	}
	e := c.evidence(m)
	if n := e.nan.Load(); e.weighted.Add(1)%condemnAfter == 1 || 0 < n && n < condemnAfter {
		_, _ = c.node.query(ctx, probeOf(req, id)) // query judges the version; the answer is not used
	}
}

// probeOf returns the question of req for the best item alone, ranked by the version by with
// its own weights.
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

// evidence returns the evidence against a model, which is empty at first.
func (c *condemner) evidence(m *relevance.Model) *evidence {
	if e, ok := c.seen.Load(m); ok {
		return e.(*evidence)
	}
	e, _ := c.seen.LoadOrStore(m, &evidence{limit: race.Slower * m.CostLimit()})
	return e.(*evidence)
}

// othersScore reports whether the version that would rank instead gives a finite score in a
// question in which the version of gives none. If not, the question or the features are at
// fault, and not the version. It returns true if no such version is known.
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
	return true // no version is left: a built-in model would rank instead
}

// dropped forgets a version that an operator dropped from the cluster, or released before the
// cluster was told that it is condemned.
func (c *condemner) dropped(id relevance.ID) {
	c.forget(id)
	c.change(func(all map[relevance.ID]condemned) { delete(all, id) })
}

// forget forgets the evidence against a version.
func (c *condemner) forget(id relevance.ID) {
	if m, err := c.node.models.Find(id); err == nil {
		c.seen.Delete(m)
	}
}

// tellAgain is the pause after a report to the cluster failed, before it is made again.
const tellAgain = 2 * time.Second

// verdicts is what the cluster says of versions. [artefacts.Condemned] implements it.
type verdicts interface {
	Current() map[artefacts.Version]artefacts.Condemnation
	Changed() <-chan struct{} // closed at the next change
	Condemn(ctx context.Context, models *artefacts.Kind, v artefacts.Version, why, who string, seen time.Time) error
}

// run tells the cluster what is condemned here, and takes over what the cluster says, until
// ctx ends. It returns the error of ctx.
func (c *condemner) run(ctx context.Context, models *artefacts.Kind, all verdicts) error {
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

// takeOver takes over what the cluster says. A version that it said to be condemned and no
// longer does has been released.
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

// report tells the cluster of the versions that were condemned here and that it does not know
// as condemned yet.
func (c *condemner) report(ctx context.Context, models *artefacts.Kind, all verdicts) error {
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
