package store

import (
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// oracle is the store as plainly as can be said: per timeline and id the
// newest version, of equal ones a tombstone, else the first.
type oracle struct {
	timelines map[millrace.Timeline]map[millrace.RecordID]millrace.Record
	features  map[featuresKey]Features
	applied   Offsets
}

func newOracle() *oracle {
	return &oracle{map[millrace.Timeline]map[millrace.RecordID]millrace.Record{}, map[featuresKey]Features{}, Offsets{-1, -1}}
}

func (o *oracle) put(t millrace.Timeline, r millrace.Record) {
	recs := o.timelines[t]
	if recs == nil {
		recs = map[millrace.RecordID]millrace.Record{}
		o.timelines[t] = recs
	}
	if r.Object == "" {
		r.Object = millrace.Object(r.ID)
	}
	if old, ok := recs[r.ID]; !ok || old.Version < r.Version || old.Version == r.Version && r.Deleted && !old.Deleted {
		recs[r.ID] = r
	}
}

func (o *oracle) putFeatures(e millrace.Entity, f Features) {
	k := featuresKey{e, f.Subject}
	if old, ok := o.features[k]; !ok || old.Version < f.Version {
		o.features[k] = f
	}
}

func (o *oracle) read(t millrace.Timeline, from, to millrace.Time) []millrace.Record {
	var out []millrace.Record
	for _, r := range o.timelines[t] {
		if !r.Deleted && r.Time >= from && r.Time < to {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b millrace.Record) int {
		switch {
		case newer(a.Time, a.ID, b.Time, b.ID):
			return -1
		case newer(b.Time, b.ID, a.Time, a.ID):
			return 1
		}
		return 0
	})
	return out
}

func (o *oracle) digest() (d Digest) {
	for t, recs := range o.timelines {
		for _, r := range recs {
			d.Content += recordDigest(timelineDigest(t), &r)
		}
	}
	for k, f := range o.features {
		d.Features += featuresDigest(k.entity, &f)
	}
	return d
}

func equalRecords(a, b []millrace.Record) bool {
	return slices.EqualFunc(a, b, func(a, b millrace.Record) bool {
		return a.ID == b.ID && a.Time == b.Time && a.Version == b.Version && a.Object == b.Object &&
			a.Deleted == b.Deleted && a.Schema == b.Schema && string(a.Body) == string(b.Body)
	})
}

func brief(recs []millrace.Record) string {
	var b strings.Builder
	for _, r := range recs {
		b.WriteString(string(r.ID) + "@" + r.Time.String()[14:23] + " ")
	}
	return b.String()
}
