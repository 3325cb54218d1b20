package team

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// world is the synthetic timelines and the questions about them. It is a function of the
// seed: the records of an entity are drawn anew each time that they are needed.
type world struct {
	seed     uint64
	entities int
	flat     bool      // records have dims fields instead of a list of as many floats
	activity []float64 // the expected number of records of each entity
	summed   []float64 // the sum of activity up to each entity, to draw whom viewers follow
	asked    []question
}

// The figures of the workload are two million records of 100,000 entities, and 652 timelines
// and 3,919 candidates in a mean query; one query in a hundred has more than 20,492. With
// three types, and a window of 7 of 30 days, evenly filled, that makes 26 records in a
// followed timeline, while a timeline has 6.7 on average. So viewers follow entities that are
// active. The activity of an entity is lognormal, with exp(activitySigma²) equal to the ratio
// 26 / 6.7, and viewers follow an entity with a probability in proportion to its activity.
// followsSigma gives the candidates of a query the 99th percentile above.
const (
	recordsEach   = 20    // mean number of records of an entity
	activitySigma = 1.163 // standard deviation of the logarithm of the activity
	followsMean   = 217   // mean number of entities that a viewer follows: 652 / 3
	followsSigma  = 0.876 // standard deviation of the logarithm of that number, which is lognormal
	dims          = 24    // numbers in the vector of a record
)

const (
	// asOf is the instant of every question, in milliseconds since 1970.
	asOf int64 = 1_750_000_000_000
	// history is the age of the oldest records, and window that of the oldest records that
	// questions ask for.
	history = 30 * 24 * time.Hour
	window  = 7 * 24 * time.Hour
	limit   = 20 // items of an answer
)

var (
	kinds        = []string{"post", "share", "comment"}
	kindShares   = []float64{0.5, 0.3, 0.2} // the shares of kinds among the records of an entity
	languages    = []string{"en", "es", "pt", "hi", "de", "fr", "ja"}
	countries    = []string{"us", "in", "br", "gb", "de", "fr", "mx", "jp", "it", "ca", "ar", "ng", "id", "eg", "pl", "kr"}
	visibilities = []string{"public", "friends"}
)

// readLanguages is how many of the seven languages each viewer reads.
const readLanguages = 3

// words is a text; the text of a record is the beginning of it.
const words = "What somebody wrote about a day at the sea, the people met there, the way there by bus and by boat, and the long way home in the rain with nothing to read but the back of a ticket, which was interesting enough"

// record is a record of the world.
type record struct {
	id, author, object           string
	kind                         int   // index into kinds
	at                           int64 // milliseconds since 1970
	text                         string
	language, country            string
	visibility                   string
	likes, comments, shares, imp int64 // imp: impressions
	vector                       [dims]float32
}

// question is the question of a viewer, the same each time that it is asked.
type question struct {
	viewer    string
	model     int      // index into models
	reads     []string // languages
	country   string
	freshness float64                // half-life, in hours
	follows   []string               // names of entities
	req       *feedv1.GetFeedRequest // the question as a message of the feed API
}

func newWorld(entities, viewers int, seed uint64, flat bool) *world {
	w := &world{seed: seed, entities: entities, flat: flat}
	r := w.rand(ofActivity, 0)
	sum := 0.0
	for range entities {
		a := recordsEach * math.Exp(activitySigma*r.NormFloat64()-activitySigma*activitySigma/2)
		sum += a
		w.activity, w.summed = append(w.activity, a), append(w.summed, sum)
	}
	for i := range viewers {
		q := w.question(i)
		q.req = q.request()
		w.asked = append(w.asked, q)
	}
	return w
}

// The kinds of things that rand draws for.
const (
	ofActivity = iota
	ofEntity
	ofViewer
)

// rand returns the random numbers for the ith thing of a kind. They are the same in each
// call.
func (w *world) rand(kind, i int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(kind)<<32|uint64(i)))
}

func entityName(i int) string { return fmt.Sprintf("member:%d", i) }

// records returns the records of an entity, by kind and not by time.
func (w *world) records(entity int) []record {
	r := w.rand(ofEntity, entity)
	articles := rand.NewZipf(r, 1.3, 1, uint64(w.entities))
	var all []record
	for kind, share := range kindShares {
		expected := share * w.activity[entity]
		n := int(expected)
		if r.Float64() < expected-float64(n) {
			n++
		}
		for range n {
			x := record{id: fmt.Sprintf("%d/%d", entity, len(all)), author: entityName(entity), kind: kind, at: asOf - 1 - r.Int64N(history.Milliseconds())}
			x.draw(r, articles)
			all = append(all, x)
		}
	}
	return all
}

// draw fills in the rest of a record. articles draws the objects that several records are
// about.
func (x *record) draw(r *rand.Rand, articles *rand.Zipf) {
	x.object, x.visibility = x.id, visibilities[0]
	if r.IntN(5) == 0 { // a fifth of the records are about an article, which others may be about too
		x.object = fmt.Sprintf("article:%d", articles.Uint64())
	}
	if r.IntN(100) < 7 {
		x.visibility = visibilities[1]
	}
	x.language, x.country = languages[r.IntN(len(languages))], countries[r.IntN(len(countries))]
	x.text = words[:60+r.IntN(len(words)-60)]
	if r.IntN(100) >= 6 {
		x.likes = 1 + int64(math.Exp(1.2+1.3*r.NormFloat64()))
		x.comments = x.likes * r.Int64N(4) / 5
		x.shares = x.likes * r.Int64N(3) / 7
		x.imp = x.likes * (10 + r.Int64N(60))
	}
	if r.IntN(100) < 2 {
		x.imp += 20_000
	}
	for i := range x.vector {
		x.vector[i] = float32(r.NormFloat64())
	}
}

func (w *world) question(i int) question {
	r := w.rand(ofViewer, i)
	q := question{
		viewer: fmt.Sprintf("viewer:%d", i), model: i % len(models),
		country: countries[r.IntN(len(countries))], freshness: float64(4 + r.IntN(44)),
	}
	for _, l := range r.Perm(len(languages))[:readLanguages] {
		q.reads = append(q.reads, languages[l])
	}
	n := max(1, int(followsMean*math.Exp(followsSigma*r.NormFloat64()-followsSigma*followsSigma/2)))
	seen := map[int]bool{}
	for len(seen) < min(n, w.entities/2) {
		e := sort.SearchFloat64s(w.summed, r.Float64()*w.summed[len(w.summed)-1])
		if !seen[e] {
			seen[e] = true
			q.follows = append(q.follows, entityName(e))
		}
	}
	return q
}

// timelines returns the mean number of timelines that a question asks for.
func (w *world) timelines() float64 {
	n := 0
	for i := range w.asked {
		n += len(w.asked[i].follows)
	}
	return float64(n*len(kinds)) / float64(len(w.asked))
}
