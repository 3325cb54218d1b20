// Package findings tells what became of one record in an answer. From what index nodes say
// of the record and from the answer itself it works out, for each timeline that has the
// record, a stage (such as filtered or shown) and a sentence.
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

// What became of a record, as WhyResponse.stage says it. If several stages would keep the
// record out, the first in the order of docs/feeds.md is named. There below_cut goes before
// capped and deduplicated, since without a better score nothing else helps.
const (
	Never        = "never_ingested" // no timeline has it, or has had it deleted
	Unanswered   = "unanswered"     // not found, but partitions that may have it are missing
	Deleted      = "deleted"
	Expired      = "expired"        // retention has dropped it
	NotAsked     = "not_asked"      // the request does not ask for its entity, or not for its type
	Outside      = "outside_window" // its time is outside the times asked for
	Filtered     = "filtered"
	Served       = "served"       // an earlier page showed it
	BelowCut     = "below_cut"    // the answer is full, and its last item ranks above it
	Capped       = "capped"       // as many records of its entity as the feed shows rank above it
	Deduplicated = "deduplicated" // a record about the same object ranks above it
	Shown        = "shown"
)

// Stages lists the stages of a record that was found. Those nearest to being shown come
// first. Findings are sorted in this order.
var Stages = []string{
	Shown, Served, Deduplicated, Capped, BelowCut, Filtered, Outside, NotAsked, Expired, Deleted,
}

// Search is the search for what became of a record in an answer.
type Search struct {
	Query    *nodev1.QueryRequest                    // what the nodes were asked
	Spacing  feeds.Spacing                           // how the feed spaces the answer's items
	Variants func(millrace.Entity) map[string]string // an entity's variants, by experiment

	ID     millrace.RecordID
	Entity string // the entity whose timelines are searched; "": all that were asked
	Asked  bool   // the request asks for Entity

	fanout.Outcome
	entries []fanout.Entry                       // of the answer, in rank order
	places  map[candidateKey]int                 // in the answer as shown, from 1
	groups  map[*feedv1.Finding]*questions.Group // the group that a finding's entity belongs to
}

// candidateKey is a record in a timeline.
type candidateKey struct {
	millrace.Timeline
	id millrace.RecordID
}

// Take takes the outcome of asking the nodes, and makes the answer from it. It must be
// called before Findings.
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

// Findings returns what became of the record in each timeline where a node has found it, in
// the order of Stages, then the better score first. The error is an invariant that does not
// hold: a record neither in the answer nor kept out of it.
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

// finding works out the stage of what a node has found in one timeline.
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

// place works out the stage of a record that was scored. r is its rank.
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
