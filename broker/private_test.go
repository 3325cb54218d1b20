package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/rpcerr"
)

// What a definition forbids holds although the definition has a fault: else
// who can give it one opens what is private.
func TestAPrivateFeedWithAFaultStaysClosed(t *testing.T) {
	defs := newDefinitions()
	defs.serve("staff", 1, "name: staff\nfilter: record.aud in viewer.groups\nmodel: recency\nprivate: true\n")
	book := newFeedBook(BuiltIn(), defs, func(context.Context, Feed) (bool, error) {
		return true, errors.New("the schemas disagree")
	}, slog.New(slog.DiscardHandler))
	book.start()
	defer book.close()
	b := &Broker{feeds: book}
	var e *millrace.Error
	if _, err := b.feedOf("recent"); !errors.As(err, &e) || e.Reason != millrace.ReasonForbidden {
		t.Errorf("the built-in feed, beside a private one with a fault: %v", err)
	}
	if _, err := b.feedOf("staff"); !errors.As(err, &e) || e.Reason != millrace.ReasonUnavailable {
		t.Errorf("the private feed with a fault: %v", err)
	}
}

// A caller's window and instant may only narrow what a private feed shows, or
// one that forbids them.
func TestAPrivateFeedsWindowOnlyNarrows(t *testing.T) {
	w := newWorld(t, 1, 1)
	now := time.Now()
	at := func(ago time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-ago)) }
	for i, ago := range []time.Duration{time.Minute, 30 * time.Minute, 3 * time.Hour} {
		w.add(timelineOf(1), millrace.RecordID(fmt.Sprint("r", i)), millrace.TimeOf(now.Add(-ago)), "")
	}
	for name, feed := range map[string]Feed{
		"private": {Private: true},
		"forbids": {Forbid: Forbid{Window: true}},
		"open":    {},
	} {
		feed.Name, feed.Model, feed.Window = name, "recency", time.Hour
		b := w.broker(feed)
		ask := func(change func(*feedv1.GetFeedRequest)) (int, error) {
			req := recentRequest(1)
			req.Feed, req.Entities = name, []string{string(timelineOf(1).Entity)}
			change(req)
			resp, err := b.GetFeed(t.Context(), req)
			return len(resp.GetItems()), err
		}
		open := name == "open"
		for _, c := range []struct {
			what   string
			change func(*feedv1.GetFeedRequest)
			items  int
			wide   int // of the feed that is open
		}{
			{"nothing", func(*feedv1.GetFeedRequest) {}, 2, 2},
			{"from before the window", func(r *feedv1.GetFeedRequest) { r.From = at(4 * time.Hour) }, 2, 3},
			{"from within the window", func(r *feedv1.GetFeedRequest) { r.From = at(10 * time.Minute) }, 1, 1},
			{"to within the window", func(r *feedv1.GetFeedRequest) { r.To = at(10 * time.Minute) }, 1, 1},
			{"all before the window", func(r *feedv1.GetFeedRequest) { r.From, r.To = at(4*time.Hour), at(2*time.Hour) }, 0, 1},
		} {
			want := c.items
			if open {
				want = c.wide
			}
			if n, err := ask(c.change); err != nil || n != want {
				t.Errorf("%s, %s: %d items, %v; want %d", name, c.what, n, err, want)
			}
		}
		var e *millrace.Error
		_, err := ask(func(r *feedv1.GetFeedRequest) { r.AsOf = at(2 * time.Hour) })
		if errors.As(err, &e); open != (err == nil) || !open && (e == nil || e.Reason != millrace.ReasonForbidden || e.Field != "as_of") {
			t.Errorf("%s, at another instant: %v", name, err)
		}
	}
	if f, err := ParseFeed([]byte("name: f\nmodel: m\nforbid: {window: true}")); err != nil || !f.Forbid.Window {
		t.Errorf("%+v, %v", f, err)
	}
}

// A refusal that quotes what was sent is short, whatever was sent.
func TestRefusalsAreShort(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	p := rpcerr.ProblemOf(&millrace.Error{Reason: millrace.ReasonInvalid, Field: "viewer.attributes." + long, Detail: long, WayOut: long})
	if n := len(p.Field) + len(p.Detail) + len(p.WayOut); n > 4<<10 {
		t.Errorf("%d bytes", n)
	}
}
