package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/oracle"
)

var pagedFeeds = []feeds.Feed{
	{Name: "plain", Model: "coarse"}, {Name: "capped", Model: "coarse", CapPerEntity: 2},
	{Name: "objects", Model: "coarse", DistinctObjects: true}, {Name: "both", Model: "coarse", DistinctObjects: true, CapPerEntity: 2},
}

// pages asks for page after page until there is none, calling between after
// each.
func pages(t *testing.T, b *Broker, req *feedv1.GetFeedRequest, between func()) (all []*feedv1.Item) {
	t.Helper()
	req = proto.Clone(req).(*feedv1.GetFeedRequest)
	for n := 0; ; n++ {
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, resp.Items...)
		if req.PageToken = resp.NextPageToken; req.PageToken == "" {
			return all
		}
		if n > 500 {
			t.Fatal("pages without end")
		}
		between()
	}
}

// While nothing changes, pages joined are the one long answer.
func TestPagesAreTheLongAnswer(t *testing.T) {
	eachWorld(t, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, 1+r.IntN(5), 1+r.IntN(2))
		w.fill(r, 20, 150)
		b := w.broker(pagedFeeds...)
		for _, f := range pagedFeeds {
			req := &feedv1.GetFeedRequest{Feed: f.Name, Entities: entityNames(20), Limit: proto.Int64(1000)}
			long, err := b.GetFeed(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			req.Limit = proto.Int64(1 + r.Int64N(30))
			got := pages(t, b, req, func() { // in whatever order the caller holds its set
				r.Shuffle(len(req.Entities), func(i, j int) { req.Entities[i], req.Entities[j] = req.Entities[j], req.Entities[i] })
			})
			want, have := oracle.FeedItems(long.Items), oracle.FeedItems(got)
			for _, items := range [][]oracle.Item{want, have} {
				for i := range items {
					items[i].Also = nil // says what ranks within the page
				}
			}
			if d := oracle.Diff(want, have); d != "" {
				t.Fatalf("seed %d, feed %s, pages of %d: %s", seed, f.Name, req.GetLimit(), d)
			}
		}
	})
}

// While records come, change and go between the pages, none is shown twice,
// and what was there all the time is shown once.
func TestPagesNeverRepeatAndNeverSkip(t *testing.T) {
	eachWorld(t, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, 1+r.IntN(5), 1+r.IntN(2))
		w.fill(r, 20, 100)
		b := w.broker(pagedFeeds...)
		distinct := r.IntN(2) == 0
		req := &feedv1.GetFeedRequest{Feed: "plain", Entities: entityNames(20), Limit: proto.Int64(1 + r.Int64N(20))}
		if distinct {
			req.Feed = "objects"
		}
		name := func(tl millrace.Timeline, o millrace.Object, id millrace.RecordID) string {
			if distinct {
				return string(o)
			}
			return fmt.Sprintf("%s %s", tl, id)
		}
		present := func() map[string]bool {
			names := map[string]bool{}
			for _, tl := range w.feed.Timelines() {
				for _, rec := range w.feed.Live(tl) {
					names[name(tl, rec.Object, rec.ID)] = true
				}
			}
			return names
		}
		stayed := present()
		changes := 20 // then they end, lest the pages do not
		got := pages(t, b, req, func() {
			if changes--; changes < 0 {
				return
			}
			w.change(r, 10)
			now := present()
			for n := range stayed {
				if !now[n] {
					delete(stayed, n)
				}
			}
		})
		shown := map[string]bool{}
		for _, it := range got {
			n := name(millrace.Timeline{Entity: millrace.Entity(it.Entity), Type: millrace.ContentType(it.Type)}, millrace.Object(it.Object), millrace.RecordID(it.Id))
			if shown[n] {
				t.Fatalf("seed %d: %s is shown twice", seed, n)
			}
			shown[n] = true
		}
		for n := range stayed {
			if !shown[n] {
				t.Fatalf("seed %d: %s was there all the time and is not shown", seed, n)
			}
		}
	})
}

// change inserts, deletes and re-ranks some records.
func (w *world) change(r *rand.Rand, n int) {
	for range n {
		timelines := w.feed.Timelines()
		tl := timelines[r.IntN(len(timelines))]
		live := w.feed.Live(tl)
		rec := live[r.IntN(len(live))]
		switch rec.Version++; r.IntN(3) {
		case 0:
			w.add(tl, millrace.RecordID(fmt.Sprintf("new%d", r.IntN(1e6))), millrace.Time(1000*r.IntN(40)), "")
		case 1:
			rec.Deleted = true
			w.feed.Apply(tl, rec)
		case 2: // the body no longer matches, which pages do not mind
			rec.Time = millrace.Time(1000 * r.IntN(40))
			w.feed.Apply(tl, rec)
		}
	}
}

// afterFirstPage returns a broker of 30 records, the first ten of them, and the request
// for the next.
func afterFirstPage(t *testing.T) (b *Broker, req *feedv1.GetFeedRequest, first *feedv1.GetFeedResponse) {
	t.Helper()
	w := newWorld(t, 1, 1)
	for i := range 30 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b, req = w.broker(), recentRequest(30)
	req.Limit = proto.Int64(10)
	first, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.PageToken = first.NextPageToken
	return b, req, first
}

func TestPageTokens(t *testing.T) {
	b, req, first := afterFirstPage(t)
	second, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(second.Receipt.AsOf, first.Receipt.AsOf) || second.Items[0].Id != "r019" {
		t.Errorf("second page as of %v after %v, begins with %v", second.Receipt.AsOf, first.Receipt.AsOf, second.Items[0].Id)
	}
	for name, change := range map[string]func(*feedv1.GetFeedRequest){
		"another feed":    func(r *feedv1.GetFeedRequest) { r.Feed = "home" },
		"another entity":  func(r *feedv1.GetFeedRequest) { r.Entities[0] = "x" },
		"an entity fewer": func(r *feedv1.GetFeedRequest) { r.Entities = r.Entities[1:] },
		"another filter":  func(r *feedv1.GetFeedRequest) { r.Filter = "true" },
		"another viewer":  func(r *feedv1.GetFeedRequest) { r.Viewer.Id = "x" },
		"another model":   func(r *feedv1.GetFeedRequest) { r.Model = "x" },
		"another window":  func(r *feedv1.GetFeedRequest) { r.To = timestamp(timeAt(5)) },
		"not a token":     func(r *feedv1.GetFeedRequest) { r.PageToken = "%%%" },
		"cut":             func(r *feedv1.GetFeedRequest) { r.PageToken = r.PageToken[:20] },
		"too short":       func(r *feedv1.GetFeedRequest) { r.PageToken = "AQ" },
		"altered":         func(r *feedv1.GetFeedRequest) { r.PageToken = "C" + r.PageToken[1:] },
		"of other brokers": func(r *feedv1.GetFeedRequest) {
			r.PageToken = (&pagetoken.Cursor{}).Encode(ringOf([]byte("another key")).Signing(time.Now()))
		},
		"expired": func(r *feedv1.GetFeedRequest) {
			c, err := b.pages.Open(r.PageToken, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			c.Issued -= millrace.Time((25 * time.Hour).Milliseconds())
			r.PageToken = c.Encode(b.pages.Signing(time.Now()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := proto.Clone(req).(*feedv1.GetFeedRequest)
			change(r)
			_, err := b.GetFeed(t.Context(), r)
			if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || e.Field != "page_token" || e.WayOut == "" {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// Every page is as of the first one, by whatever clock it is asked for.
func TestPagesAreAsOfTheFirst(t *testing.T) {
	b, req, first := afterFirstPage(t)
	q, err := b.read(t.Context(), req, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if asOf := millrace.TimeOf(first.Receipt.AsOf.AsTime()); q.asOf != asOf || q.Query.AsOfMs != int64(asOf) {
		t.Errorf("a later page is as of %v, and asks nodes for %d; the first was as of %v", q.asOf, q.Query.AsOfMs, asOf)
	}
}

// A page that is short because partitions are missing does not end the feed: the next
// has what they hold, once they answer.
func TestAPartialPageEndsNoFeed(t *testing.T) {
	w := newWorld(t, 2, 1)
	const records = 30
	for i := range records {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	req := recentRequest(records)
	req.Limit = proto.Int64(records)
	w.nodes["n1"].err = fanout.ErrUnreachable
	got := pages(t, b, req, func() { w.nodes["n1"].err = nil })
	shown := map[string]bool{}
	for _, it := range got {
		shown[it.Id] = true
	}
	if len(got) != records || len(shown) != records {
		t.Errorf("%d items, %d different ones, want %d", len(got), len(shown), records)
	}
}

// All that every page must ask alike is in a request's identity, and nothing of
// how it came.
func TestRequestIdentity(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	hash := func(change func(*feedv1.GetFeedRequest)) pagetoken.Identity {
		req := recentRequest(3)
		req.Types, req.From, req.Limit = []string{"post", "like"}, &timestamppb.Timestamp{Nanos: 1}, proto.Int64(5)
		req.Viewer = &feedv1.Viewer{Id: "v", Features: map[string]float64{"f": 1, "g": 2}, Attributes: map[string]*structpb.Value{
			"text": structpb.NewStringValue("x"), "number": structpb.NewNumberValue(1), "yes": structpb.NewBoolValue(true), "no": structpb.NewBoolValue(false),
			"list": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("a"), structpb.NewStringValue("b")}}),
		}}
		change(req)
		q, err := b.read(t.Context(), req, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		return q.request
	}
	same := hash(func(*feedv1.GetFeedRequest) {})
	for range 20 { // maps in some order
		if got := hash(func(r *feedv1.GetFeedRequest) {
			slices.Reverse(r.Entities)
			r.Entities = append(r.Entities, r.Entities[0])
			r.Types, r.Limit, r.Explain = []string{"like", "post", "like"}, nil, true
		}); got != same {
			t.Fatalf("%x, then %x", same, got)
		}
	}
	attribute := func(name string, v *structpb.Value) func(*feedv1.GetFeedRequest) {
		return func(r *feedv1.GetFeedRequest) { r.Viewer.Attributes[name] = v }
	}
	met := map[pagetoken.Identity]string{same: "nothing"}
	for name, change := range map[string]func(*feedv1.GetFeedRequest){
		"feed":        func(r *feedv1.GetFeedRequest) { r.Feed = "home" },
		"viewer":      func(r *feedv1.GetFeedRequest) { r.Viewer.Id = "w" },
		"filter":      func(r *feedv1.GetFeedRequest) { r.Filter = "true" },
		"model":       func(r *feedv1.GetFeedRequest) { r.Model = "m" },
		"type":        func(r *feedv1.GetFeedRequest) { r.Types = r.Types[:1] },
		"from":        func(r *feedv1.GetFeedRequest) { r.From.Nanos = 2 },
		"from, by s":  func(r *feedv1.GetFeedRequest) { r.From.Seconds = 1 },
		"no from":     func(r *feedv1.GetFeedRequest) { r.From = nil },
		"to":          func(r *feedv1.GetFeedRequest) { r.To = &timestamppb.Timestamp{Seconds: 9} },
		"as of":       func(r *feedv1.GetFeedRequest) { r.AsOf = &timestamppb.Timestamp{Seconds: 9} },
		"entity":      func(r *feedv1.GetFeedRequest) { r.Entities[0] = "other" },
		"feature":     func(r *feedv1.GetFeedRequest) { r.Viewer.Features["f"] = 2 },
		"features":    func(r *feedv1.GetFeedRequest) { r.Viewer.Features = map[string]float64{"f": 2, "g": 1} },
		"no feature":  func(r *feedv1.GetFeedRequest) { delete(r.Viewer.Features, "f") },
		"text":        attribute("text", structpb.NewStringValue("y")),
		"number":      attribute("number", structpb.NewNumberValue(2)),
		"yes":         attribute("yes", structpb.NewBoolValue(false)),
		"no":          attribute("no", structpb.NewBoolValue(true)),
		"other kind":  attribute("text", structpb.NewNumberValue(1)),
		"list":        attribute("list", structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("ab")}})),
		"a new one":   attribute("new", structpb.NewBoolValue(false)),
		"none at all": func(r *feedv1.GetFeedRequest) { r.Viewer.Attributes = nil },
	} {
		got := hash(change)
		if other, ok := met[got]; ok {
			t.Errorf("another %s has the identity of another %s", name, other)
		}
		met[got] = name
	}
}
