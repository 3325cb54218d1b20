package expr

import (
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// The limit of a pattern, and what calls cost beside 1 for each node; see MaxCost.
const (
	maxPatternBytes = 256 // of the regular expression in a call of matches
	patternCost     = 100 // of a call of matches, and 1 more for each instruction of the compiled pattern
	stringCost      = 10  // of a call whose first argument is a string or a list
)

// function is one overload of a function.
type function struct {
	takes  []Type // the types of the arguments; in a member call the type of x comes first
	gives  Type   // the type of the result
	more   bool   // the last argument may repeat
	member bool   // it is called as x.name(y)
	// lower makes the node of a call whose arguments need more checks than those of
	// their types. Nil: the types are enough, and finish makes the node.
	lower func(c *checker, e ast.Expr, args []*Node) *Node
}

// filterFunctions and modelFunctions are the overloads of the functions of each mode, by
// name; DESIGN.md and docs/filters.md describe them.
var filterFunctions, modelFunctions map[string][]function

func init() {
	strs := []Type{String, String}
	one, two := []Type{Double}, []Type{Double, Double}
	three := []Type{Double, Double, Double}
	filterFunctions = map[string][]function{
		"timestamp":  {{takes: []Type{String}, gives: Time, lower: (*checker).timestamp}},
		"duration":   {{takes: []Type{String}, gives: Duration, lower: (*checker).duration}},
		"double":     {{takes: []Type{Int}, gives: Double}, {takes: one, gives: Double}},
		"int":        {{takes: []Type{Int}, gives: Int}, {takes: one, gives: Int}},
		"size":       {{takes: []Type{String}, gives: Int}, {takes: []Type{Strings}, gives: Int}, {takes: []Type{Doubles}, gives: Int}},
		"startsWith": {{takes: strs, gives: Bool, member: true}},
		"endsWith":   {{takes: strs, gives: Bool, member: true}},
		"contains":   {{takes: strs, gives: Bool, member: true}},
		"matches":    {{takes: strs, gives: Bool, member: true, lower: (*checker).pattern}},
	}
	modelFunctions = map[string][]function{
		"timestamp":  filterFunctions["timestamp"],
		"duration":   filterFunctions["duration"],
		"startsWith": filterFunctions["startsWith"],
		"endsWith":   filterFunctions["endsWith"],
		"contains":   {{takes: strs, gives: Bool, member: true}, {takes: []Type{Strings, String}, gives: Bool, lower: (*checker).contains}, {takes: []Type{Doubles, Double}, gives: Bool, lower: (*checker).contains}},
		"size":       {{takes: []Type{String}, gives: Double}, {takes: []Type{Strings}, gives: Double}, {takes: []Type{Doubles}, gives: Double}},
		"log1p":      {{takes: one, gives: Double}},
		"exp":        {{takes: one, gives: Double}},
		"sqrt":       {{takes: one, gives: Double}},
		"abs":        {{takes: one, gives: Double}},
		"pow":        {{takes: two, gives: Double}},
		"min":        {{takes: two, gives: Double, more: true}},
		"max":        {{takes: two, gives: Double, more: true}},
		"clamp":      {{takes: three, gives: Double, lower: (*checker).clamp}},
		"bucketize":  {{takes: []Type{Double, Doubles}, gives: Double, lower: (*checker).bucketize}},
		"cross":      {{takes: strs, gives: String}, {takes: []Type{String, Double}, gives: String}, {takes: []Type{Double, String}, gives: String}, {takes: two, gives: String}},
		"age":        {{takes: []Type{Time}, gives: Double}},
		"decay":      {{takes: two, gives: Double, lower: (*checker).decay}, {takes: []Type{Time, Double}, gives: Double, lower: (*checker).decay}},
		"dot":        {{takes: []Type{Doubles, Doubles}, gives: Double}},
		"cosine":     {{takes: []Type{Doubles, Doubles}, gives: Double}},
		"l2":         {{takes: []Type{Doubles, Doubles}, gives: Double}},
		"coalesce":   {{takes: two, gives: Double}, {takes: strs, gives: String}},
	}
}

// functions returns the functions of the expression's mode.
func (c *checker) functions() map[string][]function {
	if c.env.Mode == Model {
		return modelFunctions
	}
	return filterFunctions
}

// call makes the node of a call of a function: it takes the first overload that fits.
func (c *checker) call(e ast.Expr) *Node {
	call := e.AsCall()
	name := call.FunctionName()
	if name == "lookup" && c.env.Mode == Model && !call.IsMemberFunction() {
		return c.lookup(e)
	}
	if name == operators.Index && c.env.Mode == Model {
		return c.item(e)
	}
	overloads, ok := c.functions()[name]
	if !ok {
		return c.unknownFunction(e, name)
	}
	list := call.Args()
	if call.IsMemberFunction() {
		list = append([]ast.Expr{call.Target()}, list...)
	}
	args, ok := c.args(list)
	if !ok {
		return nil
	}
	overloads = slices.DeleteFunc(slices.Clone(overloads), func(f function) bool { return f.member != call.IsMemberFunction() })
	if len(overloads) == 0 {
		return c.fault(e, "this is not how "+name+" is called", usage(name, c.functions()[name]))
	}
	for _, f := range overloads {
		if !f.fits(args) {
			continue
		}
		if f.lower != nil {
			return f.lower(c, e, args)
		}
		return c.finish(e, f.gives, args...)
	}
	if len(args) == 0 {
		return c.fault(e, name+" takes arguments, and here are none", usage(name, overloads))
	}
	return c.fault(e, name+" does not take "+describe(args), usage(name, overloads))
}

// finish makes the node of a call to the function that e names, and counts its cost.
func (c *checker) finish(e ast.Expr, gives Type, args ...*Node) *Node {
	n := c.node(e, Call, gives, args...)
	if n == nil {
		return nil
	}
	n.Name = e.AsCall().FunctionName()
	if len(args) > 0 && (args[0].Type == String || isList(args[0].Type)) {
		c.cost += stringCost
	}
	return n
}

// fits reports whether a call with these arguments fits the overload.
func (f function) fits(args []*Node) bool {
	if len(args) < len(f.takes) || len(args) > len(f.takes) && !f.more {
		return false
	}
	for i, a := range args {
		takes := f.takes[min(i, len(f.takes)-1)]
		if a.Op == List || a.Type != takes && a.Type != Dyn {
			return false
		}
		if a.Type == Dyn && (f.gives == Time || f.gives == Duration || takes == Int || takes == Double) {
			return false // timestamp and duration need a literal, and a viewer value needs no conversion: its numbers are doubles
		}
	}
	return true
}

// describe returns the types of arguments in words, for a fault.
func describe(args []*Node) string {
	parts := make([]string, len(args))
	for i, a := range args {
		parts[i] = article(a.Type)
	}
	return strings.Join(parts, " and ")
}

// usage returns a hint that shows how a function is called.
func usage(name string, overloads []function) string {
	var forms []string
	for _, f := range overloads {
		takes := make([]string, len(f.takes))
		for i, t := range f.takes {
			takes[i] = t.String()
		}
		if f.member {
			forms = append(forms, takes[0]+"."+name+"("+strings.Join(takes[1:], ", ")+")")
			continue
		}
		forms = append(forms, name+"("+strings.Join(takes, ", ")+")")
	}
	return "write " + strings.Join(forms, " or ")
}

// elsewhere has hints for functions that CEL or people expect and that are missing here.
var elsewhere = map[string]string{
	"all": "in searches a list", "exists": "in searches a list", "exists_one": "in searches a list",
	"filter": "in searches a list", "map": "", operators.Index: "in searches a list",
	"log": "use log1p(x)", "ln": "use log1p(x)", "now": "use as_of", "string": "", "type": "", "dyn": "",
	"bucketise": "write bucketize", "onehot": "the spec's one-hot encoding is a property of the feature",
}

func (c *checker) unknownFunction(e ast.Expr, name string) *Node {
	_, model := modelFunctions[name]
	_, filter := filterFunctions[name]
	switch {
	case name == operators.Index:
		return c.fault(e, "indexing is not supported in a filter", elsewhere[name])
	case name == "lookup" && c.env.Mode == Model:
		return c.fault(e, "this is not how lookup is called", "write lookup(TABLE, key, default)")
	case model || name == "lookup":
		return c.fault(e, name+" is a function of models, not of filters", "")
	case filter:
		return c.fault(e, name+" is a function of filters, not of models", "")
	}
	hint, known := elsewhere[name]
	if !known {
		hint = didYouMean(name, slices.Collect(maps.Keys(c.functions())), "the functions are "+strings.Join(slices.Sorted(maps.Keys(c.functions())), ", "))
	}
	return c.fault(e, "no function "+name, hint)
}

// text returns the string of a literal argument. If the argument is no string literal, it
// returns false, and notes a problem that names the function, what.
func (c *checker) text(a *Node, what string) (string, bool) {
	if s, ok := a.Value.(string); ok && a.Op == Const {
		return s, true
	}
	c.problem(a.Line, a.Col, what+" takes a literal", "")
	return "", false
}

func (c *checker) timestamp(e ast.Expr, args []*Node) *Node {
	s, ok := c.text(args[0], "timestamp")
	if !ok {
		return nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.Year() < 1 || t.UTC().Year() > 9999 || !strictTime.MatchString(s) {
		return c.problem(args[0].Line, args[0].Col, fmt.Sprintf("%q is not an RFC 3339 instant", s), `write it like "2026-01-31T00:00:00Z"`)
	}
	if t.Nanosecond()%1e6 != 0 {
		return c.problem(args[0].Line, args[0].Col, "instants have milliseconds, and this has a finer part", "")
	}
	return c.constant(e, Time, t.UnixMilli())
}

// strictTime is the form of RFC 3339 that CEL accepts; package time accepts more.
var strictTime = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// duration makes the constant of a duration: a Duration in a filter, and a number of
// seconds in a model.
func (c *checker) duration(e ast.Expr, args []*Node) *Node {
	s, ok := c.text(args[0], "duration")
	if !ok {
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return c.problem(args[0].Line, args[0].Col, fmt.Sprintf("%q is not a duration", s), `write it like "90s", "1h30m" or "24h"`)
	}
	if d%time.Millisecond != 0 {
		return c.problem(args[0].Line, args[0].Col, "durations have milliseconds, and this has a finer part", "")
	}
	if c.env.Mode == Model {
		return c.constant(e, Double, float64(d.Milliseconds())/1000)
	}
	return c.constant(e, Duration, d.Milliseconds())
}

// pattern checks the regular expression of matches. Matching takes time linear in the
// text; the expression's cost bounds the factor.
func (c *checker) pattern(e ast.Expr, args []*Node) *Node {
	p := args[1]
	s, ok := c.text(p, "matches")
	if !ok {
		return nil
	}
	if len(s) > maxPatternBytes {
		return c.problem(p.Line, p.Col, fmt.Sprintf("the pattern has %d bytes; at most %d are allowed", len(s), maxPatternBytes), "")
	}
	if c.cost > MaxCost { // the expression will be refused, so the pattern need not be compiled
		return c.finish(e, Bool, args...)
	}
	re, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return c.problem(p.Line, p.Col, "the pattern does not compile: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "), "it is RE2 syntax")
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return c.problem(p.Line, p.Col, "the pattern does not compile: "+err.Error(), "")
	}
	c.cost += patternCost + len(prog.Inst)
	return c.finish(e, Bool, args...)
}
