package oracle

import (
	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/schemas"
)

// Load applies one line of NDJSON, a record or features of schema s. It does what a
// producer, the partitioner and an index node together do with it.
func (f *Feed) Load(s *schemas.Schema, line []byte) error {
	body, err := s.EncodeJSON(line)
	if err != nil {
		return err
	}
	e, err := s.Envelope(body)
	if err != nil {
		return err
	}
	f.ApplyEnvelope(s, e)
	return nil
}

// ApplyEnvelope applies a record of a schema to each timeline it belongs to,
// or features to their entity.
func (f *Feed) ApplyEnvelope(s *schemas.Schema, e schemas.Envelope) {
	if s.Features() {
		f.ApplyFeatures(e.Entity, e.Subject, e.Record)
		return
	}
	for _, entity := range append([]millrace.Entity{e.Entity}, e.About...) {
		f.Apply(millrace.Timeline{Entity: entity, Type: e.Type}, e.Record)
	}
}

// FeedItems returns a broker's items for [Diff].
func FeedItems(from []*feedv1.Item) []Item {
	var items []Item
	for _, i := range from {
		item := Item{
			Rank:   rankOf(i.Score, millrace.TimeOf(i.Time.AsTime()), i.Id, i.Entity, i.Type),
			Object: millrace.Object(i.Object),
		}
		for _, a := range i.Also {
			item.Also = append(item.Also, rankOf(a.Score, millrace.TimeOf(a.Time.AsTime()), a.Id, a.Entity, a.Type))
		}
		items = append(items, item)
	}
	return items
}

// NodeItems returns an index node's items for [Diff].
func NodeItems(from []*nodev1.Item) []Item {
	var items []Item
	for _, i := range from {
		item := Item{Rank: nodeRank(i), Object: millrace.Object(i.Object)}
		for _, a := range i.Also {
			item.Also = append(item.Also, nodeRank(a))
		}
		items = append(items, item)
	}
	return items
}

func nodeRank(i *nodev1.Item) millrace.Rank {
	return rankOf(i.Score, millrace.Time(i.TimeMs), i.Id, i.Entity, i.Type)
}

func rankOf(score float64, at millrace.Time, id, entity, typ string) millrace.Rank {
	return millrace.Rank{
		Score: score, Time: at, ID: millrace.RecordID(id),
		Timeline: millrace.Timeline{Entity: millrace.Entity(entity), Type: millrace.ContentType(typ)},
	}
}
