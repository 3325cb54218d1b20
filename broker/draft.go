package broker

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/interleave"
)

// draft makes a page of two models' rankings, which take turns to choose (draft) items:
// team 0 is the question's model, team 1 the second model, which is asked beside it.
type draft struct {
	pagetoken.Draft                   // how the next page goes on
	version         string            // the version of the second model that nodes ranked by
	at              interleave.Cursor // where this page begins
	fault           error             // why only the first model ranks this page; nil: both do
	left            bool              // the cap on an entity kept items off this page
}

// draftOf begins the draft that a variant wants, or on a later page (c is not nil) goes on
// with that of the first. If the second model has been dropped since, or nodes have
// condemned it (it breaks, or gives no finite score), the page is the first model's alone.
func (b *Broker) draftOf(q *question, c *pagetoken.Cursor) {
	switch {
	case c == nil && q.feed.Beside() != "":
		q.draft = &draft{Draft: pagetoken.Draft{Beside: artefacts.Version{Name: q.feed.Beside()}}, at: interleave.Cursor{Seed: rand.Uint64()}}
		if b.models != nil {
			if v, serves := b.models.Served(q.feed.Beside()); serves {
				q.draft.Beside = v
			}
		}
	case c != nil && c.Draft != nil:
		q.draft = &draft{Draft: *c.Draft, at: c.Draft.Next}
		if d := q.draft; d.Beside.Version != "" && (b.models == nil || !b.models.Has(d.Beside)) {
			q.draft.fault = fmt.Errorf("model %s has been dropped", d.Beside)
		}
	default:
		return
	}
	if why := b.condemned.why(q.draft.Beside); why != "" && q.draft.fault == nil {
		q.draft.fault = fmt.Errorf("model %s is condemned: %s", q.draft.Beside, why)
	}
	if q.BesideSum = q.draft.Beside.Sum; q.draft.fault == nil {
		d := q.draft
		q.Depth = min(interleave.Depth(int(q.Query.Limit), teams), limits.MaxLimit)
		q.Query.Beside = []*nodev1.Model{{Name: d.Beside.Name, Version: d.Beside.Version, Sum: d.Beside.Sum}}
	}
	q.draft.Next = q.draft.at
}

// askDraft asks a question. If a node lacks the second model of a draft, it asks once more,
// with that node last. If the second attempt fails or covers less, it returns the first
// outcome, whose page then cannot be drafted.
func (b *Broker) askDraft(ctx context.Context, q *question, end time.Time) (fanout.Outcome, *fanout.Asking, error) {
	o, f, err := b.ask(ctx, q, end)
	if err != nil || q.draft == nil || !b.lacksBeside(q, o) {
		return o, f, err
	}
	again, g, err := b.ask(ctx, q, end)
	if err != nil || ctx.Err() != nil || len(again.Missing) > len(o.Missing) {
		return o, f, nil
	}
	b.lacksBeside(q, again)
	return again, g, nil
}

// lacksBeside reports whether a node lacks the second model. For a while other nodes are
// asked before such a node.
func (b *Broker) lacksBeside(q *question, o fanout.Outcome) (lacks bool) {
	for _, pt := range o.Parts {
		for _, r := range pt.Resp.GetBeside() {
			if r.GetAbsent() && q.draft.Beside.Sum != "" { // a model without a sum is in every binary
				b.fanout.Note(pt.Node, q.draft.Beside.Sum)
				lacks = true
			}
		}
	}
	return lacks
}

// teams is how many rankings a draft takes.
const teams = 2

// ranking returns the entries of an answer in their order, before rules of spacing move
// any. If a draft cannot be made, it notes why in q.draft.fault and ranks by the
// question's model alone.
func (q *question) ranking(o fanout.Outcome) []fanout.Entry {
	limit, distinct := int(q.Query.Limit), q.Query.DistinctObjects
	if q.draft == nil {
		return fanout.Merge(o.Parts, limit, distinct)
	}
	own := fanout.Merge(o.Parts, q.Deep(), distinct)
	entries, err := q.draftPage(own, o)
	if err == nil {
		return entries
	}
	q.draft.fault = err
	return own[:min(limit, len(own))]
}

// draftPage drafts a page from two rankings: own, by the question's model, and the one by
// the second model, which is in o. If the draft has a fault, that is the error. With an
// error it returns no entries.
func (q *question) draftPage(own []fanout.Entry, o fanout.Outcome) ([]fanout.Entry, error) {
	d := q.draft
	if d.fault != nil {
		return nil, d.fault
	}
	parts, version, err := fanout.Beside(o.Parts, 0)
	if err != nil {
		return nil, err
	}
	rankings := [teams][]fanout.Entry{own, fanout.Merge(parts, q.Deep(), q.Query.DistinctObjects)}
	var names [teams][]candidateName // for each ranking, the names of the entries that are left
	var places [teams][]int          // and their places in the whole ranking
	for i, r := range rankings {
		names[i], places[i] = q.names(r), make([]int, len(r))
		for at := range r {
			places[i][at] = at
		}
	}
	limit, step := int(q.Query.Limit), int(q.Query.Limit)
	room := newCaps(q.Query.CapPerEntity)
	if room != nil {
		step = 1 // after each item it is known which entities have reached the cap
	}
	page := make([]fanout.Entry, 0, min(limit, len(rankings[0])+len(rankings[1])))
	at := d.at
	for len(page) < limit {
		picks, next, err := interleave.Draft(at, step, names[0], names[1])
		if err != nil {
			return nil, err
		}
		if at = next; len(picks) == 0 {
			break
		}
		for _, p := range picks {
			e := rankings[p.Ranking][places[p.Ranking][p.Place]]
			e.Ranking, e.Team = p.Ranking, int(p.Team)
			room.take(e.Entity)
			page = append(page, e)
		}
		if step == limit {
			break // nothing is capped: one draft made the page
		}
		taken := names[picks[0].Ranking][picks[0].Place]
		for i, r := range rankings {
			n := 0
			for k, name := range names[i] {
				switch at := places[i][k]; {
				case name == taken:
				case room.has(r[at].Entity):
					names[i][n], places[i][n] = name, at
					n++
				default:
					d.left = true
				}
			}
			names[i], places[i] = names[i][:n], places[i][:n]
		}
	}
	d.Next, d.version = at, version
	return page, nil
}

// candidateName identifies what an answer shows only once: an object, if the feed has
// distinct objects, and else a record in a timeline. (An object is what a record is about.)
type candidateName struct {
	timeline millrace.Timeline
	id       string
}

// names returns the names of the entries of a ranking, in their order.
func (q *question) names(ranking []fanout.Entry) []candidateName {
	all := make([]candidateName, len(ranking))
	for i := range ranking {
		if e := &ranking[i]; q.Query.DistinctObjects {
			all[i].id = e.Item.GetObject()
		} else {
			all[i] = candidateName{e.Timeline, string(e.ID)}
		}
	}
	return all
}

// caps counts the items of each entity on a page against the cap; nil: there is no cap.
// Nodes cap each ranking by itself, but two rankings together may have more.
type caps struct {
	most int
	have map[millrace.Entity]int
}

func newCaps(most int32) *caps {
	if most == 0 {
		return nil
	}
	return &caps{int(most), map[millrace.Entity]int{}}
}

// take counts an item of an entity that the page has got.
func (c *caps) take(e millrace.Entity) {
	if c != nil {
		c.have[e]++
	}
}

// has reports whether the page has room for one more item of an entity.
func (c *caps) has(e millrace.Entity) bool { return c == nil || c.have[e] < c.most }

// receipt says how an answer was drafted.
func (d *draft) receipt() *feedv1.Draft {
	if d == nil {
		return nil
	}
	r := &feedv1.Draft{Model: d.Beside.Name, ModelVersion: cmp.Or(d.version, d.Beside.Version), Seed: int64(d.at.Seed), Turns: int64(d.at.Turns)}
	if d.fault != nil {
		r.Fault = d.fault.Error()
	}
	return r
}

// expose notes in the record of an answer which model drafted which item. If there is no
// draft, or if it has a fault, it notes nothing.
func (d *draft) expose(q *question, r *exposure.Record, entries []fanout.Entry) {
	if d == nil || d.fault != nil {
		return
	}
	r.Interleaving = &exposure.Interleaving{Seed: d.at.Seed, Turns: d.at.Turns, Teams: []string{q.Query.Model, d.Beside.Name}}
	for _, x := range q.variants.dealt {
		if x.Sets.Interleave != nil {
			r.Interleaving.Experiment = x.Experiment
		}
	}
	r.Models = append(r.Models, modelOf(d.Beside, d.version, ""))
	for i := range entries {
		r.Items[i].Model, r.Items[i].Team = entries[i].Ranking, entries[i].Team
	}
}
