package exposure

import (
	"math"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/kernel"
)

// Branches of the unions in the schema.
const (
	branchNull  = 0
	branchValue = 1 // the other type, or the first of two
	branchText  = 2
)

// Append appends the record's Avro body, without framing. What it appends has
// been read again: every reader of Avro takes it. The error is a
// [*millrace.Error] or a [*schemas.Error], and names the field; dst is then
// returned as it was.
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

func (r *Record) append(b []byte) []byte {
	b = kernel.AppendString(b, r.ID)
	b = kernel.AppendLong(b, int64(r.Time))
	b = kernel.AppendString(b, r.Viewer)
	b = kernel.AppendString(b, r.Feed)
	b = kernel.AppendLong(b, r.FeedVersion)
	b = kernel.AppendString(b, r.Broker)
	b = kernel.AppendLong(b, int64(r.AsOf))
	b = kernel.AppendLong(b, int64(r.ServedBefore))
	b = kernel.AppendLong(b, int64(r.TimelinesAsked))
	b = kernel.AppendLong(b, int64(r.TimelinesAnswered))
	b = appendArray(b, r.Experiments, appendExperiment)
	b = appendArray(b, r.HeldOut, kernel.AppendString[string])
	b = kernel.AppendDouble(b, r.ShadowShare)
	if d := r.Interleaving; d == nil {
		b = kernel.AppendLong(b, branchNull)
	} else {
		b = kernel.AppendLong(b, branchValue)
		b = kernel.AppendString(b, d.Experiment)
		b = kernel.AppendLong(b, int64(d.Seed))
		b = kernel.AppendLong(b, int64(d.Turns))
		b = appendArray(b, d.Teams, kernel.AppendString[string])
	}
	b = appendArray(b, r.Models, appendModel)
	b = appendArray(b, r.Shadows, appendModel)
	b = appendArray(b, r.Items, func(b []byte, it Item) []byte { return appendItem(b, &it, r.FeaturesLeftOut) })
	b = kernel.AppendDouble(kernel.AppendBoolean(b, r.FeaturesLeftOut), r.Millis)
	b = kernel.AppendString(b, r.Refusal)
	b = kernel.AppendLong(kernel.AppendLong(b, r.ScoringNanos), int64(r.Looked))
	b = appendArray(b, r.Lacking, appendLacked)
	return appendArray(b, r.ShadowRankings, appendRanking)
}

func appendLacked(b []byte, l Lacked) []byte {
	return kernel.AppendLong(kernel.AppendString(b, l.Feature), int64(l.Items))
}

func appendRanking(b []byte, x ShadowRanking) []byte {
	for _, share := range [...]float64{x.Overlap10, x.Overlap, x.RBO} {
		b = kernel.AppendDouble(b, share)
	}
	b = appendNumber(b, x.Tau)
	for _, n := range [...]int64{x.ServedNanos, x.ServedScored, x.Nanos, x.Scored, int64(x.Looked)} {
		b = kernel.AppendLong(b, n)
	}
	b = appendArray(b, x.Lacking, appendLacked)
	return appendArray(b, x.Items, appendShadowItem)
}

func appendShadowItem(b []byte, it ShadowItem) []byte {
	for _, s := range [...]string{it.ID, it.Entity, it.Type} {
		b = kernel.AppendString(b, s)
	}
	return appendNumber(b, it.Score)
}

// appendArray appends an array as one block.
func appendArray[T any](b []byte, list []T, item func([]byte, T) []byte) []byte {
	if len(list) > 0 {
		b = kernel.AppendLong(b, int64(len(list)))
		for i := range list {
			b = item(b, list[i])
		}
	}
	return kernel.AppendLong(b, 0)
}

func appendExperiment(b []byte, e Experiment) []byte {
	for _, s := range [...]string{e.Layer, e.Experiment, e.Variant, e.Unit, e.Checksum} {
		b = kernel.AppendString(b, s)
	}
	b = kernel.AppendDouble(b, e.Probability)
	b = kernel.AppendDouble(b, e.ProbabilityInside)
	return kernel.AppendBoolean(b, e.Forced)
}

func appendModel(b []byte, m Model) []byte {
	for _, s := range [...]string{m.Name, m.Version, m.Checksum} {
		b = kernel.AppendString(b, s)
	}
	return appendArray(b, m.Features, kernel.AppendString[string])
}

func appendItem(b []byte, it *Item, bare bool) []byte {
	b = kernel.AppendLong(b, int64(it.Place))
	b = kernel.AppendString(b, it.ID)
	b = kernel.AppendString(b, it.Entity)
	b = kernel.AppendString(b, it.Type)
	b = appendNumber(b, it.Score)
	b = kernel.AppendLong(b, int64(it.Model))
	b = kernel.AppendLong(b, int64(it.Team))
	b = appendArray(b, it.Shadows, appendNumber)
	if bare {
		return kernel.AppendLong(b, 0)
	}
	return appendArray(b, it.Features, appendValue)
}

func appendValue(b []byte, v Value) []byte {
	if v.IsText {
		return kernel.AppendString(kernel.AppendLong(b, branchText), v.Text)
	}
	return appendNumber(b, v.Number)
}

// appendNumber appends a number or null, the infinite ones as the largest.
func appendNumber(b []byte, x float64) []byte {
	if math.IsNaN(x) {
		return kernel.AppendLong(b, branchNull)
	}
	return kernel.AppendDouble(kernel.AppendLong(b, branchValue), min(max(x, -math.MaxFloat64), math.MaxFloat64))
}
