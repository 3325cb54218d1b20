package bench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

// world is the synthetic timelines and who asks for them. It is a function of
// the seed: nothing is kept but what is asked.
type world struct {
	shape    shape
	label    string // name of the shape
	entities int
	seed     uint64
	asked    []*feedv1.GetFeedRequest
}

// asOf is the instant of every question.
const asOf millrace.Time = 1_750_000_000_000

func newWorld(c Config) *world {
	w := &world{shape: shapes[c.Shape], label: c.Shape, entities: c.Entities, seed: c.Seed}
	for viewer := range c.Viewers {
		w.asked = append(w.asked, w.request(viewer))
	}
	return w
}

// name tells worlds apart that are kept in one directory.
func (w *world) name() string { return fmt.Sprintf("%s-%d-%d", w.label, w.entities, w.seed) }

// rand returns the random numbers of one thing of the world.
func (w *world) rand(kind, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(kind)<<32|uint64(i)))
}

const (
	ofEntity = iota
	ofViewer
	ofArrivals
)

func entityName(i int) millrace.Entity { return millrace.Entity(fmt.Sprintf("member:%d", i)) }

var (
	languages = []string{"en", "es", "pt", "hi", "de", "fr", "ja"}
	countries = []string{"us", "in", "br", "gb", "de", "fr", "mx", "jp", "it", "ca", "ar", "ng", "id", "eg", "pl", "kr"}
)

const text = "What somebody wrote about a day at the sea, the people met there, and the long way home"

// records returns the bodies of an entity's timeline, oldest first.
func (w *world) records(entity int) ([][]byte, error) {
	r := w.rand(ofEntity, entity)
	n := w.shape.min + r.IntN(w.shape.max-w.shape.min+1)
	bodies := make([][]byte, n)
	span := feed().Window.Milliseconds() / int64(n)
	articles := rand.NewZipf(r, 1.3, 1, uint64(w.entities))
	for i := range bodies {
		at := int64(asOf) - feed().Window.Milliseconds() + int64(i)*span + 1 + r.Int64N(span-1)
		id := fmt.Sprintf("%d/%d", entity, i)
		object := ""
		if r.IntN(5) == 0 { // a fifth is about what others are about too
			object = fmt.Sprintf("article:%d", articles.Uint64())
		}
		visibility := "public"
		if r.IntN(100) < 7 {
			visibility = "friends"
		}
		likes, comments, impressions := 0, 0, 0
		if r.IntN(100) >= 6 {
			likes = 1 + int(math.Exp(1.2+1.3*r.NormFloat64()))
			comments = likes * r.IntN(4) / 5
			impressions = likes * (10 + r.IntN(60))
		}
		if r.IntN(100) < 2 {
			impressions += 20_000
		}
		var err error
		bodies[i], err = schemas.Activity().EncodeJSON(fmt.Appendf(nil,
			`{"id":%q,"actor":%q,"verb":"post","created_at":%d,"object":%q,"version":%d,"language":%q,"country":%q,"visibility":%q,"text":%q,"likes":%d,"comments":%d,"shares":%d,"impressions":%d}`,
			id, entityName(entity), at, object, 1+r.IntN(2), languages[r.IntN(len(languages))], countries[r.IntN(len(countries))], visibility, text[:10+r.IntN(len(text)-10)],
			likes, comments, likes*r.IntN(3)/7, impressions))
		if err != nil {
			return nil, err
		}
	}
	return bodies, nil
}

// request is what a viewer asks, each time the same.
func (w *world) request(viewer int) *feedv1.GetFeedRequest {
	r := w.rand(ofViewer, viewer)
	skip := r.IntN(len(languages)) // the one that the viewer does not read
	var reads []*structpb.Value
	for i, l := range languages {
		if i != skip {
			reads = append(reads, structpb.NewStringValue(l))
		}
	}
	req := &feedv1.GetFeedRequest{
		Feed: feed().Name, AsOf: timestamppb.New(asOf.Std()),
		Viewer: &feedv1.Viewer{
			Id: fmt.Sprintf("member:%d", viewer),
			Attributes: map[string]*structpb.Value{
				"languages": structpb.NewListValue(&structpb.ListValue{Values: reads}),
				"country":   structpb.NewStringValue(countries[r.IntN(len(countries))]),
				"muted":     structpb.NewStringValue(countries[r.IntN(len(countries))]),
			},
			Features: map[string]float64{"freshness_hours": float64(4 + r.IntN(44)), "chatty": r.Float64(), "visual": r.Float64()},
		},
	}
	for _, e := range r.Perm(w.entities)[:w.shape.keys] {
		req.Entities = append(req.Entities, string(entityName(e)))
	}
	return req
}
