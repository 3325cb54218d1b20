package broker

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/feedstest"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/rpcerr"
)

// What a definition forbids holds although the definition has a fault: else
// who can give it one opens what is private.
func TestAPrivateFeedWithAFaultStaysClosed(t *testing.T) {
	defs := feedstest.New()
	defs.Serve("staff", 1, "name: staff\nfilter: record.aud in viewer.groups\nmodel: recency\nprivate: true\n")
	book := feeds.NewBook(feeds.BuiltIn(), defs, func(context.Context, feeds.Feed) (bool, error) {
		return true, errors.New("the schemas disagree")
	}, slog.New(slog.DiscardHandler))
	book.Start()
	defer book.Close()
	b := &Broker{feeds: book}
	var e *millrace.Error
	if _, err := b.feedOf(t.Context(), "recent"); !errors.As(err, &e) || e.Reason != millrace.ReasonForbidden {
		t.Errorf("the built-in feed, beside a private one with a fault: %v", err)
	}
	if _, err := b.feedOf(t.Context(), "staff"); !errors.As(err, &e) || e.Reason != millrace.ReasonUnavailable {
		t.Errorf("the private feed with a fault: %v", err)
	}
}

// Who names no feed that there is hears of those that are served, and that it may ask.
func TestOnlyFeedsThatMayBeAskedAreNamed(t *testing.T) {
	defs := feedstest.New()
	defs.Serve("news", 1, "name: news\nmodel: recency\n")
	serve := func() *Broker {
		book := feeds.NewBook(feeds.BuiltIn(), defs, func(_ context.Context, f feeds.Feed) (bool, error) {
			if f.Name == "broken" {
				return true, errors.New("the schemas disagree")
			}
			return true, nil
		}, slog.New(slog.DiscardHandler))
		book.Start()
		t.Cleanup(book.Close)
		return &Broker{feeds: book}
	}
	asks := func(b *Broker, r *permit.Rights, want string) {
		t.Helper()
		for _, name := range []string{"", "nosuch"} {
			_, err := b.feedOf(permit.With(t.Context(), permit.Identity{Name: "app", Rights: r}), name)
			if e, ok := errors.AsType[*millrace.Error](err); !ok || e.WayOut != want {
				t.Errorf("feed %q with %+v: %v, want %q", name, r, err, want)
			}
		}
	}
	open := serve()
	asks(open, nil, "name one of home, news, recent")
	asks(open, &permit.Rights{}, "name one of news")
	defs.Serve("staff", 1, "name: staff\nmodel: recency\nprivate: true\n")
	defs.Serve("broken", 1, "name: broken\nmodel: recency\n")
	closed := serve()
	asks(closed, nil, "name one of news, staff")
	asks(closed, &permit.Rights{Feeds: []string{"news", "nosuch"}}, "name one of news")
	asks(closed, &permit.Rights{Feeds: []string{"nosuch"}}, "none is served that you may ask; have one defined")
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
	for name, feed := range map[string]feeds.Feed{
		"private": {Private: true},
		"forbids": {Forbid: feeds.Forbid{Window: true}},
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
	if f, err := feeds.Parse([]byte("name: f\nmodel: m\nforbid: {window: true}")); err != nil || !f.Forbid.Window {
		t.Errorf("%+v, %v", f, err)
	}
}

// A private feed's refusals name no content type, no field and no filter but
// those that it shows.
func TestAPrivateFeedNamesNothingElse(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(0), recordID(0), timeAt(0), "") // a note; nodes know activities too, which have likes
	w.nodes["n0"].types = []string{"post", "secret"}
	b := w.broker(feeds.Feed{Name: "staff", Model: "recency", Private: true})
	for what, ask := range map[string]func(*feedv1.GetFeedRequest){
		"an unknown type":         func(r *feedv1.GetFeedRequest) { r.Types = []string{"sekret"} },
		"an unknown field":        func(r *feedv1.GetFeedRequest) { r.Fields = []string{"like"} },
		"a field unlike all":      func(r *feedv1.GetFeedRequest) { r.Fields = []string{"unlike-all-others"} },
		"a filter of other names": func(r *feedv1.GetFeedRequest) { r.Filter = "record.like > 1" },
	} {
		req := recentRequest(1)
		req.Feed = "staff"
		if ask(req); req.Filter != "" {
			w.nodes["n0"].err = &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field like; did you mean likes?", WayOut: "ask for secret"}
		}
		_, err := b.GetFeed(t.Context(), req)
		w.nodes["n0"].err = nil
		e := refusal(t, err)
		for _, name := range []string{"likes", "comments", "secret"} {
			if strings.Contains(e.Detail+e.WayOut, name) {
				t.Errorf("%s: %q is told: %s; %s", what, name, e.Detail, e.WayOut)
			}
		}
		if e.Field == "" || e.WayOut == "" {
			t.Errorf("%s: %+v", what, e)
		}
	}
}

// What a feed showed before it was private, or before it was narrowed, it shows
// to nobody who kept a page token of then.
func TestAPrivateFeedHasNoOlderPages(t *testing.T) {
	w := nine(t, 1)
	d := feedstest.New()
	b := w.defined(d)
	private := "name: staff\nmodel: recency\nprivate: true\n"
	for i, text := range []string{"name: staff\nmodel: recency\n", private, private + "types: [post]\n"} {
		d.Serve("staff", 2*i+1, text)
		d.Settle()
		req := recentRequest(9)
		req.Feed, req.Limit = "staff", new(int64(1))
		first, err := b.GetFeed(t.Context(), req)
		if err != nil || first.NextPageToken == "" {
			t.Fatalf("%v, %v", first, err)
		}
		req.PageToken = first.NextPageToken
		if _, err := b.GetFeed(t.Context(), req); err != nil {
			t.Errorf("by the same definition: %v", err)
		}
		d.Serve("staff", 2*i+2, private+"filter: record.aud == 'all'\n")
		d.Settle()
		_, err = b.GetFeed(t.Context(), req)
		if e := refusal(t, err); e.Reason != millrace.ReasonPageToken || e.WayOut == "" {
			t.Errorf("a page by definition %d: %+v", i, e)
		}
	}
}

// A page token of a built-in feed opens nothing once the built-in feeds are shut, or
// to who has no right to them, though another feed of the name serves by then.
func TestABuiltInFeedHasNoPagesOnceItIsShut(t *testing.T) {
	w := nine(t, 1)
	d := feedstest.New()
	b := w.defined(d)
	req := recentRequest(9)
	req.Feed, req.Limit = "home", new(int64(1))
	first, err := b.GetFeed(t.Context(), req)
	if err != nil || first.NextPageToken == "" {
		t.Fatalf("%v, %v", first, err)
	}
	req.PageToken = first.NextPageToken
	as := func(may ...permit.Right) context.Context {
		return permit.With(t.Context(), permit.Identity{Name: "app", Roles: []permit.Role{permit.Caller}, Rights: &permit.Rights{May: append(may, permit.Why)}})
	}
	look := func(when string, ctx context.Context, open bool) {
		t.Helper()
		_, page := b.GetFeed(ctx, req)
		_, why := b.Why(ctx, &feedv1.WhyRequest{Record: string(recordID(1)), Request: req})
		for door, err := range map[string]error{"a page": page, "why": why} {
			var e *millrace.Error
			if errors.As(err, &e); open != (err == nil) || !open && (e == nil || e.Reason != millrace.ReasonForbidden || !strings.HasSuffix(e.Field, "feed")) {
				t.Errorf("%s, %s: %v", when, door, err)
			}
		}
	}
	look("as it was, with the right", as(permit.Recent), true)
	look("as it was, without", as(), false)
	d.Serve("home", 1, "name: home\nmodel: recency\n")
	d.Settle()
	look("beside another, with the right", as(permit.Recent), true)
	look("beside another, without", as(), false)
	d.Serve("staff", 1, "name: staff\nmodel: recency\nprivate: true\n")
	d.Settle()
	look("beside a private feed", t.Context(), false)
}

// A refusal that quotes what was sent is short, whatever was sent.
func TestRefusalsAreShort(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	p := rpcerr.ProblemOf(&millrace.Error{Reason: millrace.ReasonInvalid, Field: "viewer.attributes." + long, Detail: long, WayOut: long})
	if n := len(p.Field) + len(p.Detail) + len(p.WayOut); n > 4<<10 {
		t.Errorf("%d bytes", n)
	}
}

// What a private feed's answer is made from tells nothing that goes on with what
// the feed drops, and its page tokens nothing by which a definition is guessed.
func TestAPrivateFeedsAnswersTellNoOffsets(t *testing.T) {
	w := nine(t, 2)
	d := feedstest.New()
	b := w.defined(d)
	d.Serve("open", 1, "name: open\nmodel: recency\n")
	d.Serve("staff", 1, "name: staff\nmodel: recency\nprivate: true\n")
	d.Settle()
	for _, feed := range []string{"open", "staff"} {
		for _, form := range []string{"", "full"} {
			req := recentRequest(9)
			req.Feed, req.Limit, req.Receipt = feed, new(int64(1)), form
			for range 3 {
				resp, err := b.GetFeed(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				r, private := resp.Receipt, feed == "staff"
				if (len(r.Applied) == 0) != private || (r.AppliedDigest == "") != private {
					t.Errorf("%s, %q: %v", feed, form, r)
				}
				token, err := base64.RawURLEncoding.DecodeString(resp.NextPageToken)
				if err != nil {
					t.Fatal(err)
				}
				served := b.feeds.Current()[feed]
				if sum := served.Edition().Sum; sum == "" || bytes.Contains(token, []byte(sum)) == private {
					t.Errorf("%s: the token has the checksum %q of its definition: %v", feed, sum, !private)
				}
				req.PageToken = resp.NextPageToken
			}
		}
	}
}
