package answers

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
)

const (
	// A version is tried on the records of about trialEntities entities of the node. At most
	// trialEach of these are of one partition. Looking for them takes trialTime at most.
	trialEntities, trialEach = 64, 8
	trialTime                = 2 * time.Second
)

// ownQuestion marks the context of a question that the node asks itself, to try a version. It
// does not count as evidence against a version.
type ownQuestion struct{}

// try reports whether a version gives any of some records a finite score. The records are of
// random entities that the node has, and the viewers are those of the version's golden rows,
// the examples of scores that came with it. tried is false if no such question could be
// answered, or none had items.
func (c *condemner) try(ctx context.Context, id relevance.ID, m *relevance.Model) (has, tried bool) {
	viewers := []*feedv1.Viewer{{}}
	if m.ReadsViewer() {
		viewers = viewersOf(m)
	}
	entities := c.node.someEntities(ctx)
	if len(entities) == 0 {
		return false, false
	}
	for _, v := range viewers {
		resp, err := c.node.query(context.WithValue(ctx, ownQuestion{}, true), &nodev1.QueryRequest{
			Entities: entities, FromMs: int64(millrace.MinTime), ToMs: int64(millrace.MaxTime) + 1, AsOfMs: time.Now().UnixMilli(),
			Viewer: v, Model: id.Name, ModelVersion: id.Version, ModelSum: id.Sum, Limit: trialEntities,
		})
		if err != nil {
			c.node.log.Warn("a version could not be tried on records of the node's own", "model", id.Name, "version", id.Version, "err", err)
			continue
		}
		for _, it := range resp.Items {
			if tried = true; !math.IsNaN(it.Score) && !math.IsInf(it.Score, 0) {
				return true, true
			}
		}
	}
	return false, tried
}

// viewersOf returns the viewers of a model's golden rows.
func viewersOf(m *relevance.Model) (all []*feedv1.Viewer) {
	for _, row := range m.Viewers() {
		v := &feedv1.Viewer{Attributes: map[string]*structpb.Value{}}
		for name, x := range row {
			if id, is := x.(string); is && name == "id" {
				v.Id = id
			} else if value, err := structpb.NewValue(x); err == nil {
				v.Attributes[name] = value
			}
		}
		all = append(all, v)
	}
	return all
}

// someEntities returns some entities that have timelines here, of random partitions, encoded
// as in a request.
func (s *Server) someEntities(ctx context.Context) (encoded []byte) {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	var some []millrace.Entity
	all := slices.Collect(partition.All())
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all {
		before := len(some)
		for t, err := range s.store.Timelines(p) {
			if err != nil || ctx.Err() != nil || len(some)-before == trialEach {
				break
			}
			if len(some) == before || some[len(some)-1] != t.Entity {
				some = append(some, t.Entity)
			}
		}
		if len(some) >= trialEntities || ctx.Err() != nil {
			break
		}
	}
	slices.SortStableFunc(some, func(a, b millrace.Entity) int { return cmp.Compare(partition.Of(a), partition.Of(b)) })
	for _, e := range some {
		encoded = partition.AppendEntity(encoded, partition.Of(e), e)
	}
	return encoded
}

// coverageSample is the number of candidates whose features are looked at.
const coverageSample = 200

// TellUncovered logs a warning if a model reads features that no candidate of the newest
// question has. It does not refuse the model: each replica has other questions, and all must
// serve the same model.
func (s *Server) TellUncovered(ctx context.Context, model relevance.ID) {
	features, candidates, err := s.uncovered(ctx, model)
	if err != nil {
		s.log.Warn("what features candidates have is not known", "model", model.String(), "err", err)
	} else if len(features) > 0 {
		s.log.Warn("no candidate has these features", "model", model.String(), "features", features, "candidates", candidates)
	}
}

// uncovered asks the newest question again, for the best candidates by a model. It returns the
// features that none of these candidates has, and how many candidates it looked at.
func (s *Server) uncovered(ctx context.Context, model relevance.ID) (features []string, candidates int, err error) {
	last := s.asked.Load()
	if last == nil {
		return nil, 0, nil
	}
	resp, err := s.query(context.WithValue(ctx, ownQuestion{}, true), &nodev1.QueryRequest{
		Entities: last.Entities, Types: last.Types, FromMs: last.FromMs, ToMs: last.ToMs, AsOfMs: last.AsOfMs,
		Viewer: last.Viewer, Filter: last.Filter, RequestFilter: last.RequestFilter, Model: model.Name, ModelVersion: model.Version, ModelSum: model.Sum, Limit: coverageSample, Explain: true,
	})
	if err != nil {
		return nil, 0, err
	}
	var has []bool
	for _, it := range resp.Items {
		if has == nil {
			has = make([]bool, len(it.Explain.Features))
		}
		for i, f := range it.Explain.Features {
			_, null := f.Value.GetKind().(*structpb.Value_NullValue)
			_, text := f.Value.GetKind().(*structpb.Value_StringValue)
			has[i] = has[i] || !null && !(text && f.Value.GetStringValue() == "")
		}
	}
	for i, ok := range has {
		if !ok {
			features = append(features, resp.Items[0].Explain.Features[i].Feature)
		}
	}
	return features, len(resp.Items), nil
}
