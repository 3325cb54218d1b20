package findings

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// item is what a node sends of a post of member:1, whose time is in seconds.
func item(id string, score float64, at int64, object string, also ...*nodev1.Item) *nodev1.Item {
	return &nodev1.Item{Id: id, Entity: "member:1", Type: "post", Score: score, TimeMs: 1000 * at, Object: object, Also: also}
}

// searchFor is a search for the record "r" in an answer of at most three items.
func searchFor(q *nodev1.QueryRequest, found []*nodev1.Finding, answer ...*nodev1.Item) *Search {
	q.Limit = 3
	s := &Search{Query: q, ID: "r", Asked: true, Variants: func(e millrace.Entity) map[string]string { return map[string]string{"x": string(e)} }}
	s.Take(fanout.Outcome{Parts: []fanout.Part{{
		Node: "n0", Covered: topology.All(), Group: &questions.Group{Query: q}, Resp: &nodev1.QueryResponse{Items: answer, Findings: found},
	}}})
	return s
}

// What a node says of a record, and the answer, make the stage, and the sentence that tells
// it with all that a reader needs to see why.
func TestWhatBecameOfARecord(t *testing.T) {
	const at = "1970-01-01T00:00:05.000Z"
	full := []*nodev1.Item{item("a", 9, 9, ""), item("b", 8, 8, ""), item("c", 7, 7, "")}
	scored := func(score float64) *nodev1.Finding { return &nodev1.Finding{Score: score} }
	clause := func(outcome string, operands ...*feedv1.Operand) *nodev1.Finding {
		return &nodev1.Finding{Dropped: Filtered, Clause: &feedv1.FilterClause{Clause: "record.stars > 3", Outcome: outcome, Operands: operands}}
	}
	for name, c := range map[string]struct {
		found  *nodev1.Finding
		query  *nodev1.QueryRequest
		others bool // the request asks for other entities
		answer []*nodev1.Item
		stage  string
		place  int32
		rivals string
		detail string
	}{
		"deleted":             {found: &nodev1.Finding{Dropped: Deleted, Version: 7}, stage: Deleted, detail: "version 7, of " + at + ", deleted it from member:1/post"},
		"deleted, not asked":  {found: &nodev1.Finding{Dropped: Deleted, Version: 7}, others: true, stage: Deleted, detail: "version 7, of " + at + ", deleted it from member:1/post"},
		"expired":             {found: &nodev1.Finding{Dropped: Expired}, stage: Expired, detail: "retention has dropped it from member:1/post: its time is " + at},
		"expired, not asked":  {found: &nodev1.Finding{Dropped: Expired}, others: true, stage: Expired, detail: "retention has dropped it from member:1/post: its time is " + at},
		"of another type":     {found: &nodev1.Finding{Dropped: NotAsked}, query: &nodev1.QueryRequest{Types: []string{"like", "share"}}, stage: NotAsked, detail: "it is in member:1/post, and the types asked are like, share"},
		"not asked":           {found: scored(9), others: true, answer: []*nodev1.Item{item("r", 9, 5, "")}, stage: NotAsked, detail: "it is in member:1/post, and the request does not ask for member:1"},
		"filtered, not asked": {found: clause("false"), others: true, stage: NotAsked, detail: "it is in member:1/post, and the request does not ask for member:1"},
		"before the window":   {found: &nodev1.Finding{Dropped: Outside}, query: &nodev1.QueryRequest{FromMs: 5001, ToMs: 9000}, stage: Outside, detail: "its time, " + at + ", is before the window, which begins at 1970-01-01T00:00:05.001Z"},
		"behind the window":   {found: &nodev1.Finding{Dropped: Outside}, query: &nodev1.QueryRequest{FromMs: 5000, ToMs: 5000}, stage: Outside, detail: "its time, " + at + ", is behind the window, which ends before " + at},
		"filtered":            {found: clause("false"), stage: Filtered, detail: "the filter drops it: record.stars > 3 is false"},
		"filtered by null":    {found: clause("null", &feedv1.Operand{Name: "record.stars"}), stage: Filtered, detail: "the filter drops it: record.stars > 3 is null, where record.stars = null"},
		"filtered by NaN":     {found: clause("nan"), stage: Filtered, detail: "the filter drops it: record.stars > 3 is false, for it compares NaN"},
		"filtered by a fault": {found: clause("error", &feedv1.Operand{Name: "a", Value: structpb.NewNumberValue(2)}, &feedv1.Operand{Name: "b", Value: structpb.NewStringValue("x")}), stage: Filtered, detail: `the filter drops it: record.stars > 3 is an error, where a = 2, b = "x"`},
		"shown":               {found: scored(8), answer: []*nodev1.Item{item("a", 9, 9, ""), item("r", 8, 5, "")}, stage: Shown, place: 2, detail: "it is in the answer, at place 2"},
		"served":              {found: &nodev1.Finding{Score: 1, Served: true}, answer: full, stage: Served, detail: "an earlier page showed it"},
		"its object served":   {found: &nodev1.Finding{Score: 1, Served: true, Object: "o"}, query: &nodev1.QueryRequest{DistinctObjects: true}, stage: Served, detail: "an earlier page showed its object, o"},
		"below the last":      {found: scored(4.5), answer: full, stage: BelowCut, rivals: "c", detail: "it scores 4.5 and is number 0 of those scored; the last of the 3 items, c, scores 7, 2.5 more"},
		"below by NaN":        {found: scored(math.NaN()), answer: full, stage: BelowCut, rivals: "c", detail: "it scores NaN and is number 0 of those scored; the last of the 3 items, c, scores 7"},
		"below by time":       {found: scored(7), answer: full, stage: BelowCut, rivals: "c", detail: "it scores 7 and is number 0 of those scored; the last of the 3 items, c, scores 7 as well, and is newer"},
		"below by id":         {found: scored(7), answer: []*nodev1.Item{full[0], full[1], item("q", 7, 5, "")}, stage: BelowCut, rivals: "q", detail: "it scores 7 and is number 0 of those scored; the last of the 3 items, q, scores 7 as well, is as new, and comes first by id"},
		"below, and capped":   {found: &nodev1.Finding{Score: 4, CappedBy: full[:1]}, answer: full, stage: BelowCut, rivals: "c", detail: "it scores 4 and is number 0 of those scored; the last of the 3 items, c, scores 7, 3 more"},
		"capped":              {found: &nodev1.Finding{Score: 7.5, CappedBy: full[:2]}, answer: full, stage: Capped, rivals: "a b", detail: "it scores 7.5, and 2 of member:1 rank above it, as many as the feed shows of an entity: a, b"},
		"capped, none full":   {found: &nodev1.Finding{Score: 1, CappedBy: full[:1]}, answer: full[:2], stage: Capped, rivals: "a", detail: "it scores 1, and 1 of member:1 rank above it, as many as the feed shows of an entity: a"},
		"deduplicated": {found: &nodev1.Finding{Score: 8.5, Object: "o"}, query: &nodev1.QueryRequest{DistinctObjects: true}, answer: []*nodev1.Item{item("a", 10, 9, "p"), item("b", 9, 9, "o", item("q", 8.6, 5, "o"))},
			stage: Deduplicated, place: 2, rivals: "b", detail: "b of member:1/post, about the same object, o, ranks above it, at place 2 of the answer"},
		"deduplicated, told": {found: &nodev1.Finding{Score: 8.5, Object: "o"}, query: &nodev1.QueryRequest{DistinctObjects: true}, answer: []*nodev1.Item{item("b", 9, 9, "o", item("r", 8.5, 5, "o"))},
			stage: Deduplicated, place: 1, rivals: "b", detail: "b of member:1/post, about the same object, o, ranks above it, at place 1 of the answer, and names it as also"},
		"of another timeline, told": {found: &nodev1.Finding{Score: 8.5, Object: "o"}, query: &nodev1.QueryRequest{DistinctObjects: true},
			answer: []*nodev1.Item{item("b", 9, 9, "o", &nodev1.Item{Id: "r", Entity: "member:1", Type: "like", Score: 8.5, TimeMs: 5000})},
			stage:  Deduplicated, place: 1, rivals: "b", detail: "b of member:1/post, about the same object, o, ranks above it, at place 1 of the answer"},
	} {
		c.found.Entity, c.found.Type, c.found.TimeMs = "member:1", "post", 5000
		if c.query == nil {
			c.query = &nodev1.QueryRequest{}
		}
		s := searchFor(c.query, []*nodev1.Finding{c.found}, c.answer...)
		s.Asked = !c.others
		all, err := s.Findings()
		if err != nil || len(all) != 1 {
			t.Errorf("%s: %v, %v", name, all, err)
			continue
		}
		var rivals []string
		for _, r := range all[0].Rivals {
			rivals = append(rivals, r.Id)
		}
		f, scored := all[0], c.stage == Shown || c.stage == Served || len(rivals) > 0
		if f.Stage != c.stage || f.Place != c.place || strings.Join(rivals, " ") != c.rivals || (f.Score != nil) != scored || (f.Clause != nil) != (c.stage == Filtered) || f.Variants["x"] != "member:1" {
			t.Errorf("%s: %v", name, f)
		}
		if got := s.Detail(f); got != c.detail {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.detail)
		}
	}
}

// A record that ranks within an answer and is not there is nothing that can be explained.
func TestARecordThatNothingKeepsOut(t *testing.T) {
	found := []*nodev1.Finding{{Entity: "member:1", Type: "post", Score: 7.5, TimeMs: 5000, Object: "o"}}
	full := []*nodev1.Item{item("a", 9, 9, "o"), item("b", 8, 8, "p"), item("c", 7, 7, "q")}
	for _, answer := range [][]*nodev1.Item{full, full[:2], nil} {
		if all, err := searchFor(&nodev1.QueryRequest{}, found, answer...).Findings(); err == nil || !strings.Contains(err.Error(), `"r" of member:1/post is neither`) {
			t.Errorf("%v, %v", all, err)
		}
	}
}

// Of findings in several timelines the one nearest to being shown comes first, then the best;
// those of partitions that another part covers, and of entities that nobody asks of, are none.
func TestFindingsInOrder(t *testing.T) {
	const a, b, elsewhere = "member:1", "member:2", "member:3"
	found := []*nodev1.Finding{
		{Entity: b, Type: "post", Dropped: Deleted}, {Entity: b, Type: "like", Dropped: Expired}, {Entity: a, Type: "share", Dropped: Filtered},
		{Entity: b, Type: "b", Score: 1}, {Entity: b, Type: "a", Score: 1}, {Entity: a, Type: "c", Score: 1}, {Entity: a, Type: "b", Score: 2}, {Entity: elsewhere, Type: "post", Dropped: Expired},
	}
	s := searchFor(&nodev1.QueryRequest{}, found, item("x", 9, 9, ""), item("y", 9, 9, ""), item("z", 9, 9, ""))
	s.Parts[0].Covered.Remove(partition.Of(elsewhere))
	look := func(want ...string) {
		t.Helper()
		all, err := s.Findings()
		var got []string
		for _, f := range all {
			got = append(got, f.Entity+"/"+f.Type+" "+f.Stage)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("of %q: %v, %v", s.Entity, got, err)
		}
	}
	ofA := []string{"member:1/b below_cut", "member:1/c below_cut"}
	look(append(ofA, "member:2/a below_cut", "member:2/b below_cut", "member:1/share filtered", "member:2/like expired", "member:2/post deleted")...)
	s.Entity = a
	look(append(ofA, "member:1/share filtered")...)
}

// Where a feed keeps items apart, a place is one of the answer as it is shown.
func TestPlacesAreThoseShown(t *testing.T) {
	q := &nodev1.QueryRequest{}
	s := searchFor(q, []*nodev1.Finding{{Entity: "member:1", Type: "post", Score: 8, TimeMs: 5000}})
	s.Spacing = feeds.Spacing{Entity: 1}
	s.Parts[0].Resp.Items = []*nodev1.Item{item("a", 9, 9, ""), item("r", 8, 5, ""), {Id: "c", Entity: "member:2", Type: "post", Score: 7}}
	s.Take(s.Outcome)
	if all, err := s.Findings(); err != nil || len(all) != 1 || all[0].Place != 3 {
		t.Errorf("%v, %v", all, err)
	}
}

// A record that nobody found may be on what did not answer.
func TestNothingFound(t *testing.T) {
	const of = "member:1"
	mine := partition.Of(of)
	for _, c := range []struct {
		entity  string
		missing map[millrace.Partition]string
		stage   string
		says    string
	}{
		{"", nil, Never, "no timeline of the entities asked has it"},
		{of, nil, Never, "no timeline of member:1 has it"},
		{of, map[millrace.Partition]string{mine + 1: "timeout"}, Never, "no timeline of member:1 has it"},
		{of, map[millrace.Partition]string{mine: "timeout", mine + 1: "behind"}, Unanswered, ": 1 timeout"},
		{"", map[millrace.Partition]string{1: "timeout", 2: "behind", 3: "timeout"}, Unanswered, ": 1 behind, 2 timeout"},
	} {
		s := Search{Entity: c.entity, Outcome: fanout.Outcome{Missing: maps.Clone(c.missing)}}
		if stage, detail := s.Nothing(); stage != c.stage || !strings.Contains(detail, c.says) {
			t.Errorf("%+v: %s, %s", c, stage, detail)
		}
	}
}
