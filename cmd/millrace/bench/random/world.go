package random

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"
)

// world is what a seed draws: a schema, records of it, a feed, a model, and questions. It is
// small enough to be kept in memory.
type world struct {
	*rand.Rand
	fields    []*field
	kinds     int           // how many content types records have
	asked     []int         // the content types that the feed asks for, of 0 to kinds-1
	versions  bool          // some records come again, changed
	deletions bool          // some records are deleted
	objects   int           // how many objects half of the records are about; 0: each is about itself
	window    time.Duration // the age up to which the feed shows records
	limit     int           // items of an answer
	distinct  bool          // an answer shows the best record of each object
	cap       int           // items of an entity in an answer; 0: no cap
	records   []*record     // the live ones, each in its last version
	log       []*record     // what is written: records, older versions and tombstones
	attrs     []*attr
	questions []*question
	mean      float64 // candidates of a question

	filter  []code // joined by "and"
	model   *model
	summary []string // what was drawn, for people
}

const (
	// asOf is the instant of every question, in milliseconds since 1970, and
	// history the age of the oldest records at asOf.
	asOf    int64 = 1_750_000_000_000
	history       = 30 * 24 * time.Hour
)

// kind is what a field's values are: int64, float64, bool, string, or a slice
// of these.
type kind int

const (
	ints kind = iota
	doubles
	singles // float64 that a float32 holds
	bools
	texts   // strings of a dictionary
	prose   // strings of random words
	vectors // []float64 of one length
	tags    // []string
	numbers // []int64
)

// field is a field of the schema, other than those that Millrace itself reads (id, time and
// so on).
type field struct {
	name     string // at its level
	parent   string // the record that it is nested in, or ""
	kind     kind
	nullable bool
	dict     []string             // the values of texts and tags
	dims     int                  // the length of vectors
	single   bool                 // for vectors: a float32 holds each value
	enum     bool                 // for texts: the field is an Avro enum
	draw     func(*rand.Rand) any // draws a value; nil for null
	sample   []float64            // up to 400 drawn values, as number returns them, sorted
}

// path names the field in an expression.
func (f *field) path() string {
	if f.parent == "" {
		return "record." + f.name
	}
	return "record." + f.parent + "." + f.name
}

// goName names the field in the baseline.
func (f *field) goName() string { return strings.ToUpper(f.parent) + strings.ToUpper(f.name) }

// record is a version of a record. At is in milliseconds since 1970; values are those of the
// world's fields, in their order, nil for null.
type record struct {
	id, entity, object string
	kind               int
	at, version        int64
	deleted            bool
	values             []any
}

// attr is something that viewers have.
type attr struct {
	name string
	kind kind // doubles, texts, tags (a list of texts), vectors
	draw func(*rand.Rand) any
}

func (a *attr) goName() string { return strings.ToUpper(a.name) }

// question is what a viewer asks for: the feed of the entities that they follow.
type question struct {
	viewer  string   // an id
	follows []string // entities
	values  []any    // of the viewer's attributes, in the order of attrs
}

func kindName(i int) string   { return fmt.Sprintf("kind%d", i) }
func entityName(i int) string { return fmt.Sprintf("entity:%d", i) }

// size bounds a world.
type size struct {
	entities, viewers int
	records           int     // at most
	candidates        float64 // of a question, in the mean: at least; at most ten times as many
}

// maxText bounds what the records of a world take as JSON, in bytes, so that a
// workload is in the log after seconds.
const maxText = 100 << 20

// newWorld draws a world. It draws again while questions would not meet as many candidates as
// size asks for.
func newWorld(seed uint64, of size) *world {
	for again := uint64(0); ; again++ {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 0x6d696c6c+again))} // "mill"; any constant would do
		if w.drawAll(of) {
			return w
		}
	}
}

// drawAll draws everything, and reports whether questions meet as many candidates as size
// asks for. If they do not, the world is not complete.
func (w *world) drawAll(of size) bool {
	w.drawSchema()
	w.kinds = 1 + w.IntN(4)
	w.asked = w.Perm(w.kinds)[:1+w.IntN(w.kinds)]
	slices.Sort(w.asked)
	w.versions, w.deletions, w.distinct = w.IntN(2) == 0, w.IntN(3) == 0, w.IntN(2) == 0
	w.limit = one(w.Rand, 10, 20, 50, 100)
	if w.IntN(3) == 0 {
		w.cap = 1 + w.IntN(5)
	}
	if w.IntN(2) == 0 {
		w.objects = one(w.Rand, 50, 1000, 20_000)
	}
	w.window = time.Duration(float64(history) * one(w.Rand, 0.05, 0.25, 0.5, 1))
	w.say("%d types, %d asked; window %s; top %d", w.kinds, len(w.asked), w.window, w.limit)
	if w.distinct {
		w.say("distinct of %d objects", w.objects)
	}
	if w.cap > 0 {
		w.say("cap %d", w.cap)
	}
	mean := min(between(w.Rand, 3, 100), float64(min(of.records, maxText/w.text()))/float64(of.entities))
	wanted := of.candidates * between(w.Rand, 1.1, 8)
	if mean*w.share()*mostFollows(of.entities) < wanted {
		return false
	}
	lengths := w.drawRecords(of.entities, mean)
	w.drawModel()
	w.drawFilter()
	return w.drawQuestions(lengths, wanted, of)
}

// share returns about which share of all records has a type and an age that the feed asks
// for.
func (w *world) share() float64 {
	return float64(w.window) / float64(history) * float64(len(w.asked)) / float64(w.kinds)
}

// text returns how many bytes a record takes as JSON, in the mean of a few.
func (w *world) text() int {
	const some = 20
	n := 0
	for range some {
		line, err := w.line(&record{values: w.drawValues()})
		if err != nil {
			panic(err) // values are numbers, booleans, texts and lists of these
		}
		n += len(line)
	}
	return n / some
}

func (w *world) say(format string, args ...any) {
	w.summary = append(w.summary, fmt.Sprintf(format, args...))
}

func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// between draws a number from lo to hi, with each order of magnitude as likely as another.
func between(r *rand.Rand, lo, hi float64) float64 {
	return lo * math.Pow(hi/lo, r.Float64())
}

// drawSchema draws the fields of records: 4 to 40, at the top level and in up to three nested
// records.
func (w *world) drawSchema() {
	n := int(between(w.Rand, 4, 40))
	parents := []string{""}
	for i := range w.IntN(4) {
		parents = append(parents, fmt.Sprintf("part%d", i))
	}
	count := map[kind]int{}
	for i := range n {
		f := &field{name: fmt.Sprintf("f%d", i), parent: one(w.Rand, parents...)}
		f.kind = one(w.Rand, ints, ints, ints, doubles, singles, bools, texts, texts, prose, vectors, tags, numbers)
		switch i { // so that there is always something to filter and to score by
		case 0:
			f.kind = ints
		case 1:
			f.kind = texts
		case 2:
			f.kind = doubles
		}
		w.drawField(f)
		count[f.kind]++
		w.fields = append(w.fields, f)
	}
	// fields of one nested record stand together
	slices.SortStableFunc(w.fields, func(a, b *field) int { return strings.Compare(a.parent, b.parent) })
	w.say("%d fields in %d records: %d numbers, %d texts, %d prose, %d vectors, %d other lists", n, len(parents),
		count[ints]+count[doubles]+count[singles], count[texts], count[prose], count[vectors], count[tags]+count[numbers])
}

// drawField draws the distribution of a field's values, and a sample of them.
func (w *world) drawField(f *field) {
	switch f.kind {
	case ints:
		f.draw = drawInts(w.Rand)
	case doubles, singles:
		f.draw = drawDoubles(w.Rand, f.kind == singles)
	case bools:
		p := w.Float64()
		f.draw = func(r *rand.Rand) any { return r.Float64() < p }
	case texts:
		f.dict = w.drawDict(int(between(w.Rand, 3, 3000)))
		f.enum = len(f.dict) < 30 && f.dict[0] == "v0" && w.IntN(3) == 0 // a longer value has spaces, which a symbol may not have
		f.draw = drawTexts(f.dict, w.IntN(2) == 0)
	case prose:
		mean := between(w.Rand, 20, 400)
		f.draw = func(r *rand.Rand) any { return drawProse(r, int(mean*(0.5+r.Float64()))) }
	case vectors:
		f.dims, f.single = one(w.Rand, 3, 8, 24, 64), w.IntN(2) == 0
		f.draw = drawVector(f.dims, f.single)
	case tags:
		f.dict = w.drawDict(one(w.Rand, 5, 50, 500))
		most := 1 + w.IntN(8)
		f.draw = func(r *rand.Rand) any {
			list := make([]string, r.IntN(most+1))
			for i := range list {
				list[i] = one(r, f.dict...)
			}
			return list
		}
	case numbers:
		most := 1 + w.IntN(8)
		f.draw = func(r *rand.Rand) any {
			list := make([]int64, r.IntN(most+1))
			for i := range list {
				list[i] = r.Int64N(20)
			}
			return list
		}
	}
	if f.kind <= prose && !f.enum && w.IntN(5) == 0 { // up to prose, kinds are no lists
		f.nullable = true
		draw, p := f.draw, w.Float64()*0.5
		f.draw = func(r *rand.Rand) any {
			if r.Float64() < p {
				return nil
			}
			return draw(r)
		}
	}
	for range 400 {
		if x, ok := number(f.draw(w.Rand)); ok {
			f.sample = append(f.sample, x)
		}
	}
	slices.Sort(f.sample)
}

// number returns a value as a number: a number itself, or the length of a text, of a list of
// texts or of a list of integers. It returns false for others.
func number(v any) (float64, bool) {
	switch x := v.(type) {
	case int64:
		return float64(x), true
	case float64:
		return x, true
	case []string:
		return float64(len(x)), true
	case []int64:
		return float64(len(x)), true
	case string:
		return float64(len(x)), true
	}
	return 0, false
}

// at returns the quantile q, from 0 to 1, of the sample; 0 if there is none.
func (f *field) at(q float64) float64 {
	if len(f.sample) == 0 {
		return 0
	}
	return f.sample[min(len(f.sample)-1, int(q*float64(len(f.sample))))]
}

// drawInts draws a distribution of integers, and returns a function that draws from it.
func drawInts(r *rand.Rand) func(*rand.Rand) any {
	switch r.IntN(3) {
	case 0: // counts, most of them small
		mean, none := between(r, 1, 1000), r.Float64()*0.6
		return func(r *rand.Rand) any {
			if r.Float64() < none {
				return int64(0)
			}
			return int64(mean * math.Exp(1.3*r.NormFloat64()))
		}
	case 1:
		n := int64(between(r, 2, 1e6))
		return func(r *rand.Rand) any { return r.Int64N(n) - n/4 }
	}
	return func(r *rand.Rand) any { return int64(r.Uint64() >> 20) } // such as hashes
}

// drawDoubles draws a distribution of numbers, and returns a function that draws from it; if
// single, only numbers that a float32 holds.
func drawDoubles(r *rand.Rand, single bool) func(*rand.Rand) any {
	scale, heavy := between(r, 0.01, 1000), r.IntN(3) == 0
	return func(r *rand.Rand) any {
		x := scale * r.NormFloat64()
		if heavy {
			x = scale * math.Exp(r.NormFloat64())
		}
		if single {
			x = float64(float32(x))
		}
		return x
	}
}

// drawDict draws n different texts, all short or all long.
func (w *world) drawDict(n int) []string {
	long := w.IntN(4) == 0
	dict := make([]string, n)
	for i := range dict {
		dict[i] = fmt.Sprintf("v%d", i)
		if long {
			dict[i] = fmt.Sprintf("a longer value, such as a name or title, number %d", i)
		}
	}
	return dict
}

// drawTexts returns a function that draws from a dictionary; if skewed, the first values more
// often.
func drawTexts(dict []string, skewed bool) func(*rand.Rand) any {
	return func(r *rand.Rand) any {
		x := r.Float64()
		if skewed {
			x *= x * x
		}
		return dict[int(x*float64(len(dict)))]
	}
}

var vocabulary = strings.Fields("sea day people train home rain photo boat light city song river market bread winter stone garden window letter north")

// drawProse returns random words, of at least n bytes together.
func drawProse(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(one(r, vocabulary...))
		b.WriteByte(' ')
	}
	return b.String()
}

func drawVector(dims int, single bool) func(*rand.Rand) any {
	return func(r *rand.Rand) any {
		v := make([]float64, dims)
		for i := range v {
			if v[i] = r.NormFloat64(); single {
				v[i] = float64(float32(v[i]))
			}
		}
		return v
	}
}

// drawRecords draws the records, and returns how many each entity has.
func (w *world) drawRecords(entities int, mean float64) []float64 {
	spread := one(w.Rand, 0, 0.7, 1.4) // standard deviation of the logarithm of the lengths
	w.say("%.0f records of an entity, spread %.1f", mean, spread)
	lengths := make([]float64, entities)
	for e := range entities {
		n := int(mean*math.Exp(spread*w.NormFloat64()-spread*spread/2) + w.Float64())
		lengths[e] = float64(n)
		for range n {
			w.drawRecord(e)
		}
	}
	if len(w.records) == 0 {
		w.drawRecord(0)
	}
	return lengths
}

// drawRecord draws a record of an entity, and perhaps a newer version and a tombstone of it.
func (w *world) drawRecord(entity int) {
	x := &record{id: fmt.Sprintf("r%d", len(w.log)), entity: entityName(entity), kind: w.IntN(w.kinds), at: w.drawTime(), version: 1}
	if w.objects > 0 && w.IntN(2) == 0 {
		x.object = fmt.Sprintf("about:%d", int(w.Float64()*w.Float64()*float64(w.objects)))
	}
	x.values = w.drawValues()
	w.log = append(w.log, x)
	if w.versions && w.IntN(20) == 0 { // it comes again, with other values and at another time
		y := *x
		y.version, y.values, y.at = 2, w.drawValues(), w.drawTime()
		w.log = append(w.log, &y)
		x = &y
	}
	if w.deletions && w.IntN(30) == 0 {
		y := *x
		y.version, y.deleted = 3, true
		w.log = append(w.log, &y)
		return
	}
	w.records = append(w.records, x)
}

func (w *world) drawTime() int64 { return asOf - 1 - w.Int64N(history.Milliseconds()) }

func (w *world) drawValues() []any {
	values := make([]any, len(w.fields))
	for i, f := range w.fields {
		values[i] = f.draw(w.Rand)
	}
	return values
}

// mostFollows returns how many entities a viewer follows at most, in the mean over viewers,
// in a world of that many entities.
func mostFollows(entities int) float64 { return min(2000, float64(entities)/2) }

// drawQuestions draws who follows whom, so that a question meets about as many candidates as
// wanted, in the mean. Lengths are how many records each entity has. It reports whether the
// mean is within the bounds of size: the entities that are followed may have fewer records
// than expected, or more.
func (w *world) drawQuestions(lengths []float64, wanted float64, of size) bool {
	popularity := w.IntN(3)
	weights := make([]float64, len(lengths))
	sum, weighted := 0.0, 0.0
	for i, n := range lengths {
		x := 1.0 // all alike
		switch popularity {
		case 1: // by how many records they have
			x = n
		case 2: // by rank: the first ones are followed most
			x = 1 / float64(i+1)
		}
		sum += x
		weighted += x * n
		weights[i] = sum
	}
	if sum == 0 || weighted == 0 {
		return false
	}
	sigma := one(w.Rand, 0.2, 0.9)
	met := w.candidates()
	mean := wanted / (w.share() * weighted / sum)
	for range 4 { // tries; each corrects the mean by what the one before gave
		mean = min(max(mean, 5), mostFollows(len(lengths)))
		w.questions, w.mean = nil, 0
		for i := range of.viewers {
			q := w.drawQuestion(fmt.Sprintf("viewer:%d", i), mean, sigma, weights)
			for _, e := range q.follows {
				w.mean += met[e] / float64(of.viewers)
			}
			w.questions = append(w.questions, q)
		}
		if w.mean >= of.candidates && w.mean <= 10*of.candidates {
			w.say("about %.0f follows, popularity %s, %.0f candidates", mean, []string{"alike", "by length", "by rank"}[popularity], w.mean)
			return true
		}
		mean *= wanted / max(w.mean, 1)
	}
	return false
}

// candidates returns, by entity, how many records the feed asks for; none has no entry.
func (w *world) candidates() map[string]float64 {
	met := map[string]float64{}
	for _, x := range w.records {
		if x.at >= asOf-w.window.Milliseconds() && slices.Contains(w.asked, x.kind) {
			met[x.entity]++
		}
	}
	return met
}

// drawQuestion draws a question with about as many follows as mean; sigma is the standard
// deviation of the logarithm of their number. Weights are cumulative: each entity's is added
// to those of the entities before it.
func (w *world) drawQuestion(viewer string, mean, sigma float64, weights []float64) *question {
	q := &question{viewer: viewer}
	n := min(max(1, int(mean*math.Exp(sigma*w.NormFloat64()-sigma*sigma/2))), len(weights)/2)
	seen := map[int]bool{}
	for tries := 0; len(seen) < n && tries < 20*n; tries++ {
		e := sort.SearchFloat64s(weights, w.Float64()*weights[len(weights)-1])
		if e < len(weights) && !seen[e] {
			seen[e] = true
			q.follows = append(q.follows, entityName(e))
		}
	}
	for _, a := range w.attrs {
		q.values = append(q.values, a.draw(w.Rand))
	}
	return q
}

// drawSome returns a function that draws n different values of a dictionary.
func drawSome(dict []string, n int) func(*rand.Rand) any {
	return func(r *rand.Rand) any {
		some := make([]string, 0, n)
		for _, i := range r.Perm(len(dict))[:n] {
			some = append(some, dict[i])
		}
		return some
	}
}

func drawHours(r *rand.Rand) any { return float64(1 + r.IntN(72)) }
