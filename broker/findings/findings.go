// Package findings tells what became of one record in an answer, of what index nodes
// say of it and the answer has: in each timeline a stage, and a sentence.
package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/partition"
)

// What became of a record, as WhyResponse.stage says it. Of several stages that
// would keep it out the first of docs/feeds.md is named: below_cut goes before
// capped and deduplicated, since without a better score nothing else helps.
const (
	Never        = "never_ingested"
	Unanswered   = "unanswered"
	Deleted      = "deleted"
	Expired      = "expired"
	NotAsked     = "not_asked"
	Outside      = "outside_window"
	Filtered     = "filtered"
	Served       = "served"
	BelowCut     = "below_cut"
	Capped       = "capped"
	Deduplicated = "deduplicated"
	Shown        = "shown"
)

// Stages orders stages by how far a record came.
var Stages = []string{
	Shown, Served, Deduplicated, Capped, BelowCut, Filtered, Outside, NotAsked, Expired, Deleted,
}

// Search is the search for what became of a record in an answer.
type Search struct {
	Query    *nodev1.QueryRequest                    // that was asked
	Spacing  feeds.Spacing                           // of the answer's items
	Variants func(millrace.Entity) map[string]string // of experiments, that an entity has

	ID     millrace.RecordID
	Entity string // whose timelines are looked at; empty: all that were asked
	Asked  bool   // the request asks for entity

	fanout.Outcome
	entries []fanout.Entry // of the answer, in rank order
	places  map[candidateKey]int
	groups  map[*feedv1.Finding]*questions.Group // that their entities are of
}

// candidateKey is a record in a timeline.
type candidateKey struct {
	millrace.Timeline
	id millrace.RecordID
}

// Take makes the answer of what the nodes answered.
func (s *Search) Take(o fanout.Outcome) {
	s.Outcome = o
	s.entries = fanout.Merge(o.Parts, int(s.Query.Limit), s.Query.DistinctObjects)
	shown := slices.Clone(s.entries)
	s.Spacing.Apart(shown)
	s.places = make(map[candidateKey]int, len(shown))
	for at := range shown {
		s.places[candidateKey{shown[at].Timeline, shown[at].ID}] = at + 1
	}
}

// Findings says what became of the record wherever a node has found it.
func (s *Search) Findings() ([]*feedv1.Finding, error) {
	var all []*feedv1.Finding
	s.groups = map[*feedv1.Finding]*questions.Group{}
	for _, pt := range s.Parts {
		for _, n := range pt.Resp.GetFindings() {
			e := millrace.Entity(n.GetEntity())
			if !pt.Covered.Has(partition.Of(e)) || s.Entity != "" && n.GetEntity() != s.Entity {
				continue
			}
			f, err := s.finding(n)
			if err != nil {
				return nil, err
			}
			f.Variants = s.Variants(e)
			s.groups[f] = pt.Group
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *feedv1.Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(Stages, a.Stage), slices.Index(Stages, b.Stage)),
			millrace.CompareScores(a.GetScore(), b.GetScore()),
			strings.Compare(a.Entity, b.Entity), strings.Compare(a.Type, b.Type))
	})
	return all, nil
}

// finding judges what a node has found in one timeline.
func (s *Search) finding(n *nodev1.Finding) (*feedv1.Finding, error) {
	f := &feedv1.Finding{
		Entity: n.GetEntity(), Type: n.GetType(), Time: timestamppb.New(millrace.Time(n.GetTimeMs()).Std()), Version: n.GetVersion(), Object: n.GetObject(),
		Stage: n.GetDropped(), Clause: n.GetClause(),
	}
	gone := f.Stage == Deleted || f.Stage == Expired
	if !s.Asked && !gone {
		f.Stage, f.Clause = NotAsked, nil
	}
	if f.Stage != "" {
		return f, nil
	}
	f.Score = new(n.GetScore())
	r := fanout.RankOf(&nodev1.Item{Score: n.GetScore(), TimeMs: n.GetTimeMs(), Id: string(s.ID), Entity: f.Entity, Type: f.Type})
	return f, s.place(f, n, r)
}

// place judges a record that was scored.
func (s *Search) place(f *feedv1.Finding, n *nodev1.Finding, r millrace.Rank) error {
	of := slices.IndexFunc(s.entries, func(e fanout.Entry) bool { return e.Item.GetObject() == f.Object })
	last := len(s.entries) - 1
	switch {
	case s.places[candidateKey{r.Timeline, r.ID}] > 0:
		f.Stage, f.Place = Shown, int32(s.places[candidateKey{r.Timeline, r.ID}])
	case n.GetServed():
		f.Stage = Served
	case len(s.entries) == int(s.Query.Limit) && s.entries[last].Compare(r) < 0:
		f.Stage, f.Rivals = BelowCut, []*feedv1.Rival{rival(s.entries[last].Rank)}
	case len(n.GetCappedBy()) > 0:
		f.Stage = Capped
		for _, it := range n.GetCappedBy() {
			f.Rivals = append(f.Rivals, rival(fanout.RankOf(it)))
		}
	case s.Query.DistinctObjects && of >= 0:
		e := &s.entries[of]
		f.Stage, f.Rivals, f.Place = Deduplicated, []*feedv1.Rival{rival(e.Rank)}, int32(s.places[candidateKey{e.Timeline, e.ID}])
		f.Also = slices.ContainsFunc(e.Also, func(a fanout.Ranked) bool {
			also := fanout.RankOf(a.Item)
			return also.ID == r.ID && also.Timeline == r.Timeline
		})
	default:
		return fmt.Errorf("broker: record %q of %s is neither in the answer nor kept out of it", r.ID, r.Timeline)
	}
	return nil
}

func rival(r millrace.Rank) *feedv1.Rival {
	return &feedv1.Rival{Id: string(r.ID), Entity: string(r.Entity), Type: string(r.Type), Time: timestamppb.New(r.Time.Std()), Score: r.Score}
}
