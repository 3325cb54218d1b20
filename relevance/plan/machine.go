package plan

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/trees"
)

// Batch is how many rows an operation works on before the next one runs: few
// enough that the values in use stay in the first-level cache.
const Batch = trees.Batch

// Machine executes a plan: it is the interpreter. It runs one operation over a batch
// of rows, then the next. [Machine.Bind] computes what depends on the request alone,
// [Machine.BindEntity] what also depends on the entity. A machine is for one goroutine at
// a time.
//
// A value that does not depend on the record is a vector whose elements are all equal, so
// that every operation has one form. It has only one element if no record operation reads
// it as a vector.
type Machine struct {
	p     *Plan
	steps *steps
	in    Inputs

	nums   [][]float64 // by value
	bools  [][]bool
	strs   [][]string
	lists  [][][]float64
	strss  [][][]string
	views  [][]column.List  // by value, lists that are read in the slab, without a copy
	probes []*column.Probe  // by similarity, the list that others are compared with
	sets   []*compute.Table // by the value of an In, the list that it looks into, as a set
	arenas [3]compute.Arena // memory for texts and lists: of the request, the entity and the rows
	arena  *compute.Arena   // the one of these that is in use now
	one    [1]int32         // row 0: the selection of rows for the request and the entity

	own    []float64   // see SetFolded
	matrix [][]float64 // by output, the features of trees; see scoreTrees
	scores trees.Scores
	out    [1][]float64 // see Score

	standing []column.List // for Machine.Similar: the lists of a batch, then those that they are compared with
	numbers  []float64     // memory of the method probe

	objects *column.Slab // see SetObjects

	rows *column.Slab // the rows of the present stage (see begin); nil: none
	sel  []int32      // the batch: the indices of its rows in rows
	run  bool         // sel is consecutive rows
}

// Inputs are what a machine is bound to: the parameters of models, and a request.
type Inputs struct {
	Weights []float64        // as Plan.Weights says
	Tables  []*compute.Table // as Plan.Tables
	Viewer  []any            // as Plan.Viewer: float64, bool, string or *string, []float64, []string; nil is missing
	AsOf    float64          // the instant, in milliseconds
	Forest  *trees.Forest    // of the scorer trees
	More    []*trees.Forest  // of the further models of a joint plan; nil where they are not trees
}

// steps is a plan's values by when they are computed.
type steps struct {
	request, entity, record []int   // the values that are computed in each stage, in order
	live                    []int   // those of record that are not skipped
	fused                   [][]int // by value, for an Add: the products that it adds to value fusedTo, one after the other; nil: it is not fused
	fusedTo                 []int   // by value, for an Add with fused: see there; for a ToNumber: the comparison that it computes, 0 for none
	skipped                 []bool  // by value: it is part of a fused operation, or a string that nothing reads as a whole
	funcs                   []any   // by value, the Go function of a Call
	wide                    []bool  // by value: record operations read it as a vector
	register                []int   // by value, the register of a number that changes with the record; else -1
	registers               int     // how many registers, vectors of Batch numbers, there are
	batch                   int     // rows that an operation works on: at most Batch
}

// crossBytes is about how many bytes the texts of all [Cross] operations may take in a batch.
// If a plan has many such operations, a batch has fewer rows.
const crossBytes = 1 << 20

// Machine returns a machine for the plan. If keep is true, every value has a place of its
// own and no operations are fused, so that [Machine.Value] may read every value.
func (p *Plan) Machine(keep bool) *Machine {
	s := p.steps
	if keep || s == nil {
		s = p.schedule(keep)
	}
	m := p.machine(s)
	pool := make([]float64, m.steps.registers*Batch)
	for _, i := range m.steps.record {
		if r := m.steps.register[i]; r >= 0 {
			m.nums[i] = pool[r*Batch : (r+1)*Batch]
		} else {
			m.place(i, Batch)
		}
	}
	for i := range p.Values {
		if p.Values[i].Deps&Record != 0 {
			continue
		}
		if m.steps.wide[i] {
			m.place(i, Batch)
		} else {
			m.place(i, 1)
		}
	}
	return m
}

// ready prepares what all machines of the plan share, and returns the plan.
func (p *Plan) ready() *Plan {
	p.findSimilarities()
	p.slots = p.findSlots()
	p.steps = p.schedule(false)
	p.request = &steps{fused: make([][]int, len(p.Values)), fusedTo: make([]int, len(p.Values)), funcs: p.steps.funcs, request: p.steps.request}
	return p
}

// machine returns a machine without memory for values.
func (p *Plan) machine(s *steps) *Machine {
	n := len(p.Values)
	return &Machine{
		p: p, steps: s,
		nums: make([][]float64, n), bools: make([][]bool, n), strs: make([][]string, n),
		lists: make([][][]float64, n), strss: make([][][]string, n), sets: make([]*compute.Table, n), views: make([][]column.List, n),
		probes: make([]*column.Probe, len(p.similar)),
	}
}

// place allocates n results of a value.
func (m *Machine) place(i, n int) {
	switch m.p.Values[i].Kind {
	case Number:
		m.nums[i] = make([]float64, n)
	case Bool:
		m.bools[i] = make([]bool, n)
	case String:
		m.strs[i] = make([]string, n)
	case Numbers:
		if m.p.stands(i) {
			m.views[i] = make([]column.List, n)
		}
		if !m.p.stands(i) || m.p.copied(i) {
			m.lists[i] = make([][]float64, n)
		}
	case Strings:
		m.strss[i] = make([][]string, n)
	}
}

// schedule divides the values into stages and, unless keep is true, fuses operations and
// gives numbers registers.
func (p *Plan) schedule(keep bool) *steps {
	n := len(p.Values)
	s := &steps{fused: make([][]int, n), fusedTo: make([]int, n), funcs: p.funcs(), skipped: make([]bool, n), wide: make([]bool, n), register: make([]int, n)}
	uses := p.Uses()
	for i := range p.Values {
		v := &p.Values[i]
		s.register[i] = -1
		s.skipped[i] = v.Op == Field && v.Kind == String && !keep
		switch {
		case v.Deps&Record != 0:
			s.record = append(s.record, i)
		case v.Deps&Entity != 0:
			s.entity = append(s.entity, i)
		default:
			s.request = append(s.request, i)
		}
	}
	if !keep {
		for _, i := range s.record {
			s.fuse(p, i, uses)
		}
	}
	for _, i := range s.record {
		s.widen(p, i)
	}
	for _, i := range s.record {
		if !s.skipped[i] {
			s.live = append(s.live, i)
		}
	}
	if !keep {
		s.allocate(p)
	}
	s.batch = Batch
	if n := p.crosses(s.live); n > 0 {
		s.batch = min(Batch, max(1, crossBytes/(n*compute.MaxCrossBytes)))
	}
	return s
}

// crosses counts the operations among values that write a cross.
func (p *Plan) crosses(values []int) (n int) {
	for _, i := range values {
		if p.Values[i].Op == Cross {
			n++
		}
	}
	return n
}

// maxFused is how many products one pass over a batch adds.
const maxFused = 4

// fuse makes one operation of value i and its arguments, if it can: of a + w*f, where w does
// not change with the record, and of several such additions in a row. It also makes one of a
// ToNumber and the comparison (> or >=) that it takes. The bits are those of the separate
// operations, in their order.
func (s *steps) fuse(p *Plan, i int, uses []int) {
	v := &p.Values[i]
	if v.Op == ToNumber {
		c := v.Args[0]
		if b := &p.Values[c]; (b.Op == Gt || b.Op == Ge) && p.Values[b.Args[0]].Kind == Number && b.Deps&Record != 0 && uses[c] == 1 {
			s.fusedTo[i], s.skipped[c] = c, true
		}
		return
	}
	if v.Op != Add {
		return
	}
	at := v.Args[1]
	m := &p.Values[at]
	if m.Op != Mul || m.Deps&Record == 0 || uses[at] != 1 || p.Values[m.Args[0]].Deps&Record != 0 {
		return
	}
	s.skipped[at] = true
	before := v.Args[0]
	s.fusedTo[i], s.fused[i] = before, []int{at}
	if n := len(s.fused[before]); n > 0 && n < maxFused && uses[before] == 1 {
		s.skipped[before] = true
		s.fusedTo[i], s.fused[i] = s.fusedTo[before], append(append([]int(nil), s.fused[before]...), at)
	}
}

// funcs returns the Go function of each Call.
func (p *Plan) funcs() []any {
	out := make([]any, len(p.Values))
	for i := range p.Values {
		if p.Values[i].Op == Call {
			out[i] = Funcs[p.Values[i].Name].body
		}
	}
	return out
}

// widen marks as wide those arguments of record operation i that it reads as vectors. It
// takes the mark skipped from the strings that i reads as a whole.
func (s *steps) widen(p *Plan, i int) {
	v := &p.Values[i]
	for k, a := range v.Args {
		arg := &p.Values[a]
		if p.direct(v) {
			continue
		}
		if v.Op == Mul && k == 0 || v.Op == In && k == 1 && arg.Deps&(Record|Entity) == 0 {
			continue
		}
		if p.Similar(i) {
			continue
		}
		s.skipped[a] = s.skipped[a] && arg.Op != Field
		s.wide[a] = true
	}
}

// direct reports whether an operation reads a record's string by its word in the column (the
// 64 bits that stand for it), without making a Go string. It can if what the string is compared
// with does not change with the record.
func (p *Plan) direct(v *Value) bool {
	if len(v.Args) == 0 {
		return false
	}
	a := &p.Values[v.Args[0]]
	if a.Op != Field || a.Kind != String {
		return false
	}
	switch v.Op {
	case Eq, Ne:
		return p.Values[v.Args[1]].Deps&Record == 0
	case In:
		return p.Values[v.Args[1]].Deps&(Record|Entity) == 0
	case Lookup, Present:
		return true
	}
	return false
}

// Direct reports whether value i reads a record's string by its word in the column.
func (p *Plan) Direct(i int) bool { return p.direct(&p.Values[i]) }

// Uses returns for each value how often it is used: as an argument, as a result, or as an
// Output's Own.
func (p *Plan) Uses() []int {
	n := make([]int, len(p.Values))
	for i := range p.Values {
		for _, a := range p.Values[i].Args {
			n[a]++
		}
	}
	for _, o := range p.Outputs() {
		for _, i := range o.results() {
			n[i]++
		}
		if o.Own >= 0 {
			n[o.Own]++
		}
	}
	return n
}

// results returns the values that a score is made of at the end: the score itself, or the
// features that trees read.
func (o *Output) results() (values []int) {
	if o.Score >= 0 {
		return []int{o.Score}
	}
	if o.Scorer == Trees {
		for _, t := range o.Terms {
			values = append(values, t.Value)
		}
	}
	return values
}

// allocate gives each number that changes with the record a register. It reuses a register
// after the last use of the number in it.
func (s *steps) allocate(p *Plan) {
	last := make([]int, len(p.Values))
	for _, i := range s.record {
		for _, a := range s.args(p, i) {
			last[a] = i
		}
	}
	for _, o := range p.Outputs() {
		for _, i := range o.results() {
			last[i] = len(p.Values)
		}
	}
	var free []int
	for _, i := range s.record {
		if s.skipped[i] {
			continue
		}
		freed := map[int]bool{}
		for _, a := range s.args(p, i) {
			if r := s.register[a]; r >= 0 && last[a] == i && !freed[r] {
				freed[r] = true
				free = append(free, r)
			}
		}
		if p.Values[i].Kind != Number {
			continue
		}
		if len(free) == 0 {
			free = append(free, s.registers)
			s.registers++
		}
		s.register[i] = free[len(free)-1]
		free = free[:len(free)-1]
	}
}

// args returns the values that an operation reads, with those of the operations that are
// fused into it.
func (s *steps) args(p *Plan, i int) []int {
	if p.Values[i].Op == ToNumber && s.fusedTo[i] > 0 {
		return p.Values[s.fusedTo[i]].Args
	}
	if s.fused[i] == nil {
		return p.Values[i].Args
	}
	args := []int{s.fusedTo[i]}
	for _, m := range s.fused[i] {
		args = append(args, p.Values[m].Args...)
	}
	return args
}

// Bind binds the machine to a request, and computes what depends on the request alone.
func (m *Machine) Bind(in Inputs) {
	m.in = in
	m.begin(0, nil, m.one[:])
	for _, i := range m.steps.request {
		m.exec(i, 1)
		m.spread(i)
	}
	for _, i := range m.steps.record {
		m.bindSet(i)
	}
	m.bindProbes()
}

// begin starts stage 0 (the request), 1 (the entity) or 2 (the rows). The texts and lists of
// the last run of this stage are no longer valid then.
func (m *Machine) begin(stage int, rows *column.Slab, sel []int32) {
	m.arena, m.rows, m.sel = &m.arenas[stage], rows, sel
	m.arena.Reset()
}

// LetGo frees the texts and lists of the requests so far, if they take much memory (more
// than [compute.MaxKept]). The machine must be bound again before it is used again.
func (m *Machine) LetGo() {
	for i, p := range m.probes {
		if p != nil && p.Bytes() > compute.MaxKept {
			m.probes[i], m.numbers = nil, nil
		}
	}
	if !slices.ContainsFunc(m.arenas[:], func(a compute.Arena) bool { return a.Large() }) {
		return
	}
	m.arenas = [len(m.arenas)]compute.Arena{}
	for i := range m.p.Values {
		clear(m.strs[i])
		clear(m.lists[i])
		clear(m.strss[i])
	}
}

// bindSet makes a set of the list that an In looks into, unless the list
// changes with the record or the entity.
func (m *Machine) bindSet(i int) {
	v := &m.p.Values[i]
	if v.Op != In {
		return
	}
	list := v.Args[1]
	if m.p.Values[list].Deps&(Record|Entity) != 0 {
		return
	}
	m.sets[i] = m.setOf(m.sets[i], list)
}

// setOf makes a set of a list that the request decides. It reuses the memory of
// t, a set that it made before; nil: there is none.
func (m *Machine) setOf(t *compute.Table, list int) *compute.Table {
	if t == nil {
		t = new(compute.Table)
	}
	if m.p.Values[list].Kind == Strings {
		t.SetStrings(m.strss[list][0])
	} else {
		t.SetNumbers(m.lists[list][0])
	}
	return t
}

// BindEntity computes what depends on the entity and not on the record. entity has one row;
// nil: the entity has no features.
func (m *Machine) BindEntity(entity *column.Slab) {
	if len(m.steps.entity) == 0 {
		return
	}
	m.begin(1, entity, m.one[:])
	for _, i := range m.steps.entity {
		m.exec(i, 1)
		m.spread(i)
	}
}

// spread fills a vector with its first element.
func (m *Machine) spread(i int) {
	switch m.p.Values[i].Kind {
	case Number:
		fill(m.nums[i])
	case Bool:
		fill(m.bools[i])
	case String:
		fill(m.strs[i])
	case Numbers:
		fill(m.lists[i])
	case Strings:
		fill(m.strss[i])
	}
}

func fill[T any](v []T) {
	for i := range v {
		v[i] = v[0]
	}
}

// Run computes the values that change with the record, for the rows of rows whose indices are
// sel. These must be at most Batch; [Machine.Score] takes any number of rows.
func (m *Machine) Run(rows *column.Slab, sel []int32) {
	m.begin(2, rows, sel)
	m.run = consecutive(sel)
	for _, i := range m.steps.live {
		m.exec(i, len(sel))
	}
}

// SetObjects gives the features of the objects of the rows that are scored next,
// row by row, for a plan that reads them; see [Plan.Objects].
func (m *Machine) SetObjects(objects *column.Slab) { m.objects = objects }

// SetFolded gives the folded part of each row (see [Plan.Split]), by the row's index, for a
// plan that reads it.
func (m *Machine) SetFolded(own []float64) { m.own = own }

// consecutive reports whether sel is consecutive rows, in ascending order.
func consecutive(sel []int32) bool {
	for k, r := range sel {
		if r != sel[0]+int32(k) {
			return false
		}
	}
	return true
}

// Score scores rows sel of rows, a batch at a time, by the plan's only model. It writes the
// score of row sel[i] to out[i].
func (m *Machine) Score(rows *column.Slab, sel []int32, out []float64) {
	m.out[0] = out
	m.ScoreAll(rows, sel, m.out[:])
}

// ScoreAll scores rows sel of rows by each of the plan's models; out has a slice for each.
func (m *Machine) ScoreAll(rows *column.Slab, sel []int32, out [][]float64) {
	for from := 0; from < len(sel); from += m.steps.batch {
		to := min(from+m.steps.batch, len(sel))
		m.Run(rows, sel[from:to])
		m.score(0, &m.p.Output, m.in.Forest, out[0][from:to])
		for i := range m.p.More {
			m.score(i+1, &m.p.More[i], m.in.More[i], out[i+1][from:to])
		}
	}
	for _, views := range m.views {
		clear(views) // so that the views do not keep the rows alive
	}
}

// score writes the scores that output i gives the last batch; f is its forest, or nil.
func (m *Machine) score(i int, o *Output, f *trees.Forest, out []float64) {
	if o.Scorer == Trees {
		m.scoreTrees(i, o, f, out)
		return
	}
	for k, x := range m.vector(o.Score, len(out)) {
		out[k] = compute.Score(x)
	}
}

// scoreTrees makes a matrix of the features of the last batch and scores it.
func (m *Machine) scoreTrees(i int, o *Output, f *trees.Forest, out []float64) {
	for len(m.matrix) <= i {
		m.matrix = append(m.matrix, nil)
	}
	if m.matrix[i] == nil {
		m.matrix[i] = f.Matrix()
	}
	matrix, stride := m.matrix[i], f.Columns()*trees.Block
	for c, t := range o.Terms {
		for r, x := range m.vector(t.Value, len(out)) {
			matrix[r/trees.Block*stride+c*trees.Block+r%trees.Block] = x
		}
	}
	f.Score(&m.scores, matrix, len(out), out)
}

// vector returns a number of the last batch as n elements. It makes a vector of a value that
// has only one element.
func (m *Machine) vector(value, n int) []float64 {
	v := m.nums[value]
	if len(v) >= n {
		return v[:n]
	}
	m.nums[value] = make([]float64, Batch)
	m.nums[value][0] = v[0]
	fill(m.nums[value])
	return m.nums[value][:n]
}

// Value returns the number, boolean or string of a value for the first row of the last
// batch. The machine must keep values; see [Plan.Machine].
func (m *Machine) Value(value int) any {
	switch m.p.Values[value].Kind {
	case Bool:
		return m.bools[value][0]
	case String:
		return m.strs[value][0]
	}
	return m.nums[value][0]
}
