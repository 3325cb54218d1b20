package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// world is synthetic timelines and the questions of viewers. All of it follows from the
// seed, so that records are made when they are needed, and only questions are kept.
type world struct {
	shape    shape
	label    string // name of the shape
	entities int    // how many
	seed     uint64
	feed     feeds.Feed // that all questions ask
	feedText []byte     // its definition in YAML
	pack     *modelpack.Pack
	model    *relevance.Model // of the pack; the feed ranks by it
	asked    []question       // one for each viewer
}

// question is the request of one viewer, the same each time.
type question struct {
	viewer  viewer
	follows []int // the numbers of the entities that the viewer follows
	req     *feedv1.GetFeedRequest
	wire    []byte // req as protobuf
}

// viewer is a viewer of the world, with attributes and features that the filter and the model
// read.
type viewer struct {
	name           string
	reads          []int // indexes of languages
	country, muted int   // indexes of countries
	freshnessHours float64
	chatty, visual float64
}

const (
	asOf    millrace.Time = 1_750_000_000_000   // the instant of every question
	history               = 30 * 24 * time.Hour // the age of the oldest records
)

func newWorld(c Config) (*world, error) {
	s := shapes[c.Shape]
	w := &world{shape: s, label: c.Shape, entities: c.Entities, seed: c.Seed}
	var err error
	if w.feedText, w.feed, err = readFeed(s.feed); err != nil {
		return nil, err
	}
	if w.pack, w.model, err = readPack(w.feed.Model); err != nil {
		return nil, err
	}
	for i := range c.Viewers {
		q := w.question(i)
		if q.wire, err = proto.Marshal(q.req); err != nil {
			return nil, err
		}
		w.asked = append(w.asked, q)
	}
	return w, nil
}

// name returns a name that only this world has: several worlds may be kept in one directory.
func (w *world) name() string { return fmt.Sprintf("%s-%d-%d", w.label, w.entities, w.seed) }

// rand returns a source of random numbers for the i-th thing of a kind (ofEntity and so on).
// It is the same each time.
func (w *world) rand(kind, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(kind)<<32|uint64(i)))
}

// The kinds of things that have random numbers of their own; see rand.
const (
	ofEntity = iota
	ofViewer
	ofArrivals
)

func entityName(i int) millrace.Entity { return millrace.Entity(fmt.Sprintf("member:%d", i)) }

var (
	languages    = []string{"en", "es", "pt", "hi", "de", "fr", "ja"}
	countries    = []string{"us", "in", "br", "gb", "de", "fr", "mx", "jp", "it", "ca", "ar", "ng", "id", "eg", "pl", "kr"}
	visibilities = []string{"public", "friends"}
)

// text is the text of every record, cut to the record's length.
const text = "What somebody wrote about a day at the sea, the people met there, and the long way home"

// record is a record of the world, before it is encoded.
type record struct {
	entity, number, kind                 int   // number: among the entity's records; kind: index of the feed's types
	at                                   int64 // milliseconds since the epoch
	article                              int   // what it is about; -1: itself
	version, text                        int   // text: its length in bytes
	language, country, visibility        int   // indexes of the lists above
	likes, comments, shares, impressions int
}

// records returns the records of an entity, type by type, and of each type the oldest first.
func (w *world) records(entity int) []record {
	r := w.rand(ofEntity, entity)
	articles := rand.NewZipf(r, 1.3, 1, uint64(w.entities))
	var all []record
	for kind := range w.feed.Types {
		n := w.shape.min + r.IntN(w.shape.max-w.shape.min+1)
		span := history.Milliseconds() / int64(n)
		for i := range n {
			x := record{
				entity: entity, number: len(all), kind: kind, article: -1, version: 1 + r.IntN(2), text: 10 + r.IntN(len(text)-10),
				at:       int64(asOf) - history.Milliseconds() + int64(i)*span + 1 + r.Int64N(span-1),
				language: r.IntN(len(languages)), country: r.IntN(len(countries)),
			}
			if r.IntN(5) == 0 { // a fifth of the records are about objects that others are about too
				x.article = int(articles.Uint64())
			}
			if r.IntN(100) < 7 {
				x.visibility = 1
			}
			if r.IntN(100) >= 6 {
				x.likes = 1 + int(math.Exp(1.2+1.3*r.NormFloat64()))
				x.comments = x.likes * r.IntN(4) / 5
				x.shares = x.likes * r.IntN(3) / 7
				x.impressions = x.likes * (10 + r.IntN(60))
			}
			if r.IntN(100) < 2 {
				x.impressions += 20_000
			}
			all = append(all, x)
		}
	}
	return all
}

func (x *record) id() string { return fmt.Sprintf("%d/%d", x.entity, x.number) }

// object returns the object that the record is about; "" for itself.
func (x *record) object() string {
	if x.article < 0 {
		return ""
	}
	return fmt.Sprintf("article:%d", x.article)
}

// body returns the record as Avro without framing.
func (w *world) body(x *record) ([]byte, error) {
	return schemas.Activity().EncodeJSON(fmt.Appendf(nil,
		`{"id":%q,"actor":%q,"verb":%q,"created_at":%d,"object":%q,"version":%d,"language":%q,"country":%q,"visibility":%q,"text":%q,"likes":%d,"comments":%d,"shares":%d,"impressions":%d}`,
		x.id(), entityName(x.entity), w.feed.Types[x.kind], x.at, x.object(), x.version, languages[x.language], countries[x.country], visibilities[x.visibility], text[:x.text],
		x.likes, x.comments, x.shares, x.impressions))
}

func (w *world) question(i int) question {
	r := w.rand(ofViewer, i)
	v := viewer{
		name: fmt.Sprintf("member:%d", i), reads: r.Perm(len(languages))[:w.shape.languages],
		country: r.IntN(len(countries)), muted: r.IntN(len(countries)),
		freshnessHours: float64(4 + r.IntN(44)), chatty: r.Float64(), visual: r.Float64(),
	}
	q := question{viewer: v, follows: r.Perm(w.entities)[:min(w.shape.follows, w.entities)]}
	var reads []*structpb.Value
	for _, l := range v.reads {
		reads = append(reads, structpb.NewStringValue(languages[l]))
	}
	q.req = &feedv1.GetFeedRequest{
		Feed: w.feed.Name, AsOf: timestamppb.New(asOf.Std()),
		Viewer: &feedv1.Viewer{
			Id: v.name,
			Attributes: map[string]*structpb.Value{
				"languages": structpb.NewListValue(&structpb.ListValue{Values: reads}),
				"country":   structpb.NewStringValue(countries[v.country]),
				"muted":     structpb.NewStringValue(countries[v.muted]),
			},
			Features: map[string]float64{"freshness_hours": v.freshnessHours, "chatty": v.chatty, "visual": v.visual},
		},
	}
	for _, e := range q.follows {
		q.req.Entities = append(q.req.Entities, string(entityName(e)))
	}
	return q
}

// timelines returns how many timelines a query asks for on average.
func (w *world) timelines() float64 {
	n := 0
	for i := range w.asked {
		n += len(w.asked[i].follows)
	}
	return float64(n*len(w.feed.Types)) / float64(len(w.asked))
}
