package exposure

import (
	"math"

	"github.com/millrace/millrace/schemas"
)

// Branches of the unions in the schema.
const (
	branchNull  = 0
	branchValue = 1 // the type that is not null; the first of them if there are two
	branchText  = 2
)

// Append appends the record's Avro body, without framing, under the present schema. It
// checks the body as readers do, so that every reader of Avro can read it. The error is a
// [*millrace.Error] or a [*schemas.Error], which names the field; dst is then returned as
// it was.
func (r *Record) Append(dst []byte) ([]byte, error) {
	if err := r.check(); err != nil {
		return dst, err
	}
	body := r.append(dst)
	if err := schemas.Exposure().Check(body[len(dst):]); err != nil {
		return dst, err
	}
	return body, nil
}

// append appends the body without any check, in the order of the schema's fields.
func (r *Record) append(b []byte) []byte {
	b = appendString(b, r.ID)
	b = appendLong(b, int64(r.Time))
	b = appendString(b, r.Viewer)
	b = appendString(b, r.Feed)
	b = appendLong(b, r.FeedVersion)
	b = appendString(b, r.Broker)
	b = appendLong(b, int64(r.AsOf))
	b = appendLong(b, int64(r.ServedBefore))
	b = appendLong(b, int64(r.TimelinesAsked))
	b = appendLong(b, int64(r.TimelinesAnswered))
	b = appendArray(b, r.Experiments, appendExperiment)
	b = appendArray(b, r.HeldOut, appendString[string])
	b = appendDouble(b, r.ShadowShare)
	if d := r.Interleaving; d == nil {
		b = appendLong(b, branchNull)
	} else {
		b = appendLong(b, branchValue)
		b = appendString(b, d.Experiment)
		b = appendLong(b, int64(d.Seed))
		b = appendLong(b, int64(d.Turns))
		b = appendArray(b, d.Teams, appendString[string])
	}
	b = appendArray(b, r.Models, appendModel)
	b = appendArray(b, r.Shadows, appendModel)
	b = appendArray(b, r.Items, func(b []byte, it Item) []byte { return appendItem(b, &it, r.FeaturesLeftOut) })
	b = appendDouble(appendBoolean(b, r.FeaturesLeftOut), r.Millis)
	b = appendString(b, r.Refusal)
	b = appendLong(appendLong(b, r.ScoringNanos), int64(r.Looked))
	b = appendArray(b, r.Lacking, appendLacked)
	return appendArray(b, r.ShadowRankings, appendRanking)
}

func appendLacked(b []byte, l Lacked) []byte {
	return appendLong(appendString(b, l.Feature), int64(l.Items))
}

func appendRanking(b []byte, x ShadowRanking) []byte {
	for _, share := range [...]float64{x.Overlap10, x.Overlap, x.RBO} {
		b = appendDouble(b, share)
	}
	b = appendNumber(b, x.Tau)
	for _, n := range [...]int64{x.ServedNanos, x.ServedScored, x.Nanos, x.Scored, int64(x.Looked)} {
		b = appendLong(b, n)
	}
	b = appendArray(b, x.Lacking, appendLacked)
	return appendArray(b, x.Items, appendShadowItem)
}

func appendShadowItem(b []byte, it ShadowItem) []byte {
	for _, s := range [...]string{it.ID, it.Entity, it.Type} {
		b = appendString(b, s)
	}
	return appendNumber(b, it.Score)
}

// appendArray appends an array as one block, with item for each element.
func appendArray[T any](b []byte, list []T, item func([]byte, T) []byte) []byte {
	if len(list) > 0 {
		b = appendLong(b, int64(len(list)))
		for i := range list {
			b = item(b, list[i])
		}
	}
	return appendLong(b, 0)
}

func appendExperiment(b []byte, e Experiment) []byte {
	for _, s := range [...]string{e.Layer, e.Experiment, e.Variant, e.Unit, e.Checksum} {
		b = appendString(b, s)
	}
	b = appendDouble(b, e.Probability)
	b = appendDouble(b, e.ProbabilityInside)
	return appendBoolean(b, e.Forced)
}

func appendModel(b []byte, m Model) []byte {
	for _, s := range [...]string{m.Name, m.Version, m.Checksum} {
		b = appendString(b, s)
	}
	return appendArray(b, m.Features, appendString[string])
}

// appendItem appends an item; without its features if bare.
func appendItem(b []byte, it *Item, bare bool) []byte {
	b = appendLong(b, int64(it.Place))
	b = appendString(b, it.ID)
	b = appendString(b, it.Entity)
	b = appendString(b, it.Type)
	b = appendNumber(b, it.Score)
	b = appendLong(b, int64(it.Model))
	b = appendLong(b, int64(it.Team))
	b = appendArray(b, it.Shadows, appendNumber)
	if bare {
		return appendLong(b, 0)
	}
	return appendArray(b, it.Features, appendValue)
}

func appendValue(b []byte, v Value) []byte {
	if v.IsText {
		return appendString(appendLong(b, branchText), v.Text)
	}
	return appendNumber(b, v.Number)
}

// appendNumber appends a number, or null for NaN. It appends an infinite number as the
// largest or least finite one, since readers refuse infinite numbers.
func appendNumber(b []byte, x float64) []byte {
	if math.IsNaN(x) {
		return appendLong(b, branchNull)
	}
	return appendDouble(appendLong(b, branchValue), min(max(x, -math.MaxFloat64), math.MaxFloat64))
}
