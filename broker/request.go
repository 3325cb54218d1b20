package broker

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// The limits of a request.
const (
	maxEntities = 20_000 // distinct ones
	maxLimit    = 1_000
	maxTypes    = 100
	// maxTimelines bounds entities times types, and maxInquired those of an
	// inquiry, each of which takes index nodes many times as long.
	maxTimelines = 200_000
	maxInquired  = 50_000
)

// question is a request that has been found good: what the nodes are asked,
// by partition.
type question struct {
	feed  Feed                 // with what variants set
	query *nodev1.QueryRequest // all but entities; of what a group is asked alone, that of the first
	// narrows says that the caller's window may only narrow the feed's.
	narrows bool
	asOf    millrace.Time

	distinct  int // entities
	want      cluster.Set
	groups    []*group // of them; the first is of those that no layer of entities deals anything
	undivided struct { // memory for groups, where there is one
		group
		list [1]*group
	}
	viewer string

	named     bool            // the request names the model,
	later     bool            // or it is that of the first page
	inPlaceOf cluster.Version // which is condemned: the model ranks instead
	plain     bool            // by its own weights, though variants set others
	refused   []refused       // by nodes, while it is asked

	aside       bool // nobody waits for the answer
	minCoverage float64
	fullReceipt bool                                  // it has the offsets as lists
	fields      []string                              // of records, to be shown; empty: all
	selected    map[*schemas.Schema]schemas.Selection // of each schema met; see shows

	began   time.Time
	times   times
	keys    *pageKeys     // of the first page
	issued  millrace.Time // when that was
	request identity      // of all that every page must ask alike

	variants variants
	draft    *draft // nil unless a variant interleaves

	exposesFeatures bool // of items
	counted         bool // what they lack is

	shown int // items in the answer
	loan  *memory.Loan
}

// times is where the time of a request goes.
type times struct{ read, route, fanOut, merge, records time.Duration }

// inquires reports whether nodes are asked for what may take much longer than
// an answer does: how long says nothing about them then.
func (q *question) inquires() bool { return q.aside || q.query.Examine != "" || len(q.query.Above) > 0 }

// protocol is the least that a node must understand to answer of a group: one
// that does not know served_key would repeat what earlier pages served, and one
// that does not know weights would score by others.
func (q *question) protocol(g *group) int32 {
	switch {
	case g.query.Weights != "":
		return 2
	case len(q.query.Exclude) > 0:
		return 1
	}
	return 0
}

// ask returns the request for a group's part of a set of partitions, whose
// answer may take so many bytes.
func (q *question) ask(g *group, parts cluster.Set, room int64) *nodev1.QueryRequest {
	n := 0
	for p := range parts.All() {
		n += len(g.entities(p))
	}
	of, all := g.query, q.query
	r := &nodev1.QueryRequest{
		Entities: g.encoded, Types: of.Types, FromMs: of.FromMs, ToMs: all.ToMs, AsOfMs: all.AsOfMs,
		Filter: of.Filter, RequestFilter: all.RequestFilter, Model: of.Model, ModelVersion: of.ModelVersion, ModelSum: of.ModelSum, Weights: of.Weights, WeightsSum: of.WeightsSum,
		Viewer: all.Viewer, Limit: int32(q.deep()), CapPerEntity: of.CapPerEntity, DistinctObjects: all.DistinctObjects, Exclude: all.Exclude, ServedKey: all.ServedKey,
		Explain: all.Explain, Examine: all.Examine, Above: all.Above, MaxBytes: room, Beside: all.Beside, Features: all.Features,
		GivesWay: true, Measure: all.Measure,
	}
	if r.Explain {
		r.Shadow = all.Shadow
	}
	if n < len(g.encoded) {
		r.Entities = make([]byte, 0, n)
		for p := range parts.All() {
			r.Entities = append(r.Entities, g.entities(p)...)
		}
	}
	return r
}

// whole lets a question's entities be one group.
func (q *question) whole() {
	u := &q.undivided
	u.list[0] = &u.group
	q.groups = u.list[:]
}

func invalid(field, wayOut, format string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
}

// read checks every field of a request and joins it with its feed's
// definition. With an error it returns nil, or what the feed alone says.
func (b *Broker) read(req *feedv1.GetFeedRequest, now time.Time) (*question, error) {
	feed, err := b.feedOf(req.GetFeed())
	if err != nil {
		return nil, err
	}
	c, err := b.cursorOf(req, now)
	if err != nil {
		return nil, err
	}
	if c != nil {
		if feed, err = b.feeds.edition(feed, c); err != nil {
			return nil, err
		}
	}
	no := b.forbid.or(feed.forbids())
	if err := permitted(no, &feed, req); err != nil {
		return nil, err
	}
	q := &question{feed: feed, narrows: no.Window, began: now}
	q.whole()
	for _, check := range []func(*question, *feedv1.GetFeedRequest) error{
		readViewer, readEntities, checkLimit, readMinCoverage, readFields, readReceipt, // what costs least, and asks no definition
		func(q *question, req *feedv1.GetFeedRequest) error { return b.deal(q, req, c) },
		b.readFeed, readTypes, readCost, readFilter, readModel, readLimit,
		func(q *question, req *feedv1.GetFeedRequest) error { return readTimes(q, req, now) },
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

// readFeed begins a query with what the feed says.
func (b *Broker) readFeed(q *question, req *feedv1.GetFeedRequest) error {
	q.query = &nodev1.QueryRequest{
		Viewer: req.GetViewer(), Explain: req.GetExplain(), Model: q.feed.Model, Filter: q.feed.Filter, Shadow: namesOf(q.feed.Shadow),
		CapPerEntity: int32(q.feed.CapPerEntity), DistinctObjects: q.feed.DistinctObjects,
	}
	b.weigh(q)
	return nil
}

func (b *Broker) feedOf(name string) (Feed, error) {
	feeds := b.feeds.current()
	if name == "" {
		return Feed{}, invalid("feed", "name one of "+feeds.names(), "no feed is named")
	}
	f, ok := feeds[name]
	if !ok {
		return Feed{}, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "feed", Detail: fmt.Sprintf("there is no feed %.100q", name), WayOut: "name one of " + feeds.names()}
	}
	if f.refused {
		return Feed{}, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "feed", Detail: fmt.Sprintf("feed %.100q is defined, and its definition has a fault", name), WayOut: "who runs it finds the fault by millrace feed list"}
	}
	return f, b.servesBuiltIn(&f, feeds)
}

func readTypes(q *question, req *feedv1.GetFeedRequest) error {
	types := req.GetTypes()
	if len(types) > maxTypes {
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "types", Detail: fmt.Sprintf("%d types, more than %d", len(types), maxTypes), WayOut: "leave types out to read all that the feed has"}
	}
	for i, t := range types {
		field := fmt.Sprintf("types[%d]", i)
		if err := checkText(t, millrace.MaxTypeBytes); err != nil {
			return invalid(field, "name a content type such as post", "%v", err)
		}
		if len(q.feed.Types) > 0 && !slices.Contains(q.feed.Types, millrace.ContentType(t)) {
			return &millrace.Error{Reason: millrace.ReasonUnknown, Field: field, Detail: fmt.Sprintf("feed %s has no type %q", q.feed.Name, t), WayOut: fmt.Sprintf("ask for some of %v, or another feed", q.feed.Types)}
		}
	}
	if len(types) == 0 {
		for _, t := range q.feed.Types {
			types = append(types, string(t))
		}
	}
	q.query.Types = sortedTypes(types)
	q.groups[0].types = max(1, len(q.query.Types))
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

func readEntities(q *question, req *feedv1.GetFeedRequest) error {
	entities := req.GetEntities()
	if len(entities) == 0 {
		return invalid("entities", "name 1 to 20,000 entities that the viewer follows", "there are none")
	}
	n, g := takeEntitySet(min(len(entities), maxEntities)), q.groups[0]
	defer n.release()
	for i, e := range entities {
		hash := maphash.String(tableSeed, e)
		slot, again := n.find(e, hash)
		if again {
			continue
		}
		if err := checkText(e, millrace.MaxEntityBytes); err != nil {
			return invalid(fmt.Sprintf("entities[%d]", i), "name an entity such as member:42", "%v", err)
		}
		if len(n.distinct) == maxEntities {
			return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("more than %d distinct entities", maxEntities), WayOut: "ask for the ones that matter most, or in several requests"}
		}
		p := n.put(slot, e, hash)
		g.want.Add(p)
		g.counts[p]++
		g.ends[p+1] += uint32(partition.EntityHead + len(e))
	}
	q.distinct, q.want, g.distinct = len(n.distinct), g.want, len(n.distinct)
	g.encode(n.distinct)
	return nil
}

// readCost bounds what a request costs index nodes before they are asked.
func readCost(q *question, _ *feedv1.GetFeedRequest) error { return q.affordable(maxTimelines) }

// affordable refuses a question for more timelines than most.
func (q *question) affordable(most int) error {
	if n := q.asked(); n > most {
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("%d entities of %d types are %d timelines, more than %d", q.distinct, n/q.distinct, n, most), WayOut: "ask for fewer entities, or for fewer types"}
	}
	return nil
}

// encode writes the entities of each partition into one piece of memory. At
// first each of g.ends is the size of the partition before.
func (g *group) encode(entities []hashed) {
	var next [partition.Count]uint32
	for p := range next {
		next[p] = g.ends[p]
		g.ends[p+1] += g.ends[p]
	}
	g.encoded = make([]byte, g.ends[partition.Count])
	for _, e := range entities {
		p := e.partition
		next[p] = uint32(len(partition.AppendEntity(g.encoded[:next[p]], p, millrace.Entity(e.entity))))
	}
}

func readFilter(q *question, req *feedv1.GetFeedRequest) error {
	q.query.RequestFilter = strings.TrimSpace(req.GetFilter()) // a refusal is for it
	if err := checkFilter(req.GetFilter()); err != nil {
		return &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: err.Error(), WayOut: `write a CEL expression such as record.language == "en"`}
	}
	return nil
}

func readModel(q *question, req *feedv1.GetFeedRequest) error {
	if m := req.GetModel(); m != "" {
		if !namePattern.MatchString(m) {
			return invalid("model", "leave it out for the feed's", "%.100q is not the name of a model", m)
		}
		q.query.Model, q.named = m, true
	}
	return nil
}

// checkLimit refuses a limit that no feed allows.
func checkLimit(_ *question, req *feedv1.GetFeedRequest) error {
	if l := req.GetLimit(); req.Limit != nil && (l < 1 || l > maxLimit) {
		return invalid("limit", fmt.Sprintf("ask for 1 to %d items", maxLimit), "%d is out of range", l)
	}
	return nil
}

func readLimit(q *question, req *feedv1.GetFeedRequest) error {
	limit := int64(q.feed.Limit)
	if req.Limit != nil {
		limit = req.GetLimit() // which checkLimit has passed
	}
	q.query.Limit = int32(limit)
	return nil
}

// maxFields is how many fields of records a request may name.
const maxFields = 100

func readFields(q *question, req *feedv1.GetFeedRequest) error {
	if n := len(req.GetFields()); n > maxFields {
		return invalid("fields", "name fewer, or none for all", "%d fields are more than %d", n, maxFields)
	}
	for i, name := range req.GetFields() {
		if name == "" {
			return invalid(fmt.Sprintf("fields[%d]", i), "name a field of the records' schema", "it is empty")
		}
	}
	q.fields = req.GetFields()
	return nil
}

// The forms of a receipt; empty is the first.
const (
	receiptCompact = "compact"
	receiptFull    = "full"
)

func readReceipt(q *question, req *feedv1.GetFeedRequest) error {
	switch r := req.GetReceipt(); r {
	case "", receiptCompact, receiptFull:
		q.fullReceipt = r == receiptFull
		return nil
	default:
		return invalid("receipt", "ask for "+receiptCompact+" or "+receiptFull, "there is no receipt %.100q", r)
	}
}

func readMinCoverage(q *question, req *feedv1.GetFeedRequest) error {
	if c := req.GetMinCoverage(); !(c >= 0 && c <= 1) {
		return invalid("min_coverage", "ask for a share from 0 to 1", "%v is out of range", c)
	}
	q.minCoverage = req.GetMinCoverage()
	return nil
}

// readTimes reads the instant and the window. Record times are whole
// milliseconds, so both ends of the window are rounded up to one.
func readTimes(q *question, req *feedv1.GetFeedRequest, now time.Time) error {
	asOf, err := instant("as_of", req.GetAsOf(), millrace.TimeOf(now), false)
	if err != nil {
		return err
	}
	begin := earliest(asOf, q.feed.Window)
	from, err := instant("from", req.GetFrom(), begin, true)
	if err != nil {
		return err
	}
	to, err := instant("to", req.GetTo(), millrace.MaxTime+1, true)
	if err != nil {
		return err
	}
	if req.GetFrom() != nil && from > to {
		return invalid("from", "let the window begin before it ends", "%s is after to, %s", from, to)
	}
	if q.narrows { // what both windows have, be it nothing
		from = max(from, begin)
		to = max(from, to)
	}
	q.asOf = asOf
	q.query.AsOfMs, q.query.FromMs, q.query.ToMs = int64(asOf), int64(from), int64(to)
	return nil
}

// earliest is where a window of a feed begins.
func earliest(asOf millrace.Time, window time.Duration) millrace.Time {
	if window > 0 {
		return max(millrace.MinTime, asOf-millrace.Time(window.Milliseconds()))
	}
	return millrace.MinTime
}

func instant(field string, ts *timestamppb.Timestamp, absent millrace.Time, up bool) (millrace.Time, error) {
	if ts == nil {
		return absent, nil
	}
	if err := ts.CheckValid(); err != nil {
		return 0, invalid(field, "write RFC 3339, such as 2026-01-02T15:04:05Z", "not a time: %v", err)
	}
	t := millrace.TimeOf(ts.AsTime())
	if up && ts.GetNanos()%int32(time.Millisecond) != 0 {
		t++
	}
	if t < millrace.MinTime || t > millrace.MaxTime {
		return 0, invalid(field, fmt.Sprintf("choose a time from %s to %s", millrace.MinTime, millrace.MaxTime), "%s is out of range", ts.AsTime().Format(time.RFC3339))
	}
	return t, nil
}

// checkText holds for the strings that become keys.
func checkText(s string, limit int) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > limit:
		return fmt.Errorf("%d bytes, more than %d", len(s), limit)
	case !utf8.ValidString(s):
		return errors.New("it is not UTF-8")
	}
	return nil
}
