package plan

// Sum adds up contributions as the plan of a linear score does: see [Part] and
// [Lanes]. terms calls add for each contribution, in the order of the spec. Sum is for
// scores that are not computed by a plan, such as those that explain an item.
func Sum(bias float64, terms func(add func(Part, float64))) float64 {
	var sums [3]laneSums
	sums[FixedPart].add(0, bias)
	terms(func(p Part, x float64) {
		lane := 0
		if p != FixedPart {
			lane = sums[p].terms % Lanes
		}
		sums[p].add(lane, x)
	})
	score := sums[FixedPart].total().x
	if own := sums[OwnPart].total(); own.any {
		score = own.x + score
	}
	if rest := sums[RestPart].total(); rest.any {
		score += rest.x
	}
	return score
}

// sum is a sum that may have no terms. That is not the same as a sum of 0: added to -0, 0
// would give 0, and no terms leave -0.
type sum struct {
	x   float64
	any bool
}

func (a sum) plus(b sum) sum {
	switch {
	case !a.any:
		return b
	case !b.any:
		return a
	}
	return sum{a.x + b.x, true}
}

// laneSums is a part of a score that is being added up.
type laneSums struct {
	lanes [Lanes]sum
	terms int
}

func (s *laneSums) add(lane int, x float64) {
	s.lanes[lane] = s.lanes[lane].plus(sum{x, true})
	s.terms++
}

// total adds up the lanes, as [Lanes] says.
func (s *laneSums) total() sum {
	return s.lanes[0].plus(s.lanes[1]).plus(s.lanes[2].plus(s.lanes[3]))
}
