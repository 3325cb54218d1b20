package plan

// Split divides the plan of a linear or logistic score in two. fold computes the own part,
// which depends on the record alone; it runs once, when a record enters a cache. rest
// reads that number, the folded part, in its place. The score of rest has the same bits as
// that of the whole plan. Split returns nil, nil for a joint plan, and if the own part has
// no terms or none that depends on the record.
func (p *Plan) Split() (fold, rest *Plan) {
	if len(p.More) > 0 || p.Own < 0 || p.Values[p.Own].Deps&Record == 0 {
		return nil, nil
	}
	fold = p.copy()
	fold.Scorer, fold.Score = Linear, fold.Own
	fold.Terms = fold.termsOf(func(t Term) bool { return t.Part == OwnPart })
	rest = p.copy()
	rest.Values[rest.Own] = Value{Op: Folded, Kind: Number, Deps: Record}
	rest.Terms = rest.termsOf(func(t Term) bool { return t.Part != OwnPart })
	return fold.prune().ready(), rest.prune().ready()
}

// copy returns a copy of p with Values of its own.
func (p *Plan) copy() *Plan {
	c := *p
	c.Values = make([]Value, len(p.Values))
	for i, v := range p.Values {
		v.Args = append([]int(nil), v.Args...)
		c.Values[i] = v
	}
	return &c
}

// termsOf returns the terms for which keep returns true.
func (p *Plan) termsOf(keep func(Term) bool) []Term {
	var out []Term
	for _, t := range p.Terms {
		if keep(t) {
			out = append(out, t)
		}
	}
	return out
}
