package packs

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas/registry"
)

const (
	// censusTime is how long a census reads records at most: the push of a model waits
	// for it.
	censusTime = 200 * time.Millisecond
	// censusLife is how long a census is used for further model versions.
	censusLife = time.Minute
)

// census says which fields have a value in some record that the node holds. It looks at all
// records if they can be read within censusTime, else at those of random partitions.
type census struct {
	taken time.Time
	types map[millrace.ContentType]*counted
}

// counted is records of one content type.
type counted struct {
	records int
	has     map[string]bool // fields in which some record has a value
}

// takeCensus makes a census of the records in a store.
func takeCensus(ctx context.Context, of *store.Store, known *registry.Snapshot) *census {
	c := &census{taken: time.Now(), types: map[millrace.ContentType]*counted{}}
	ctx, cancel := context.WithTimeout(ctx, censusTime)
	defer cancel()
	all := slices.Collect(partition.All())
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all {
		for t, err := range of.Timelines(p) {
			if err != nil {
				break // read errors are reported elsewhere
			}
			if c.look(of, known, p, t); ctx.Err() != nil {
				return c
			}
		}
	}
	return c
}

// look adds the records of one timeline. Records that cannot be read or decoded are left out.
func (c *census) look(from *store.Store, known *registry.Snapshot, p millrace.Partition, t millrace.Timeline) {
	records, err := from.Read(nil, p, t, millrace.MinTime, millrace.MaxTime+1)
	if err != nil || len(records) == 0 {
		return
	}
	slabs, err := lookup.Slabs(known, records)
	if err != nil {
		return
	}
	of := c.types[t.Type]
	if of == nil {
		of = &counted{has: map[string]bool{}}
		c.types[t.Type] = of
	}
	of.records += len(records)
	for _, s := range slabs {
		for i, f := range s.Layout().Fields() {
			for row := 0; !of.has[f.Name] && row < s.Len(); row++ {
				of.has[f.Name] = hasValue(s, i, f.Kind, row)
			}
		}
	}
}

// hasValue reports whether a record has anything in a field. 0 and false are
// values; an empty text or list is none.
func hasValue(s *column.Slab, field int, kind column.Kind, row int) bool {
	if s.Null(field, row) {
		return false
	}
	switch kind {
	case column.String:
		return s.StringAt(field, row) != ""
	case column.Doubles:
		return len(s.Doubles(nil, s.Word(field, row))) > 0
	case column.Strings:
		return len(s.Strings(nil, s.Word(field, row))) > 0
	}
	return true
}

// lacks returns, for each content type, the fields that the model reads and that
// are empty in every record seen.
func (c *census) lacks(m *relevance.Model) (all []members.Lack) {
	names := recordFields(m)
	for _, t := range slices.Sorted(maps.Keys(c.types)) {
		of := c.types[t]
		l := members.Lack{Type: string(t), Records: of.records}
		for _, name := range names {
			if !of.has[name] {
				l.Fields = append(l.Fields, name)
			}
		}
		all = append(all, l)
	}
	return all
}

// recordFields returns the fields of records that a model's features name.
func recordFields(m *relevance.Model) []string {
	names := map[string]bool{}
	var walk func(*expr.Node)
	walk = func(n *expr.Node) {
		if n.Op == expr.Record {
			names[n.Name] = true
		}
		for _, a := range n.Args {
			walk(a)
		}
	}
	for _, f := range m.Spec().Features {
		walk(f.Tree)
	}
	return slices.Sorted(maps.Keys(names))
}
