// Package oracle is a feed index that is obviously right: one goroutine, maps
// and sort. Tests compare it with what the roles answer, in every topology.
// ARCHITECTURE.md, "Exact semantics", is its specification; it shares no code
// with the store, the caches, the kernels or the merge.
package oracle

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr/celref"
)

// Candidate is one record in one timeline.
type Candidate struct {
	millrace.Timeline
	millrace.Record
	Features *millrace.Record // of the entity; nil when it has none
	About    *millrace.Record // the features that the entity routes for the record's object; nil when there are none
}

// Filter judges a candidate for a viewer at an instant. Only [celref.True]
// keeps the candidate.
type Filter func(c *Candidate, v *millrace.Viewer, asOf millrace.Time) celref.Outcome

// Score scores a candidate for a viewer at an instant.
type Score func(c *Candidate, v *millrace.Viewer, asOf millrace.Time) float64

// Feed is the state that everything applied to it leads to.
type Feed struct {
	timelines map[millrace.Timeline]map[millrace.RecordID]millrace.Record
	features  map[millrace.Entity]map[string]millrace.Record // by subject
}

// New returns an empty feed.
func New() *Feed {
	return &Feed{
		timelines: map[millrace.Timeline]map[millrace.RecordID]millrace.Record{},
		features:  map[millrace.Entity]map[string]millrace.Record{},
	}
}

// Apply applies a record or tombstone to a timeline. The highest version of an id
// stays. Of two records with the same version the first stays; of a record and a
// tombstone with the same version the tombstone stays, whichever came first.
func (f *Feed) Apply(t millrace.Timeline, r millrace.Record) {
	if r.Object == "" {
		r.Object = millrace.Object(r.ID)
	}
	records := f.timelines[t]
	if records == nil {
		records = map[millrace.RecordID]millrace.Record{}
		f.timelines[t] = records
	}
	old, met := records[r.ID]
	if !met || r.Version > old.Version || r.Version == old.Version && r.Deleted {
		records[r.ID] = r
	}
}

// ApplyFeatures applies the features of a subject, which entity e routes: the subject is
// e itself or an object. Only version, schema and body of r count. The highest version
// stays; of two with the same version the first stays.
func (f *Feed) ApplyFeatures(e millrace.Entity, subject string, r millrace.Record) {
	subjects := f.features[e]
	if subjects == nil {
		subjects = map[string]millrace.Record{}
		f.features[e] = subjects
	}
	if old, met := subjects[subject]; !met || r.Version > old.Version {
		subjects[subject] = r
	}
}

// candidate returns a record with the features of its timeline's entity and of its object.
func (f *Feed) candidate(t millrace.Timeline, r millrace.Record) Candidate {
	c := Candidate{Timeline: t, Record: r}
	if of, ok := f.features[t.Entity][string(t.Entity)]; ok {
		c.Features = &of
	}
	if of, ok := f.features[t.Entity][string(r.Object)]; ok {
		c.About = &of
	}
	return c
}

// Timelines returns the timelines that have a live record, in order.
func (f *Feed) Timelines() []millrace.Timeline {
	var ts []millrace.Timeline
	for t := range f.timelines {
		if len(f.Live(t)) > 0 {
			ts = append(ts, t)
		}
	}
	slices.SortFunc(ts, compareTimelines)
	return ts
}

// Live returns the live records of a timeline: newest first, then by id.
func (f *Feed) Live(t millrace.Timeline) []millrace.Record {
	var live []millrace.Record
	for _, r := range f.timelines[t] {
		if !r.Deleted {
			live = append(live, r)
		}
	}
	slices.SortFunc(live, func(a, b millrace.Record) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.ID, b.ID))
	})
	return live
}

func compareTimelines(a, b millrace.Timeline) int {
	return cmp.Or(cmp.Compare(a.Entity, b.Entity), cmp.Compare(a.Type, b.Type))
}
