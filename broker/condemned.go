package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// Condemned says which versions of models are condemned, that is, must not rank, and
// why. [artefacts.Condemned] implements it.
type Condemned interface {
	// Why returns "" of a version that may be asked for.
	Why(v artefacts.Version) string
}

// lastResort is the model that ranks if every version of another is condemned. Every
// node has it, and it puts the newest records first.
const lastResort = "recency"

// condemned is which versions the broker does not ask for: those that the cluster
// lists, and those that a node has just refused to rank by, which the cluster's list
// may not have yet.
type condemned struct {
	cluster Condemned // nil: none
	mu      struct {
		sync.Mutex
		heard map[artefacts.Version]heard
		lacks map[questions.Weighted]struct{} // versions, each with weights that it has no parameters for
	}
}

// heard is what a node said of a version that it refuses to score by.
type heard struct {
	why   string
	until time.Time // after that, the broker asks for the version again
}

// heardFor is how long the broker goes by a node's refusal. By then the cluster's list
// should name the version. While etcd cannot be reached, the list does not name it. Then
// the broker asks for the version again after each heardFor; nodes refuse that question,
// and the broker asks it once more, by another version.
const heardFor = 2 * time.Second

// maxHeard bounds each map of what nodes have told. A full map is emptied.
const maxHeard = 1000

// note remembers for heardFor that a node refused to rank by v, and why.
func (c *condemned) note(v artefacts.Version, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.heard == nil || len(c.mu.heard) >= maxHeard {
		c.mu.heard = map[artefacts.Version]heard{}
	}
	c.mu.heard[v] = heard{why, time.Now().Add(heardFor)}
}

// why returns why a version is not asked for; "" if it is.
func (c *condemned) why(v artefacts.Version) string {
	if v.Version == "" {
		return "" // every binary has it
	}
	if c.cluster != nil {
		if why := c.cluster.Why(v); why != "" {
			return why
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h, is := c.mu.heard[v]
	if is && time.Now().After(h.until) {
		delete(c.mu.heard, v)
		return ""
	}
	return h.why
}

// takes reports whether version v may score by the weights that a variant sets. sum is
// their checksum, "" for none. of is the condemned version that v replaces. If of has
// no name, v replaces none and takes any weights. A replacement takes weights only if it
// is of the same model and no node has said that it lacks some of them.
func (c *condemned) takes(of, v artefacts.Version, sum string) bool {
	if of.Name == "" || sum == "" {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, lacks := c.mu.lacks[questions.Weighted{Version: v, Sum: sum}]
	return v.Name == of.Name && !lacks
}

// noteLack notes that a version lacks some of the weights. A version never changes, so
// this holds for good.
func (c *condemned) noteLack(w questions.Weighted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.lacks == nil || len(c.mu.lacks) >= maxHeard {
		c.mu.lacks = map[questions.Weighted]struct{}{}
	}
	c.mu.lacks[w] = struct{}{}
}

// choose sets the version that ranks: the one that serves or, if that is condemned, the
// last good one in its place. If the request itself names the model, choose refuses it
// instead: its caller wants to see that model and no other.
func (b *Broker) choose(q *question) error {
	v, _ := b.models.Served(cmp.Or(q.inPlaceOf.Name, q.Query.Model))
	if v.Name == "" { // the cluster has no version of it: it is a model of every binary
		v.Name = cmp.Or(q.inPlaceOf.Name, q.Query.Model)
	}
	q.inPlaceOf = artefacts.Version{}
	if why := b.unfit(q, v); why != "" {
		if q.named {
			return condemnedModel("model", "leave it out for the feed's, or see millrace model list", v, why)
		}
		q.inPlaceOf = v
		v = b.lastGood(q, v)
	}
	q.Query.Model, q.Query.ModelVersion, q.Query.ModelSum = v.Name, v.Version, v.Sum
	b.weigh(q)
	return nil
}

// refused is a version that a node refused to rank by while a question was asked.
type refused struct {
	artefacts.Version
	why string
}

// unfit returns why a version must not rank for a question; "" if it may. A version
// that a node refused for this question stays unfit for it, even beyond heardFor.
func (b *Broker) unfit(q *question, v artefacts.Version) string {
	for _, r := range q.refused {
		if r.Version == v {
			return r.why
		}
	}
	return b.condemned.why(v)
}

// maxTurns is how many times a question is asked for one model, each time by another
// version: nodes may condemn the last good one too. The last turn is that of lastResort,
// which none can condemn. Each model of a question has its own turns, so that one with
// many bad versions takes none from another. A question has few models.
const maxTurns = 4

// lastGood returns the version that ranks in the place of one that is condemned:
// that which served last before it and is not condemned, or else the last resort.
func (b *Broker) lastGood(q *question, v artefacts.Version) artefacts.Version {
	turns := 1
	for _, r := range q.refused {
		if r.Name == v.Name {
			turns++
		}
	}
	if turns < maxTurns {
		for _, before := range b.models.Before(v.Name) {
			if before != v && b.unfit(q, before) == "" {
				return before
			}
		}
	}
	return artefacts.Version{Name: lastResort}
}

// condemnedModel returns the refusal of a request that itself names a condemned version.
func condemnedModel(field, wayOut string, v artefacts.Version, why string) error {
	return &millrace.Error{Reason: millrace.ReasonCondemned, Field: field, Detail: fmt.Sprintf("model %s is condemned: %s", v, why), WayOut: wayOut}
}

// lapsed is the refusal of a later page if the version that ranked the first one has
// been condemned since. Another version would continue in another order. Only the
// caller knows whether it may begin again and show some items twice.
func lapsed(v artefacts.Version, why string) error {
	return pagetoken.Refuse("model %s, which ranked the first page, is condemned since: %s", v, why)
}

// leaveOut returns models without the condemned ones. They are shadow models, which
// score beside the model that ranks.
func (b *Broker) leaveOut(models []*nodev1.Model) (kept []*nodev1.Model) {
	for _, m := range models {
		if b.condemned.why(artefacts.Version{Name: m.Name, Version: m.Version, Sum: m.Sum}) == "" {
			kept = append(kept, m)
		}
	}
	return kept
}

// reasonOf returns why a node refused to rank by a version, from the error with which
// it refused.
func reasonOf(err error) string {
	var e *millrace.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	if _, why, cut := strings.Cut(e.Detail, saysCondemned); cut {
		return why
	}
	return e.Detail
}

// unweigh makes w's version rank by its own weights instead of w's, in each group of the
// question where it replaces a condemned version, or on a later page may have replaced
// one on the first. It reports whether it changed any group.
func (q *question) unweigh(w questions.Weighted) (did bool) {
	for i, g := range q.Groups {
		of := g.InPlaceOf.Name
		if i == 0 {
			of = q.inPlaceOf.Name
		}
		if r := g.Query; g.Model() == w.Version && w.Sum != "" && r.WeightsSum == w.Sum && (of != "" || q.later) {
			r.Weights, r.WeightsSum, g.Plain, did = "", "", true, true
			q.plain = q.plain || i == 0
		}
	}
	return did
}

// saysCondemned stands before the reason in a node's refusal.
const saysCondemned = "is condemned: "

// ask asks the nodes, and returns what they answered until end or until ctx ended; o may
// lack partitions. If a node says that the version which ranks is condemned, ask asks
// again with another version. The error is a refusal that holds for the whole request.
func (b *Broker) ask(ctx context.Context, q *question, end time.Time) (o fanout.Outcome, f *fanout.Asking, err error) {
	for {
		o, f, err = b.fanout.Ask(ctx, &q.Question, end)
		err = q.unblamed(q.feed.Discreet(err))
		again := false
		if again, err = b.givesWay(q, f.RefusedBy(), err); !again {
			return o, f, err
		}
	}
}

// unblamed turns a refusal for an unknown model into a fault of the feed, unless the
// request itself names the model. The feed or a variant names it then, and the caller
// cannot change that. It returns any other error as it is.
func (q *question) unblamed(err error) error {
	var e *millrace.Error
	if q.named || !errors.As(err, &e) || e.Reason != millrace.ReasonUnknown || e.Field != "model" {
		return err
	}
	return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "feed", Detail: fmt.Sprintf("feed %.100q cannot be ranked: %s", q.feed.Name, e.Detail), WayOut: feeds.FaultWayOut}
}

// givesWay changes a question after a node refused to rank by w, with err. If w's version
// lacks some of the weights, it ranks without them from now on; if it is condemned,
// another version ranks. again reports whether to ask the question again; if not, the
// error is what to refuse the request with, nil if nothing was refused. One answer has
// one version, so what other nodes answered is not kept.
func (b *Broker) givesWay(q *question, w questions.Weighted, err error) (again bool, _ error) {
	v := w.Version
	if fanout.LacksWeights(err) && q.unweigh(w) {
		b.condemned.noteLack(w)
		return true, nil
	}
	if !fanout.IsCondemned(err) || b.models == nil {
		return false, err
	}
	why := reasonOf(err)
	b.condemned.note(v, why)
	q.refused = append(q.refused, refused{v, why})
	switch {
	case q.Aside:
		return false, err
	case q.later:
		return false, lapsed(v, why)
	}
	if refused := b.choose(q); refused != nil {
		return false, refused
	}
	q.Query.Shadow = b.leaveOut(q.Query.Shadow)
	for _, g := range q.Groups[1:] {
		if refused := b.rank(q, g, nil); refused != nil {
			return false, refused
		}
	}
	return !q.asks(v), err
}
