package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/permit"
)

// question is a request that has been read and checked, together with what is found out
// while it is answered.
type question struct {
	questions.Question
	feed feeds.Feed // the feed's definition, as variants have changed it
	// narrows says that the request's window may only narrow the feed's.
	narrows  bool
	asOf     millrace.Time // the instant (as_of) as of which records are filtered and scored, on all of its pages
	from, to millrace.Time // the window that the request asks for

	named     bool              // the request names the model
	later     bool              // it asks for a later page, which the first one's model ranks
	inPlaceOf artefacts.Version // a condemned version that the model ranks instead of; zero: none
	plain     bool              // the model ranks by its own weights, though variants set others
	refused   []refused         // the versions that nodes refused to rank by, for this question

	minCoverage float64      // the least share of timelines that the answer must cover, 0 to 1
	fullReceipt bool         // the receipt has the offsets as lists, not packed
	fields      items.Fields // the fields of records that items show

	began   time.Time
	keys    *pagetoken.Keys    // the keys that sign the page tokens of all pages of this request
	issued  millrace.Time      // when the first page was asked for
	request pagetoken.Identity // a hash of the fields that must be the same on every page

	variants variants
	draft    *draft // nil unless a variant makes two models take turns to choose items

	exposesFeatures bool // the features of items are recorded with what is shown
	counted         bool // features that items lack are counted

	shown int // how many items the answer has
}

// read checks every field of a request and joins it with its feed's definition. With an
// error the question is as far as it was read. It is nil if the feed is not known or not
// served, if the page token is refused, or if the feed forbids what the request asks.
func (b *Broker) read(ctx context.Context, req *feedv1.GetFeedRequest, now time.Time) (*question, error) {
	feed, err := b.feedOf(ctx, req.GetFeed())
	if err != nil {
		return nil, err
	}
	c, err := b.cursorOf(req, now)
	if err != nil {
		return nil, err
	}
	if c != nil {
		if feed, err = b.feeds.Edition(feed, c); err != nil {
			return nil, err
		}
		if err := b.servesBuiltIn(&feed, b.feeds.Current()); err != nil { // feed is now the first page's, which may be a built-in feed that another has replaced since
			return nil, err
		}
	}
	no := b.forbid.Or(feed.Forbids())
	if err := feeds.Permitted(no, &feed, req); err != nil {
		return nil, err
	}
	q := &question{feed: feed, narrows: no.Window, began: now}
	q.FeedName, q.fields.Private = feed.Name, feed.Private
	q.Whole()
	for _, check := range []func(*question, *feedv1.GetFeedRequest) error{
		// The first row needs no definition of a feed. What it refuses is the caller's
		// fault alone, so it comes before variants are dealt and counts for none of them.
		readViewer, readEntities, checkLimit, readMinCoverage, readFields, readReceipt, checkTypes, checkFilter, checkModel,
		func(q *question, req *feedv1.GetFeedRequest) error { return readTimes(q, req, c, now) },
		func(q *question, req *feedv1.GetFeedRequest) error { return b.deal(q, req, c) },
		b.readFeed, readTypes, readCost, readFilter, readModel, readLimit, readWindow,
		func(q *question, _ *feedv1.GetFeedRequest) error { return b.chooseModel(q, c == nil) },
		func(q *question, req *feedv1.GetFeedRequest) error { return b.readPage(q, req, c, now) },
		func(q *question, _ *feedv1.GetFeedRequest) error { b.draftOf(q, c); return nil },
		func(q *question, _ *feedv1.GetFeedRequest) error { return b.divide(q, c) },
		func(q *question, _ *feedv1.GetFeedRequest) error { b.askFeatures(q); return nil },
	} {
		if err := check(q, req); err != nil {
			return q, err
		}
	}
	return q, nil
}

// readFeed begins the query to nodes with what the feed, as variants have changed it, says.
func (b *Broker) readFeed(q *question, req *feedv1.GetFeedRequest) error {
	q.Query = &nodev1.QueryRequest{
		Viewer: req.GetViewer(), Explain: req.GetExplain(), Model: q.feed.Model, Filter: q.feed.Filter, Shadow: namesOf(q.feed.Shadow),
		CapPerEntity: int32(q.feed.CapPerEntity), DistinctObjects: q.feed.DistinctObjects,
	}
	b.weigh(q)
	return nil
}

// feedOf returns the feed of a name. It refuses a name that no feed has, and a feed that is
// defined but not served.
func (b *Broker) feedOf(ctx context.Context, name string) (feeds.Feed, error) {
	all := b.feeds.Current()
	if name == "" {
		return feeds.Feed{}, limits.Invalid("feed", b.askable(ctx, all), "no feed is named")
	}
	f, ok := all[name]
	switch {
	case !ok && b.feeds.Defined(name):
		return feeds.Feed{}, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "feed", Detail: fmt.Sprintf("feed %.100q is defined, and this broker could not take it over, or has not yet", name), WayOut: feeds.FaultWayOut}
	case !ok:
		return feeds.Feed{}, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "feed", Detail: fmt.Sprintf("there is no feed %.100q", name), WayOut: b.askable(ctx, all)}
	case f.IsRefused():
		return feeds.Feed{}, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "feed", Detail: fmt.Sprintf("feed %.100q is defined, and its definition has a fault", name), WayOut: feeds.FaultWayOut}
	}
	return f, b.servesBuiltIn(&f, all)
}

// askable returns the way out for a caller who names no feed, or one that is not there: the
// names of the feeds that are served and that this caller may ask.
func (b *Broker) askable(ctx context.Context, all feeds.Set) string {
	who := permit.Who(ctx)
	var names []string
	for name, f := range all {
		if !f.IsRefused() && b.servesBuiltIn(&f, all) == nil && who.Feed(name, f.IsBuiltIn()) == nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none is served that you may ask; have one defined"
	}
	slices.Sort(names)
	return "name one of " + strings.Join(names, ", ")
}

func readViewer(q *question, req *feedv1.GetFeedRequest) error {
	q.Viewer = req.GetViewer().GetId()
	return limits.CheckViewer(req.GetViewer())
}

// servesBuiltIn refuses a feed that came with Millrace where the broker, or one
// of the feeds that it serves, forbids it.
func (b *Broker) servesBuiltIn(feed *feeds.Feed, all feeds.Set) error {
	if !feed.IsBuiltIn() {
		return nil
	}
	no := b.forbid.Recent
	for _, f := range all {
		no = no || f.Forbids().Recent
	}
	if !no {
		return nil
	}
	return feeds.BuiltInRefused(feed.Name)
}

// entitled refuses a request if its caller has no right to ask its feed, or to use a filter,
// explain or a model of its own.
func (b *Broker) entitled(ctx context.Context, req *feedv1.GetFeedRequest) (err error) {
	who := permit.Who(ctx)
	if who.Rights == nil {
		return nil
	}
	defer func() {
		if err != nil {
			door.From(ctx).Refused(door.Forbidden, err)
		}
	}()
	name := req.GetFeed()
	of := b.feeds.Current()[name]
	if err := who.Feed(name, of.IsBuiltIn()); err != nil {
		return err
	}
	for _, asks := range []struct {
		it    bool
		right permit.Right
	}{
		{req.GetFilter() != "", permit.Filter},
		{req.GetExplain(), permit.Explain},
		{req.GetModel() != "", permit.Model},
	} {
		if asks.it {
			if err := who.Right(asks.right, string(asks.right)); err != nil {
				return err
			}
		}
	}
	return nil
}

// entitledTo refuses a feed that the caller has no right to ask. A later page is made by
// the definition of the first one, which may be a built-in feed though another serves by
// its name now.
func entitledTo(ctx context.Context, feed *feeds.Feed) error {
	err := permit.Who(ctx).Feed(feed.Name, feed.IsBuiltIn())
	if err != nil {
		door.From(ctx).Refused(door.Forbidden, err)
	}
	return err
}

func readEntities(q *question, req *feedv1.GetFeedRequest) error {
	return q.TakeEntities(req.GetEntities())
}

// checkTypes refuses types that no feed can have: too many, or no names of content types.
func checkTypes(_ *question, req *feedv1.GetFeedRequest) error {
	types := req.GetTypes()
	if len(types) > limits.MaxTypes {
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "types", Detail: fmt.Sprintf("%d types, more than %d", len(types), limits.MaxTypes), WayOut: "leave types out to read all that the feed has"}
	}
	for i, t := range types {
		if err := limits.CheckText(t, millrace.MaxTypeBytes); err != nil {
			return limits.Invalid(fmt.Sprintf("types[%d]", i), "name a content type such as post", "%v", err)
		}
	}
	return nil
}

// readTypes sets the types to ask for: those of the request, all of which the feed must have,
// or else those of the feed.
func readTypes(q *question, req *feedv1.GetFeedRequest) error {
	types := req.GetTypes()
	for i, t := range types {
		if len(q.feed.Types) > 0 && !slices.Contains(q.feed.Types, millrace.ContentType(t)) {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: fmt.Sprintf("types[%d]", i), Detail: fmt.Sprintf("feed %s has no type %q", q.feed.Name, t), WayOut: fmt.Sprintf("ask for some of %v, or another feed", q.feed.Types)}
		}
	}
	if len(types) == 0 {
		for _, t := range q.feed.Types {
			types = append(types, string(t))
		}
	}
	q.Query.Types = sortedTypes(types)
	q.Groups[0].Types = max(1, len(q.Query.Types))
	return nil
}

// sortedTypes returns types as nodes are asked for them, each once.
func sortedTypes[T ~string](types []T) []string {
	all := make([]string, len(types))
	for i, t := range types {
		all[i] = string(t)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// readCost bounds what a request costs index nodes before they are asked.
func readCost(q *question, _ *feedv1.GetFeedRequest) error { return q.Affordable(limits.MaxTimelines) }

// checkFilter refuses what cannot be a filter, whatever fields the schemas have.
func checkFilter(_ *question, req *feedv1.GetFeedRequest) error {
	if err := limits.CheckFilter(req.GetFilter()); err != nil {
		return &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: err.Error(), WayOut: `write a CEL expression such as record.language == "en"`}
	}
	return nil
}

func readFilter(q *question, req *feedv1.GetFeedRequest) error {
	q.Query.RequestFilter = strings.TrimSpace(req.GetFilter())
	return nil
}

// checkModel refuses what cannot be the name of a model.
func checkModel(_ *question, req *feedv1.GetFeedRequest) error {
	if m := req.GetModel(); m != "" && !limits.NamePattern.MatchString(m) {
		return limits.Invalid("model", "leave it out for the feed's", "%.100q is not the name of a model", m)
	}
	return nil
}

func readModel(q *question, req *feedv1.GetFeedRequest) error {
	if m := req.GetModel(); m != "" {
		q.Query.Model, q.named = m, true
	}
	return nil
}

// checkLimit refuses a limit that no feed allows.
func checkLimit(_ *question, req *feedv1.GetFeedRequest) error {
	if l := req.GetLimit(); req.Limit != nil && (l < 1 || l > limits.MaxLimit) {
		return limits.Invalid("limit", fmt.Sprintf("ask for 1 to %d items", limits.MaxLimit), "%d is out of range", l)
	}
	return nil
}

func readLimit(q *question, req *feedv1.GetFeedRequest) error {
	limit := int64(q.feed.Limit)
	if req.Limit != nil {
		limit = req.GetLimit() // checkLimit has checked it
	}
	q.Query.Limit = int32(limit)
	return nil
}

func readFields(q *question, req *feedv1.GetFeedRequest) error {
	if n := len(req.GetFields()); n > limits.MaxFields {
		return limits.Invalid("fields", "name fewer, or none for all", "%d fields are more than %d", n, limits.MaxFields)
	}
	for i, name := range req.GetFields() {
		if name == "" {
			return limits.Invalid(fmt.Sprintf("fields[%d]", i), "name a field of the records' schema", "it is empty")
		}
	}
	q.fields.Names = req.GetFields()
	return nil
}

func readReceipt(q *question, req *feedv1.GetFeedRequest) error {
	switch r := req.GetReceipt(); r {
	case "", limits.ReceiptCompact, limits.ReceiptFull:
		q.fullReceipt = r == limits.ReceiptFull
		return nil
	default:
		return limits.Invalid("receipt", "ask for "+limits.ReceiptCompact+" or "+limits.ReceiptFull, "there is no receipt %.100q", r)
	}
}

func readMinCoverage(q *question, req *feedv1.GetFeedRequest) error {
	if c := req.GetMinCoverage(); !(c >= 0 && c <= 1) {
		return limits.Invalid("min_coverage", "ask for a share from 0 to 1", "%v is out of range", c)
	}
	q.minCoverage = req.GetMinCoverage()
	return nil
}

// readTimes reads the instant (as_of) and the window that the request asks for. A later
// page (c is not nil) has the first one's instant unless it gives one. Record times are
// whole milliseconds, so both ends of the window are rounded up to one.
func readTimes(q *question, req *feedv1.GetFeedRequest, c *pagetoken.Cursor, now time.Time) (err error) {
	absent := millrace.TimeOf(now)
	if c != nil {
		absent = c.AsOf
	}
	if q.asOf, err = instant("as_of", req.GetAsOf(), absent, false); err != nil {
		return err
	}
	if q.from, err = instant("from", req.GetFrom(), millrace.MinTime, true); err != nil {
		return err
	}
	if q.to, err = instant("to", req.GetTo(), millrace.MaxTime+1, true); err != nil {
		return err
	}
	if req.GetFrom() != nil && q.from > q.to {
		return limits.Invalid("from", "let the window begin before it ends", "%s is after to, %s", q.from, q.to)
	}
	return nil
}

// readWindow joins the request's window with the feed's.
func readWindow(q *question, req *feedv1.GetFeedRequest) error {
	from, begin := q.from, earliest(q.asOf, q.feed.Window)
	if req.GetFrom() == nil {
		from = begin
	}
	if q.narrows { // only what both windows have in common, which may be nothing
		from = max(from, begin)
	}
	q.Query.AsOfMs, q.Query.FromMs, q.Query.ToMs = int64(q.asOf), int64(from), int64(q.to)
	return nil
}

// earliest returns where a window of a feed begins; a window of 0 has no beginning.
func earliest(asOf millrace.Time, window time.Duration) millrace.Time {
	if window > 0 {
		return max(millrace.MinTime, asOf-millrace.Time(window.Milliseconds()))
	}
	return millrace.MinTime
}

// instant reads a time of a request, in whole milliseconds: rounded up if up is true, else
// down. If the request has none, it returns absent.
func instant(field string, ts *timestamppb.Timestamp, absent millrace.Time, up bool) (millrace.Time, error) {
	if ts == nil {
		return absent, nil
	}
	if err := ts.CheckValid(); err != nil {
		return 0, limits.Invalid(field, "write RFC 3339, such as 2026-01-02T15:04:05Z", "not a time: %v", err)
	}
	t := millrace.TimeOf(ts.AsTime())
	if up && ts.GetNanos()%int32(time.Millisecond) != 0 {
		t++
	}
	if t < millrace.MinTime || t > millrace.MaxTime {
		return 0, limits.Invalid(field, fmt.Sprintf("choose a time from %s to %s", millrace.MinTime, millrace.MaxTime), "%s is out of range", ts.AsTime().Format(time.RFC3339))
	}
	return t, nil
}

// cursorOf opens the request's page token and returns the cursor in it, which says where
// the page begins. It returns nil for a first page, which has no token.
func (b *Broker) cursorOf(req *feedv1.GetFeedRequest, now time.Time) (*pagetoken.Cursor, error) {
	if req.GetPageToken() == "" {
		return nil, nil
	}
	c, err := b.pages.Open(req.GetPageToken(), now)
	if err != nil {
		return nil, pagetoken.Refuse("%v", err)
	}
	return c, nil
}

// readPage makes the question continue at c, the cursor of the request's page token; c is
// nil for a first page. It refuses a token of another request, and one that has expired.
func (b *Broker) readPage(q *question, req *feedv1.GetFeedRequest, c *pagetoken.Cursor, now time.Time) error {
	if q.keys = b.pages.Signing(now); c != nil {
		q.keys = c.Keys
	}
	q.request, q.issued = q.keys.Identify(req, q.Query.Types, q.Groups[0].Encoded), millrace.TimeOf(now)
	switch {
	case c == nil:
		return nil
	case c.Request != q.request:
		return pagetoken.Refuse("it is of another request: all but page_token, limit, fields, receipt, explain and min_coverage must be as they were")
	case now.Sub(c.Issued.Std()) > pagetoken.Life:
		return pagetoken.Refuse("it expired %s after %s", pagetoken.Life, c.Issued)
	case len(c.Served) >= pagetoken.MaxServed:
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "page_token", Detail: fmt.Sprintf("%d items have been served", len(c.Served)), WayOut: "begin anew with a window further back (to)"}
	}
	q.Query.Exclude, q.Query.ServedKey = c.Served, q.keys.Served[:] // before keepModel may refuse: the record of a refusal tells by Exclude that it is of a later page
	if err := b.keepModel(q, c); err != nil {
		return err
	}
	q.issued = c.Issued
	return nil
}
