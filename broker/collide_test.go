package broker

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/findings"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/oracle/collide"
	"github.com/millrace/millrace/internal/partition"
)

// A producer cannot make an object, or a record, that pages take for a
// victim's: all are shown, and nobody says that an earlier page showed one.
func TestPagesShowWhatCollides(t *testing.T) {
	feeds := []feeds.Feed{{Name: "plain", Model: "recency"}, {Name: "objects", Model: "recency", DistinctObjects: true}}
	w := newWorld(t, 1, 1)
	victim := timelineOf(1)
	evil := millrace.Timeline{Entity: "member:evilevil", Type: "post"}
	hash := partition.Hash(millrace.Entity(string(victim.Entity) + "\x00" + string(victim.Type) + "\x00victim"))
	id := collide.Ends(fmt.Sprintf("%s\x00%s\x00", evil.Entity, evil.Type), hash)
	w.feed.Apply(evil, millrace.Record{ID: millrace.RecordID(id), Time: timeAt(9), Object: millrace.Object(collide.Names(partition.Hash("victim"), 1)[0]), Schema: note.Fingerprint(), Body: benchBody})
	w.add(timelineOf(2), "between", timeAt(8), "")
	w.add(victim, "victim", timeAt(7), "")
	w.add(timelineOf(2), "last", timeAt(6), "")
	b := w.broker(feeds...)
	for _, f := range feeds {
		req := &feedv1.GetFeedRequest{Feed: f.Name, Entities: []string{string(evil.Entity), string(victim.Entity), string(timelineOf(2).Entity)}, Limit: proto.Int64(1)}
		first, err := b.GetFeed(t.Context(), req)
		if err != nil || len(first.Items) != 1 || first.Items[0].Entity != string(evil.Entity) {
			t.Fatalf("%s: %v, %v", f.Name, first, err)
		}
		if all := pages(t, b, req, func() {}); len(all) != 4 || all[2].Id != "victim" {
			t.Errorf("%s: pages show %v", f.Name, all)
		}
		req.PageToken = first.NextPageToken
		if why := w.why(b, &feedv1.WhyRequest{Record: "victim", Request: req}); why.Stage != findings.BelowCut {
			t.Errorf("%s: the victim is %s: %s", f.Name, why.Stage, why.Detail)
		}
	}
}

// A token is of one request, also for a caller who solves a feature so that an
// unkeyed hash of another request would be the same.
func TestTokensAreNotForged(t *testing.T) {
	w := newWorld(t, 1, 1)
	for i := range 9 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	req := recentRequest(9)
	req.Limit, req.AsOf = proto.Int64(1), timestamppb.New(timeAt(1<<20).Std())
	first, err := b.GetFeed(t.Context(), req)
	if err != nil || first.NextPageToken == "" {
		t.Fatalf("%v, %v", first, err)
	}
	entities := uint64(0)
	for _, e := range req.Entities {
		entities += partition.Hash(millrace.Entity(e))
	}
	unkeyed := func(r *feedv1.GetFeedRequest) string {
		var body []byte
		for _, s := range []string{r.Feed, r.GetViewer().GetId(), "", ""} {
			body = append(binary.AppendUvarint(body, uint64(len(s))), s...)
		}
		if body = append(body, 0, 0, 0); r.AsOf != nil {
			body = binary.LittleEndian.AppendUint64(append(body[:len(body)-1], 1), uint64(r.AsOf.Seconds))
			body = binary.LittleEndian.AppendUint32(body, uint32(r.AsOf.Nanos))
		}
		return string(body)
	}
	forged := proto.Clone(req).(*feedv1.GetFeedRequest)
	forged.AsOf, forged.PageToken = nil, first.NextPageToken
	forged.Viewer = &feedv1.Viewer{Id: "abc"}
	hash := partition.Hash(millrace.Entity(binary.LittleEndian.AppendUint64([]byte(unkeyed(req)), entities)))
	feature := collide.End("\x06secretf", collide.End(unkeyed(forged), hash)-entities)
	forged.Viewer.Features = map[string]float64{"secret": math.Float64frombits(feature)}
	_, err = b.GetFeed(t.Context(), forged)
	if e := refusal(t, err); e.Reason != millrace.ReasonPageToken {
		t.Errorf("a token of another request: %+v", e)
	}
}

// The pages of a feed last a day from its first: none of them makes it longer.
func TestPagesKeepTheirFirstsTime(t *testing.T) {
	w := newWorld(t, 1, 1)
	for i := range 9 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	req := recentRequest(9)
	req.Limit = proto.Int64(1)
	first, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.pages.Open(first.NextPageToken, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.Issued -= millrace.Time((pagetoken.Life / 2).Milliseconds())
	req.PageToken = c.Encode(b.pages.Signing(time.Now()))
	second, err := b.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	next, err := b.pages.Open(second.NextPageToken, time.Now())
	if err != nil || next.Issued != c.Issued {
		t.Errorf("issued at %s, then at %s, %v", c.Issued, next.Issued, err)
	}
}
