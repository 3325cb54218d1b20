package store

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
)

type featuresKey struct {
	entity  millrace.Entity
	subject string
}

// oracle is a partition as plainly as can be said: of every id the newest
// version, of equal ones a tombstone, else the first; and what retention drops
// is dropped at once.
type oracle struct {
	retention map[millrace.ContentType]Retention
	timelines map[millrace.Timeline]*oracleTimeline
	features  map[featuresKey]Features
	clock     millrace.Time
	digest    Digest
	counts    map[millrace.ContentType]*tally.Counts // without Timelines, Bytes and Expired: nothing expires of Records
}

type oracleTimeline struct {
	recs  []millrace.Record // kept, newest first, tombstones included
	floor *blob.Floor
}

func newOracle(r map[millrace.ContentType]Retention) *oracle {
	return &oracle{retention: r, timelines: map[millrace.Timeline]*oracleTimeline{}, features: map[featuresKey]Features{}, counts: map[millrace.ContentType]*tally.Counts{}}
}

func comparePositions(a, b millrace.Record) int {
	if c := cmp.Compare(b.Time, a.Time); c != 0 {
		return c
	}
	return cmp.Compare(a.ID, b.ID)
}

func (o *oracle) put(name millrace.Timeline, r millrace.Record) {
	if r.Object == "" {
		r.Object = millrace.Object(r.ID)
	}
	t := o.timelines[name]
	if t == nil {
		t = new(oracleTimeline)
		o.timelines[name] = t
	}
	keep := o.retention[name.Type]
	horizon := o.horizon(name.Type)
	for n := len(t.recs); n > 0 && t.recs[n-1].Time < horizon; n-- {
		t.recs = t.recs[:n-1]
	}
	i := slices.IndexFunc(t.recs, func(x millrace.Record) bool { return x.ID == r.ID })
	if i < 0 {
		at, _ := slices.BinarySearchFunc(t.recs, r, comparePositions)
		if r.Time < horizon || t.floor.Under(r.Time, r.ID) || keep.MaxCount > 0 && at >= keep.MaxCount {
			return
		}
		t.recs = slices.Insert(t.recs, at, r)
		if keep.MaxCount > 0 && len(t.recs) > keep.MaxCount {
			t.recs = t.recs[:keep.MaxCount]
		}
		o.digest.Content += recordByDefinition(name, &r)
		o.count(name.Type, nil, &r)
		return
	}
	old := t.recs[i]
	if old.Version > r.Version || old.Version == r.Version && (old.Deleted || !r.Deleted) {
		return
	}
	o.digest.Content += recordByDefinition(name, &r) - recordByDefinition(name, &old)
	o.count(name.Type, &old, &r)
	if old.Time != r.Time && keep.MaxCount > 0 && len(t.recs) == keep.MaxCount {
		last := t.recs[len(t.recs)-1]
		t.floor = &blob.Floor{Time: last.Time, ID: last.ID}
	}
	t.recs = slices.Delete(t.recs, i, i+1)
	if old.Time == r.Time || r.Time >= horizon && !t.floor.Under(r.Time, r.ID) {
		at, _ := slices.BinarySearchFunc(t.recs, r, comparePositions)
		t.recs = slices.Insert(t.recs, at, r)
	}
}

// count counts that a record takes the place of another, or of none.
func (o *oracle) count(t millrace.ContentType, old, r *millrace.Record) {
	c := o.counts[t]
	if c == nil {
		c = &tally.Counts{}
		o.counts[t] = c
	}
	if old != nil && old.Deleted {
		c.Deleted--
	} else if old != nil {
		c.Records--
	}
	if r.Deleted {
		c.Deleted++
		if old != nil && !old.Deleted {
			c.Hidden++
		}
		return
	}
	c.Records++
	c.Taken++
	c.Newest = max(c.Newest, r.Time)
}

func (o *oracle) horizon(t millrace.ContentType) millrace.Time {
	if age := o.retention[t].MaxAge; age > 0 {
		return o.clock - millrace.Time(age.Milliseconds())
	}
	return math.MinInt64
}

func (o *oracle) putFeatures(e millrace.Entity, f Features) {
	k := featuresKey{e, f.Subject}
	old, ok := o.features[k]
	if ok && old.Version >= f.Version {
		return
	}
	if ok {
		o.digest.Features -= featuresByDefinition(e, &old)
	}
	o.digest.Features += featuresByDefinition(e, &f)
	o.features[k] = f
}

func (o *oracle) read(name millrace.Timeline, from, to millrace.Time) []millrace.Record {
	var out []millrace.Record
	t := o.timelines[name]
	if t == nil {
		return nil
	}
	from = max(from, o.horizon(name.Type))
	for _, r := range t.recs {
		if !r.Deleted && r.Time >= from && r.Time < to {
			out = append(out, r)
		}
	}
	return out
}

// find returns the record of an id that retention keeps, tombstone or not.
func (o *oracle) find(name millrace.Timeline, id millrace.RecordID) (millrace.Record, bool) {
	t := o.timelines[name]
	if t == nil {
		return millrace.Record{}, false
	}
	i := slices.IndexFunc(t.recs, func(r millrace.Record) bool { return r.ID == id && r.Time >= o.horizon(name.Type) })
	if i < 0 {
		return millrace.Record{}, false
	}
	return t.recs[i], true
}

func (o *oracle) readFeatures(e millrace.Entity) []Features {
	var out []Features
	for k, f := range o.features {
		if k.entity == e {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b Features) int { return strings.Compare(a.Subject, b.Subject) })
	return out
}

func equalRecords(a, b []millrace.Record) bool {
	return slices.EqualFunc(a, b, func(a, b millrace.Record) bool {
		return a.ID == b.ID && a.Time == b.Time && a.Version == b.Version && a.Object == b.Object &&
			a.Deleted == b.Deleted && a.Schema == b.Schema && string(a.Body) == string(b.Body)
	})
}

func equalFeatures(a, b []Features) bool {
	return slices.EqualFunc(a, b, func(a, b Features) bool {
		return a.Subject == b.Subject && a.Version == b.Version && a.Time == b.Time && a.Schema == b.Schema && string(a.Body) == string(b.Body)
	})
}
