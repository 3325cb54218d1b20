package query

import (
	"math"
	"sync"
	"testing"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// record is an activity as a struct, the usual way to hold one.
type record struct {
	id, actor, verb, object, language, country, visibility, text string
	createdAt, version, likes, comments, shares, impressions     int64
	deleted                                                      bool
	about                                                        []string
	features                                                     []float64
	body                                                         []byte
	schema                                                       millrace.Fingerprint
}

// recordsOf returns packed rows as records with strings of their own.
func recordsOf(s column.Packed) (all []*record) {
	l := s.Layout()
	text := func(name string, row int) string {
		return string(append([]byte(nil), s.StringAt(l.Index(name), row)...))
	}
	number := func(name string, row int) int64 { return int64(s.Word(l.Index(name), row)) }
	for row := range s.Len() {
		all = append(all, &record{
			id: text("id", row), actor: text("actor", row), verb: text("verb", row), object: text("object", row), language: text("language", row),
			country: text("country", row), visibility: text("visibility", row), text: text("text", row),
			createdAt: number("created_at", row), version: number("version", row), likes: number("likes", row), comments: number("comments", row),
			shares: number("shares", row), impressions: number("impressions", row),
			deleted: number("deleted", row) != 0, about: s.StringsAt(nil, l.Index("about"), row), features: s.DoublesAt(nil, l.Index("features"), row),
			body: append([]byte(nil), s.BytesAt(l.Index(schemas.BodyColumn), row)...), schema: millrace.Fingerprint(number(schemas.SchemaColumn, row)),
		})
	}
	return all
}

// pointers is a cache as it usually is: an LRU behind a lock, of timelines
// that are slices of pointers to records.
type pointers struct {
	mu  sync.Mutex
	lru *simplelru.LRU[millrace.Timeline, []*record]
}

func newPointers(t testing.TB, keys []millrace.Timeline, all []*cache.Timeline) *pointers {
	t.Helper()
	lru, err := simplelru.NewLRU[millrace.Timeline, []*record](len(keys), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		lru.Add(k, recordsOf(all[i].First()))
	}
	return &pointers{lru: lru}
}

func (p *pointers) get(k millrace.Timeline) []*record {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, _ := p.lru.Get(k)
	return r
}

// ask answers question by hand-written code over structs: what a generator
// would write for the filter and for the home model and a viewer of whom
// nothing is known.
func (p *pointers) ask(timelines []asked, s Spec) (best []float64) {
	floor := math.Inf(-1)
	for i := range timelines {
		for _, r := range p.get(timelines[i].timeline) {
			if millrace.Time(r.createdAt) < s.From || millrace.Time(r.createdAt) >= s.To || (r.language != "en" && r.language != "de") || r.likes < 1 {
				continue
			}
			x := r.score(float64(s.AsOf))
			if x <= floor {
				continue
			}
			at := len(best)
			for at > 0 && best[at-1] < x {
				at--
			}
			best = append(best, 0)
			copy(best[at+1:], best[at:])
			best[at] = x
			if len(best) > s.Limit {
				best = best[:s.Limit]
				floor = best[s.Limit-1]
			}
		}
	}
	return best
}

func (r *record) score(asOf float64) float64 {
	age := math.Max(0, asOf-float64(r.createdAt)) / 1000
	halved := func(seconds float64) float64 { return math.Exp2(-age / seconds) }
	log := func(n int64) float64 { return math.Log1p(math.Max(float64(n), 0)) }
	typ := 0.0
	switch r.verb {
	case "post":
		typ = 0.6
	case "share":
		typ = 0.3
	case "comment":
		typ = 0.2
	case "like":
		typ = 0.05
	}
	likes := log(r.likes)
	engagement := float64(r.likes+3*r.comments+5*r.shares) / math.Max(float64(r.impressions), 100)
	return 4*halved(6*3600) + halved(86400) + 0.35*likes + 0.5*log(r.comments) + 0.6*log(r.shares) +
		2*math.Min(math.Max(engagement, 0), 1) + 0.25*halved(21600)*likes + typ
}

// The baseline answers the same question: its scores are ours but for the last
// bits.
func TestPointersAnswerTheSame(t *testing.T) {
	keys, all := activities(t, 50, 20)
	s := question(t)
	q := New(s)
	defer q.Release()
	for i, tl := range all {
		q.Add(keys[i], tl, column.Packed{})
	}
	if err := q.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	items, theirs := q.Answer().Items, newPointers(t, keys, all).ask(q.asked, s)
	if len(items) != len(theirs) {
		t.Fatalf("%d items, %d", len(items), len(theirs))
	}
	for i := range items {
		if math.Abs(items[i].Score-theirs[i]) > 1e-6 {
			t.Errorf("item %d: %v, %v", i, items[i].Score, theirs[i])
		}
	}
}
