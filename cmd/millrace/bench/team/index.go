package team

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// This is what a team would write that needs this feed and nothing else: an index in memory,
// made of maps, slices and structs, with the filter, the two models and the ranking written
// by hand. Millrace is compared with it, so it shares no code with Millrace. It reads the
// records that this benchmark generates.

// post is a record in the index.
type post struct {
	id, object, text             string
	at                           int64 // milliseconds since 1970
	likes, comments, shares, imp int64 // imp: impressions
	language, country            uint8 // indices into languages and countries
	public                       bool
	vector                       [dims]float32
}

// index is the posts of each author, by kind, the newest first.
type index map[string]*[3][]post

func newIndex(w *world) index {
	ix := index{}
	for e := range w.entities {
		all := w.records(e)
		if len(all) == 0 {
			continue
		}
		var by [3][]post
		for i := range all {
			by[all[i].kind] = append(by[all[i].kind], newPost(&all[i]))
		}
		for k := range by {
			by[k] = slices.Clip(by[k])
			slices.SortFunc(by[k], func(a, b post) int { return cmp.Compare(b.at, a.at) })
		}
		ix[entityName(e)] = &by
	}
	return ix
}

func newPost(x *record) post {
	return post{
		id: x.id, object: x.object, text: strings.Clone(x.text), at: x.at,
		likes: x.likes, comments: x.comments, shares: x.shares, imp: x.imp,
		language: place(languages, x.language), country: place(countries, x.country), public: x.visibility == visibilities[0],
		vector: x.vector,
	}
}

// place returns the index of s in list, which has it.
func place(list []string, s string) uint8 { return uint8(slices.Index(list, s)) }

// candidate is a post that passed the filter.
type candidate struct {
	score  float64
	post   *post
	author string
	kind   uint8
}

// better reports whether a ranks before b.
func (a *candidate) better(b *candidate) bool {
	if a.score != b.score {
		return a.score > b.score
	}
	if a.post.at != b.post.at {
		return a.post.at > b.post.at
	}
	return a.post.id < b.post.id
}

// item is an item of an answer.
type item struct {
	id, author, object string
	kind               uint8
	at                 int64
	score              float64
	also               []string // ids of up to three further records about the object
}

// seeker answers questions from an index, one at a time. Its memory is used again for the
// next question.
type seeker struct {
	ix   index
	heap []candidate    // the candidates of the question, in any order until best makes a heap of them
	top  []item         // the answer
	seen map[string]int // index into top, by object
}

func newSeeker(ix index) *seeker { return &seeker{ix: ix, seen: map[string]int{}} }

// answer returns the answer to a question. It is valid until the next call.
func (s *seeker) answer(q *question) []item {
	reads := uint(0) // a bit for each language that the viewer reads
	for _, l := range q.reads {
		reads |= 1 << place(languages, l)
	}
	m, country, halfLife := &models[q.model], place(countries, q.country), models[q.model].halfLife(q)
	from := asOf - window.Milliseconds()
	s.heap = s.heap[:0]
	for _, author := range q.follows {
		timelines := s.ix[author]
		if timelines == nil {
			continue
		}
		for kind := range timelines {
			posts := timelines[kind]
			for i := range posts {
				p := &posts[i]
				if p.at < from {
					break
				}
				if p.likes >= 3 && p.imp < 20000 && reads>>p.language&1 != 0 { // the constant filter, in Go
					s.heap = append(s.heap, candidate{m.score(p, country, halfLife), p, author, uint8(kind)})
				}
			}
		}
	}
	return s.best()
}

// halfLife returns the half-life of freshness for a question, in seconds.
func (m *model) halfLife(q *question) float64 {
	if m.viewers {
		return q.freshness * 3600
	}
	return 86400
}

// languageBonus is what both models add to a score for the language of a post, in the order
// of languages.
var languageBonus = []float64{0.2, 0.15, 0.12, 0.1, 0.08, 0.07, 0.05}

// score returns the score of a post for a viewer's country and the half-life of freshness in
// seconds. It computes what [model.spec] says.
func (m *model) score(p *post, country uint8, halfLife float64) float64 {
	s := 0.0
	for i, x := range p.vector {
		s += m.vector[i] * float64(x)
	}
	likes := float64(p.likes)
	s += m.own[0]*math.Log1p(likes) + m.own[1]*math.Log1p(float64(p.comments)) + m.own[2]*likes/max(float64(p.imp), 1) +
		m.own[3]*math.Exp2(-float64(asOf-p.at)/1000/halfLife) + languageBonus[p.language]
	if p.country == country {
		s += m.own[4]
	}
	return s
}

// best returns the best candidates, one for each object and limit in number. An item also has
// the ids of up to three further posts about its object, as far as they rank above the last
// item.
func (s *seeker) best() []item {
	h := s.heap
	for i := len(h)/2 - 1; i >= 0; i-- {
		down(h, i)
	}
	clear(s.seen)
	s.top = s.top[:0]
	for len(h) > 0 && len(s.top) < limit {
		c := h[0]
		last := len(h) - 1
		h[0] = h[last]
		h = h[:last]
		down(h, 0)
		if at, ok := s.seen[c.post.object]; ok {
			if t := &s.top[at]; len(t.also) < 3 {
				t.also = append(t.also, c.post.id)
			}
			continue
		}
		s.seen[c.post.object] = len(s.top)
		s.top = append(s.top, item{id: c.post.id, author: c.author, object: c.post.object, kind: c.kind, at: c.post.at, score: c.score})
	}
	return s.top
}

// down restores the order of the heap h below index i, by moving the candidate at i down. The
// best candidate of a heap is first.
func down(h []candidate, i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].better(&h[child]) {
			child++
		}
		if !h[child].better(&h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
