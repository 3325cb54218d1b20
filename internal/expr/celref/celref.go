// Package celref evaluates filters one record at a time with cel-go's own interpreter.
// Tests compare the kernels of internal/filter (loops over columns) with it; nothing
// serves from it.
package celref

import (
	"fmt"
	"math"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/parser"

	"github.com/millrace/millrace"
)

// Outcome is what a filter says of a record. Only True keeps the record.
type Outcome uint8

// The outcomes, as internal/filter defines them. Null: a field that the filter needs is
// null. Error: the evaluation fails. NaN: a term that is false compared a NaN.
const (
	True Outcome = iota + 1
	False
	Null
	Error
	NaN
)

func (o Outcome) String() string {
	return [...]string{"none", "true", "false", "null", "error", "nan"}[o]
}

// Input is what a filter is evaluated against. Record and Entity map column
// names, dotted ones included, to nil, bool, int64, float64, string,
// [millrace.Time], []float64 or []string; a name without an entry is null, and
// a nil Entity has none.
type Input struct {
	Record, Entity map[string]any
	Viewer         *millrace.Viewer // nil has no values
	AsOf           millrace.Time
}

// Program is a compiled filter. It is safe for concurrent use.
type Program struct {
	names []string // the record, entity and viewer fields it reads
	whole cel.Program
	terms []term // of the outermost &&
}

// term is one term of the outermost &&. A comparison other than != also has its two
// operands, for falseOrNaN: a != that is false has compared no NaN.
type term struct {
	cel.Program
	operands []cel.Program
}

// Compile compiles a filter. It takes filters that are CEL but that internal/expr refuses.
func Compile(src string) (*Program, error) {
	env, err := cel.NewEnv(cel.ClearMacros(), cel.Macros(has), cel.CrossTypeNumericComparisons(true), cel.Variable("as_of", cel.TimestampType))
	if err != nil {
		return nil, err
	}
	tree, issues := env.Parse(src)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	p := &Program{}
	native := tree.NativeRep()
	p.collect(native.Expr())
	vars := make([]cel.EnvOption, len(p.names))
	for i, n := range p.names {
		vars[i] = cel.Variable(n, cel.DynType)
	}
	if env, err = env.Extend(vars...); err != nil {
		return nil, err
	}
	c := compiler{env: env, info: native.SourceInfo()}
	p.whole = c.program(native.Expr())
	for _, t := range conjuncts(nil, native.Expr()) {
		p.terms = append(p.terms, c.term(t))
	}
	return p, c.err
}

// has replaces CEL's macro: it asks whether the field is null, since a record has every
// field.
var has = cel.GlobalMacro("has", 1, func(f cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
	if args[0].Kind() != ast.SelectKind {
		return nil, common.NewError(args[0].ID(), "has() takes a field", nil)
	}
	return f.NewCall(operators.NotEquals, args[0], f.NewLiteral(types.NullValue)), nil
})

// collect gathers the fields that e reads. Each becomes a variable whose name is the
// whole path, such as record.likes.
func (p *Program) collect(e ast.Expr) {
	seen := map[string]bool{}
	for _, n := range p.names {
		seen[n] = true
	}
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.SelectKind {
			return
		}
		if path := fieldPath(e); path != "" && !seen[path] {
			seen[path] = true
			p.names = append(p.names, path)
		}
	}))
	p.names = longest(p.names)
}

// longest drops the paths that are the beginning of another path.
func longest(paths []string) (kept []string) {
	for i, a := range paths {
		inner := false
		for j, b := range paths {
			inner = inner || i != j && strings.HasPrefix(b, a+".")
		}
		if !inner {
			kept = append(kept, a)
		}
	}
	return kept
}

func fieldPath(e ast.Expr) string {
	switch e.Kind() {
	case ast.IdentKind:
		switch e.AsIdent() {
		case "record", "entity", "viewer":
			return e.AsIdent()
		}
	case ast.SelectKind:
		if root := fieldPath(e.AsSelect().Operand()); root != "" {
			return root + "." + e.AsSelect().FieldName()
		}
	}
	return ""
}

// conjuncts appends the terms of the outermost && of e; e itself if it is none.
func conjuncts(dst []ast.Expr, e ast.Expr) []ast.Expr {
	if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.LogicalAnd {
		for _, a := range e.AsCall().Args() {
			dst = conjuncts(dst, a)
		}
		return dst
	}
	return append(dst, e)
}

// compiler compiles parts of one tree and keeps the first error.
type compiler struct {
	env  *cel.Env
	info *ast.SourceInfo
	err  error
}

func (c *compiler) program(e ast.Expr) cel.Program {
	src, err := parser.Unparse(e, c.info)
	if err != nil {
		c.fail(err)
		return nil
	}
	tree, issues := c.env.Parse(src) // unchecked: any field may be null at run time
	if issues.Err() != nil {
		c.fail(issues.Err())
		return nil
	}
	p, err := c.env.Program(tree)
	c.fail(err)
	return p
}

func (c *compiler) fail(err error) {
	if c.err == nil && err != nil {
		c.err = fmt.Errorf("celref: %w", err)
	}
}

func (c *compiler) term(e ast.Expr) term {
	t := term{Program: c.program(e)}
	if e.Kind() != ast.CallKind {
		return t
	}
	switch e.AsCall().FunctionName() {
	case operators.Equals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		for _, a := range e.AsCall().Args() {
			t.operands = append(t.operands, c.program(a))
		}
	}
	return t
}

// Eval evaluates the filter for one record.
func (p *Program) Eval(in *Input) Outcome {
	vars := map[string]any{"as_of": in.AsOf.Std()}
	for _, n := range p.names {
		vars[n] = in.value(n)
	}
	o, _ := eval(p.whole, vars)
	if o != False {
		return o
	}
	for _, t := range p.terms {
		if o, _ := eval(t, vars); o == False {
			return falseOrNaN(t, vars)
		}
	}
	return False
}

// falseOrNaN returns NaN if a term that is false compared a NaN, and else False.
func falseOrNaN(t term, vars map[string]any) Outcome {
	for _, operand := range t.operands {
		if _, v := eval(operand, vars); isNaN(v) {
			return NaN
		}
	}
	return False
}

func isNaN(v any) bool {
	x, ok := v.(float64)
	return ok && math.IsNaN(x)
}

// eval runs a program, and returns the outcome and the value; nil if it fails. A value that
// is not a bool, as that of an operand, has the outcome Null.
func eval(p cel.Program, vars map[string]any) (Outcome, any) {
	v, _, err := p.Eval(vars)
	switch {
	case err != nil && strings.Contains(err.Error(), "no such overload"):
		return Null, nil
	case err != nil:
		return Error, nil
	case v == types.True:
		return True, true
	case v == types.False:
		return False, false
	}
	return Null, v.Value()
}

// value returns the value of record.x, entity.x or viewer.x; nil if there is none.
func (in *Input) value(name string) any {
	root, field, _ := strings.Cut(name, ".")
	var v any
	switch root {
	case "record":
		v = in.Record[field]
	case "entity":
		v = in.Entity[field]
	default:
		if in.Viewer == nil {
			return nil
		}
		x, ok := in.Viewer.Value(field)
		if !ok {
			return nil
		}
		v = x
	}
	if t, ok := v.(millrace.Time); ok {
		return t.Std()
	}
	return v
}

// Baseline compiles a filter as a service without kernels would run it: checked once,
// optimised, and evaluated over each record as a map. Benchmarks compare with it. A
// record on which the evaluation fails, as on a missing field, is not kept. keep is not
// safe for concurrent use.
func Baseline(src string) (keep func(record map[string]any, asOf millrace.Time) bool, err error) {
	env, err := cel.NewEnv(cel.CrossTypeNumericComparisons(true), cel.Variable("record", cel.MapType(cel.StringType, cel.DynType)), cel.Variable("as_of", cel.TimestampType))
	if err != nil {
		return nil, err
	}
	tree, issues := env.Compile(src)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	p, err := env.Program(tree, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	vars := map[string]any{}
	return func(record map[string]any, asOf millrace.Time) bool {
		vars["record"], vars["as_of"] = record, asOf.Std()
		v, _, err := p.Eval(vars)
		return err == nil && v == types.True
	}, nil
}
