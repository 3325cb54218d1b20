package answers

import (
	"math"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/relevance"
)

// items returns the items of an answer as messages. These are encoded after the memory of the
// timelines is released. So texts and bodies, which are in that memory, are copied to memory
// that items makes for room. models are the model that ranks, first, and the shadow models;
// nil if there are no shadow models.
func (s *Server) items(from []query.Item, room *itemRoom, models *relevance.Joint) []*nodev1.Item {
	room.texts.Grow(room.textBytes)
	room.items, room.bodies = make([]nodev1.Item, room.count), make([]byte, 0, room.bodyBytes)
	all := room.of(from)
	for i := range from {
		switch why := from[i].Why; {
		case why != nil:
			all[i].Explain = s.why(why)
		case models != nil: // there is no explanation of the score, but there are shadow scores
			all[i].Explain = &feedv1.ItemExplain{}
		default:
			continue
		}
		shadow(all[i].Explain, &from[i].Shadow, models)
	}
	return all
}

// tellFeatures adds to an answer the names of the features in the spec of m, and their values
// for each item in that order. A feature without a value is NaN.
func tellFeatures(resp *nodev1.QueryResponse, m *relevance.Model, from []query.Item) {
	at := map[string]int{}
	for i, f := range m.Spec().Features {
		resp.FeatureNames = append(resp.FeatureNames, f.Name)
		at[f.Name] = i
	}
	for i := range from {
		v := &nodev1.Vector{Numbers: make([]float64, len(at))}
		for k := range v.Numbers {
			v.Numbers[k] = math.NaN()
		}
		for _, f := range from[i].Features {
			switch x := f.Value.(type) {
			case float64:
				v.Numbers[at[f.Name]] = x
			case string:
				if v.Texts == nil {
					v.Texts = map[int32]string{}
				}
				v.Texts[int32(at[f.Name])] = x
			}
		}
		resp.Items[i].Features = v
	}
}

// itemRoom is memory for the items of an answer, made in a few large pieces. First measure
// adds up how much is needed, then of fills it.
type itemRoom struct {
	// What measure has added up: the number of items, and the bytes of their ids and objects,
	// of their bodies, and of the names of their entities and types.
	count, textBytes, bodyBytes, nameBytes int

	// The memory that is left. Names are not copied.
	items  []nodev1.Item
	texts  strings.Builder
	bodies []byte
}

// measure adds what items need, with the further items in them.
func (r *itemRoom) measure(from []query.Item) {
	r.count += len(from)
	for i := range from {
		it := &from[i]
		r.textBytes += len(it.ID) + len(it.Object)
		r.nameBytes += len(it.Entity) + len(it.Type)
		r.bodyBytes += len(it.Body)
		r.measure(it.Also)
	}
}

// bytes returns an upper estimate of the bytes that the items take on the wire.
func (r *itemRoom) bytes() int64 {
	return int64(nodewire.ItemBytes*r.count + r.textBytes + r.bodyBytes + r.nameBytes)
}

// of returns items as messages in the memory of r.
func (r *itemRoom) of(from []query.Item) []*nodev1.Item {
	if len(from) == 0 {
		return nil
	}
	all := make([]*nodev1.Item, len(from))
	for i := range from {
		it, out := &from[i], &r.items[0]
		all[i], r.items = out, r.items[1:]
		out.Score, out.TimeMs, out.Entity, out.Type, out.Schema = it.Score, int64(it.Time), string(it.Entity), string(it.Type), uint64(it.Schema)
		out.Id = r.text(string(it.ID))
		if out.Object = out.Id; string(it.Object) != out.Id {
			out.Object = r.text(string(it.Object))
		}
		at := len(r.bodies)
		r.bodies = append(r.bodies, it.Body...)
		out.Body = r.bodies[at:len(r.bodies):len(r.bodies)]
		out.Also = r.of(it.Also)
	}
	return all
}

// text returns a copy of s in the memory of r.
func (r *itemRoom) text(s string) string {
	at := r.texts.Len()
	r.texts.WriteString(s)
	return r.texts.String()[at:]
}

// shadow adds the scores of shadow models to the explanation of an item. Shadow models score
// items, and do not rank them.
func shadow(out *feedv1.ItemExplain, s *query.Shadow, models *relevance.Joint) {
	if s.Err != nil {
		out.ShadowError = s.Err.Error()
	}
	for i, x := range s.Scores {
		if m := models.Models()[i]; i > 0 { // the first ranks
			out.Shadow = append(out.Shadow, &feedv1.ShadowScore{Model: m.Name(), ModelVersion: m.Version(), Score: x})
		}
	}
}

// why returns the explanation of a score as a message.
func (s *Server) why(e *relevance.Explanation) *feedv1.ItemExplain {
	out := &feedv1.ItemExplain{Node: string(s.id), Base: e.Base}
	for _, f := range e.Features {
		c := &feedv1.Contribution{Feature: f.Name, Contribution: f.Contribution}
		switch v := f.Value.(type) {
		case string:
			c.Value = structpb.NewStringValue(v)
		case float64:
			if c.Value = numberOf(v); math.IsNaN(v) {
				c.Value = structpb.NewNullValue()
			}
		}
		out.Features = append(out.Features, c)
	}
	return out
}
