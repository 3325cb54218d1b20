package exposure

import (
	"fmt"
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/schemas"
)

// Decode reads the body of a record that was written under the schema with a fingerprint:
// the present schema of exposures or the earlier one. The record shares no memory with
// body. The error is a [*schemas.Error] if body is no such record, a [*millrace.Error] if
// the parts of the record do not fit each other, and another one for any other schema.
func Decode(schema millrace.Fingerprint, body []byte) (*Record, error) {
	of := schemas.Exposure()
	earlier := schema == schemas.EarlierExposure().Fingerprint()
	if earlier {
		of = schemas.EarlierExposure()
	}
	if schema != of.Fingerprint() {
		return nil, fmt.Errorf("exposure: schema %s is not that of exposures", schema)
	}
	if err := of.Check(body); err != nil {
		return nil, err
	}
	d := decoder{b: body} // the check above lets it read without checks
	r := &Record{
		ID:                d.text(),
		Time:              millrace.Time(d.long()),
		Viewer:            d.text(),
		Feed:              d.text(),
		FeedVersion:       d.long(),
		Broker:            d.text(),
		AsOf:              millrace.Time(d.long()),
		ServedBefore:      int(d.long()),
		TimelinesAsked:    int(d.long()),
		TimelinesAnswered: int(d.long()),
		Experiments:       array(&d, (*decoder).experiment),
		HeldOut:           array(&d, (*decoder).text),
		ShadowShare:       d.double(),
	}
	if d.long() != branchNull {
		r.Interleaving = &Interleaving{Experiment: d.text(), Seed: uint64(d.long()), Turns: uint64(d.long()), Teams: array(&d, (*decoder).text)}
	}
	r.Models = array(&d, (*decoder).model)
	r.Shadows = array(&d, (*decoder).model)
	r.Items = array(&d, (*decoder).item)
	r.FeaturesLeftOut, r.Millis, r.Refusal = d.boolean(), d.double(), d.text()
	if !earlier {
		r.ScoringNanos, r.Looked = d.long(), int(d.long())
		r.Lacking, r.ShadowRankings = array(&d, (*decoder).lacked), array(&d, (*decoder).ranking)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return r, nil
}

// decoder reads the primitives of a body that has been checked. Values are read
// in the order of the schema's fields, which is that of the literals above and
// below: Go evaluates calls from left to right.
type decoder struct {
	b  []byte
	at int
}

func (d *decoder) long() int64 {
	x, at := compute.ReadLong(d.b, d.at)
	d.at = at
	return int64(x)
}

func (d *decoder) boolean() bool {
	x, at := compute.ReadBoolean(d.b, d.at)
	d.at = at
	return x == 1
}

func (d *decoder) double() float64 {
	x, at := compute.ReadDouble(d.b, d.at)
	d.at = at
	return math.Float64frombits(x)
}

func (d *decoder) text() string {
	end := compute.SkipBytes(d.b, d.at)
	n, from := compute.ReadLong(d.b, d.at)
	d.at = end
	return string(d.b[from : from+int(n)])
}

// array reads an array, in as many blocks as there are; nil if it is empty.
func array[T any](d *decoder, item func(*decoder) T) (list []T) {
	for {
		count, at, _ := compute.ReadBlock(d.b, d.at)
		d.at = at
		if count == 0 {
			return list
		}
		for range count {
			list = append(list, item(d))
		}
	}
}

func (d *decoder) experiment() Experiment {
	return Experiment{
		Layer: d.text(), Experiment: d.text(), Variant: d.text(), Unit: d.text(), Checksum: d.text(),
		Probability: d.double(), ProbabilityInside: d.double(), Forced: d.boolean(),
	}
}

func (d *decoder) model() Model {
	return Model{Name: d.text(), Version: d.text(), Checksum: d.text(), Features: array(d, (*decoder).text)}
}

func (d *decoder) item() Item {
	return Item{
		Place: int(d.long()), ID: d.text(), Entity: d.text(), Type: d.text(), Score: d.value().Number, Model: int(d.long()), Team: int(d.long()),
		Shadows: array(d, func(d *decoder) float64 { return d.value().Number }), Features: array(d, (*decoder).value),
	}
}

func (d *decoder) lacked() Lacked { return Lacked{Feature: d.text(), Items: int(d.long())} }

func (d *decoder) ranking() ShadowRanking {
	return ShadowRanking{
		Overlap10: d.double(), Overlap: d.double(), RBO: d.double(), Tau: d.value().Number,
		ServedNanos: d.long(), ServedScored: d.long(), Nanos: d.long(), Scored: d.long(), Looked: int(d.long()),
		Lacking: array(d, (*decoder).lacked), Items: array(d, (*decoder).shadowItem),
	}
}

func (d *decoder) shadowItem() ShadowItem {
	return ShadowItem{ID: d.text(), Entity: d.text(), Type: d.text(), Score: d.value().Number}
}

// value reads a number, a text, or null, which is [Missing].
func (d *decoder) value() Value {
	switch d.long() {
	case branchValue:
		return Number(d.double())
	case branchText:
		return Text(d.text())
	}
	return Missing()
}
