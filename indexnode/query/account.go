package query

import (
	"context"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
)

// This file explains an answer. It goes through the candidates once more with code of its
// own, so that the scan pays nothing for it. It stops when the context ends.

// Account is what became of a record in one timeline in which it is a candidate.
type Account struct {
	millrace.Rank                  // the score is 0 unless the filter keeps the record
	Object        millrace.Object  // what the record is about: the object that it names, or else its own id
	Dropped       filter.Dropped   // what the filter does with the record
	Operands      []filter.Operand // what the clause that dropped the record reads; nil if none did
	Served        bool             // an earlier page has served the record
	// CappedBy is nil unless the cap drops the record. Then it has the candidates of the
	// record's entity that remain instead, best first, Spec.Cap of them.
	CappedBy []millrace.Rank
}

// accountant goes through the candidates of a query.
type accountant struct {
	ctx   context.Context // an error of it ends the work
	q     *Query
	bound []accounted // one for each pair of layouts met so far
	sel   []int32     // the rows of the batch
}

// accounted is the question's filter and model bound to one pair of layouts: of records,
// and of features of the entity.
type accounted struct {
	rows, entity *column.Layout  // entity is nil if the entity has no features
	clauses      *filter.Clauses // nil without a filter
	scorer       *relevance.Scorer
	columns
}

// widened is rows of a segment that were unpacked, with all columns, into memory of their
// own.
type widened struct {
	*segment
	slab, features *column.Slab // features is the entity's one row; nil if it has none
}

// widen unpacks rows [lo, hi) of a segment.
func (s *segment) widen(lo, hi int) *widened {
	w := &widened{segment: s, slab: column.New(s.rows.Layout(), hi-lo, 0)}
	w.slab.Gather(s.rows, lo, hi, nil)
	if !s.features.None() {
		w.features = column.New(s.features.Layout(), 1, 0)
		w.features.Gather(s.features, 0, 1, nil)
	}
	return w
}

// bind returns the filter and model bound to the layouts of a segment.
func (a *accountant) bind(s *segment) (*accounted, error) {
	rows, entity := s.rows.Layout(), (*column.Layout)(nil)
	if !s.features.None() {
		entity = s.features.Layout()
	}
	for i := range a.bound {
		if b := &a.bound[i]; b.rows == rows && b.entity == entity {
			return b, nil
		}
	}
	spec := &a.q.spec
	b := accounted{rows: rows, entity: entity, columns: columnsOf(rows)}
	var err error
	if spec.Filter != nil {
		if b.clauses, err = spec.Filter.BindClauses(rows, entity, spec.Viewer, spec.AsOf); err != nil {
			return nil, err
		}
	}
	if b.scorer, err = spec.Model.Bind(rows, entity, spec.Viewer, spec.AsOf); err != nil {
		return nil, err
	}
	a.bound = append(a.bound, b)
	return &a.bound[len(a.bound)-1], nil
}

// each calls do with the candidates of every segment that want accepts, a batch at a time.
// A nil want accepts all. dropped says of each row of sel what the filter does with it.
func (a *accountant) each(want func(*segment) bool, do func(s *widened, b *accounted, sel []int32, dropped []filter.Dropped)) error {
	for i := range a.q.places {
		s := a.q.segment(int32(i))
		if want != nil && !want(&s) {
			continue
		}
		b, err := a.bind(&s)
		if err != nil {
			return err
		}
		w := s.widen(0, s.rows.Len())
		if err := a.q.objectsOf(b.scorer, &b.columns, w); err != nil {
			return err
		}
		for lo := s.lo; lo < s.hi; lo += batchRows {
			if err := a.ctx.Err(); err != nil {
				return err
			}
			a.sel = a.sel[:0]
			for row := lo; row < min(s.hi, lo+batchRows); row++ {
				a.sel = append(a.sel, row)
			}
			if b.clauses == nil {
				do(w, b, a.sel, make([]filter.Dropped, len(a.sel)))
			} else {
				do(w, b, a.sel, b.clauses.Judge(w.slab, a.sel, w.features))
			}
		}
	}
	return nil
}

// score scores rows sel of a segment. It sets q.scoring meanwhile, so that a panic counts
// as the model's.
func (a *accountant) score(s *widened, b *accounted, sel []int32, out []float64) {
	a.q.scoring = true
	b.scorer.Score(s.slab, sel, s.features, out)
	a.q.scoring = false
}

// scored calls do with the rank of every candidate that the filter keeps, of the segments
// that want accepts; nil: of all.
func (a *accountant) scored(want func(*segment) bool, do func(s *widened, r millrace.Rank)) error {
	var kept []int32
	return a.each(want, func(s *widened, b *accounted, sel []int32, dropped []filter.Dropped) {
		kept = kept[:0]
		for i, row := range sel {
			if dropped[i].Outcome == filter.Kept {
				kept = append(kept, row)
			}
		}
		scores := make([]float64, len(kept))
		a.score(s, b, kept, scores)
		for i, row := range kept {
			r := b.rank(s, row)
			r.Score = scores[i]
			do(s, r)
		}
	})
}

// rank returns a row's rank without its score.
func (c *columns) rank(s *widened, row int32) millrace.Rank {
	return millrace.Rank{
		Time: millrace.Time(s.slab.Word(c.time, int(row))), ID: millrace.RecordID(s.slab.StringAt(c.id, int(row))), Timeline: s.timeline,
	}
}

// objectOf returns the object of a row: the one that it names, or else its own id.
func (c *columns) objectOf(s *widened, row int32) millrace.Object {
	if c.object >= 0 {
		if named := s.slab.StringAt(c.object, int(row)); named != "" {
			return millrace.Object(named)
		}
	}
	return millrace.Object(s.slab.StringAt(c.id, int(row)))
}

// Account returns what became of the record with an id: an Account for each timeline that
// has the record in the window. The result is valid until [Query.Release], and only as long
// as the timelines are. With an error it may be incomplete.
func (q *Query) Account(ctx context.Context, id millrace.RecordID) ([]Account, error) {
	a := &accountant{ctx: ctx, q: q}
	var all []Account
	err := a.each(nil, func(s *widened, b *accounted, sel []int32, dropped []filter.Dropped) {
		for i, row := range sel {
			if r := b.rank(s, row); r.ID == id {
				found := Account{Rank: r, Object: b.objectOf(s, row), Dropped: dropped[i]}
				if found.Dropped.Outcome != filter.Kept {
					found.Operands = q.spec.Filter.Operands(found.Dropped.Clause, s.slab, int(row), s.features, q.spec.Viewer, q.spec.AsOf)
				} else {
					var score [1]float64
					a.score(s, b, []int32{row}, score[:])
					found.Score = score[0]
				}
				_, found.Served = q.spec.Exclude[millrace.ServedHash(q.spec.ServedKey, q.spec.DistinctObjects, found.Object, s.timeline, id)]
				all = append(all, found)
			}
		}
	})
	for i := range all {
		if err == nil && all[i].Dropped.Outcome == filter.Kept {
			all[i].CappedBy, err = a.cappedBy(all[i].Rank)
		}
	}
	return all, err
}

// cappedBy returns the candidates of r's entity that remain under the cap, best first, if r
// is not one of them; else nil.
func (a *accountant) cappedBy(r millrace.Rank) ([]millrace.Rank, error) {
	most := a.q.spec.Cap
	if most == 0 {
		return nil, nil
	}
	var better []millrace.Rank
	err := a.scored(func(s *segment) bool { return s.timeline.Entity == r.Entity }, func(_ *widened, other millrace.Rank) {
		if other.Compare(r) < 0 {
			better = append(better, other)
		}
	})
	if err != nil || len(better) < most {
		return nil, err
	}
	slices.SortFunc(better, millrace.Rank.Compare)
	return better[:most], nil
}

// Above returns, for each rank, how many candidates the filter keeps that rank above it.
func (q *Query) Above(ctx context.Context, ranks []millrace.Rank) ([]int64, error) {
	counts := make([]int64, len(ranks))
	a := &accountant{ctx: ctx, q: q}
	err := a.scored(nil, func(_ *widened, r millrace.Rank) {
		for i := range ranks {
			if r.Compare(ranks[i]) < 0 {
				counts[i]++
			}
		}
	})
	return counts, err
}
