package expr

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/parser"
)

// maxProblems is how many faults of one expression are reported at most.
const maxProblems = 20

// celParser is the hand-written parser of cel-go, a Pratt parser, and not the generated one
// that cel-go also has. It takes linear time, and refuses deep nesting before it recurses.
// It is safe for concurrent use.
var celParser = func() *parser.Parser {
	p, err := parser.NewParser(
		parser.EnablePrattParser(true),
		parser.EnableVariadicOperatorASTs(true), // a && b && c is one call
		parser.EnableIdentEscapeSyntax(false),
		parser.MaxRecursionDepth(MaxDepth),
		parser.ErrorReportingLimit(maxProblems),
		parser.Macros(parser.HasMacro),
	)
	if err != nil {
		panic(err) // constant options
	}
	return p
}()

// Parse parses an expression, checks it, and lowers it to a tree of nodes. The error is
// an *[Error] with every fault. Time and memory are bounded for every source.
func Parse(src string, env Env) (*Node, error) {
	if len(src) > MaxSourceBytes {
		return nil, refuse(src[:caretWidth], Problem{1, 1, fmt.Sprintf("the expression has %d bytes; at most %d are allowed", len(src), MaxSourceBytes), ""})
	}
	if !utf8.ValidString(src) {
		return nil, refuse(strings.ToValidUTF8(src, "\uFFFD"), Problem{1, 1, "the expression is not valid UTF-8", ""})
	}
	source := common.NewTextSource(src)
	tree, errs := celParser.Parse(source)
	if found := errs.GetErrors(); len(found) > 0 {
		return nil, syntaxError(src, env.Mode, found)
	}
	root, err := lower(src, tree, env, false)
	if err != nil && env.Mode == Filter && len(env.Mixed()) > 0 {
		if whole, not := lower(src, tree, env, true); not == nil {
			return whole, nil
		}
	}
	return root, err
}

// lower gives each part of a syntax tree its type, and makes nodes of it. If whole is set,
// it reads mixed fields, which are an integer in one schema and a double in another, as
// integers. So a filter keeps its meaning if a later schema makes a field a double.
func lower(src string, tree *ast.AST, env Env, whole bool) (*Node, error) {
	c := &checker{env: env, src: []rune(src), info: tree.SourceInfo(), whole: whole}
	root := c.expr(tree.Expr())
	if root != nil && env.Mode == Filter && root.Type != Bool && root.Type != Dyn {
		c.problem(root.Line, root.Col, fmt.Sprintf("a filter is a bool, and this is %s", article(root.Type)), "compare it with something")
	}
	if c.cost > MaxCost {
		c.problem(1, 1, fmt.Sprintf("the expression costs %d; at most %d is allowed", c.cost, MaxCost), "use fewer or shorter patterns")
	}
	if len(c.problems) == 0 {
		return root, nil
	}
	last := &c.problems[len(c.problems)-1]
	for _, doubt := range slices.Compact(c.doubted) {
		last.Suggestion = strings.TrimPrefix(last.Suggestion+"; "+doubt, "; ")
	}
	return nil, refuse(src, c.problems...)
}

// refuse returns problems as an Error, sorted and each once.
func refuse(src string, problems ...Problem) *Error {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return &Error{Source: src, Problems: slices.Compact(problems)}
}

// syntaxError returns the errors of the parser as an Error, some of them in plainer words.
func syntaxError(src string, mode Mode, found []*common.Error) *Error {
	lines := strings.Split(src, "\n")
	var problems []Problem
	for _, e := range found {
		p := Problem{Line: max(e.Location.Line(), 1), Col: max(e.Location.Column(), 0) + 1, Message: strings.TrimPrefix(e.Message, "Syntax error: ")}
		switch {
		case strings.HasPrefix(p.Message, "expression recursion limit"):
			p.Message = fmt.Sprintf("the expression nests deeper than %d levels", MaxDepth)
		case strings.Contains(p.Message, "<EOF>"):
			p.Message = "the expression ends too early"
		case p.Message == "unexpected token after expression":
			p.Message, p.Suggestion = "an operator is missing before this", "the operators are && || ! == != < <= > >= + - * / % in ?:"
			if mode == Model {
				p.Suggestion = strings.Replace(p.Suggestion, " %", "", 1)
			}
		case p.Message == "unexpected character" && p.Line <= len(lines):
			if r := []rune(lines[p.Line-1]); p.Col <= len(r) {
				p.Message = fmt.Sprintf("character %U does not belong in an expression", r[p.Col-1])
				p.Suggestion = "names are ASCII letters, digits and _; text stands in quotes"
			}
		case p.Message == "invalid argument to has() macro":
			p.Suggestion = "write has(record.FIELD)"
		}
		problems = append(problems, p)
	}
	return refuse(src, problems...)
}

// checker does the work of [lower]. For a part that is wrong it notes a problem and makes
// nil instead of a node; the parts that contain it note nothing more.
type checker struct {
	env      Env
	src      []rune
	info     *ast.SourceInfo
	problems []Problem
	nodes    int                     // how many nodes were made so far
	cost     int                     // what these nodes cost together; see MaxCost
	fields   [Viewer]map[string]Type // for each of Record, Entity and Object, its fields by name; built when first asked for
	mixed    [Viewer]map[string]bool // the fields that are an integer in some schema and a double in another
	torn     [Viewer]map[string]bool // the fields whose types in several schemas do not go together
	doubted  []string                // hints on torn fields that were read; told only if there is a fault
	whole    bool                    // mixed fields are read as integers
}

// problem notes a problem, up to maxProblems, and returns nil, the node of a wrong part.
func (c *checker) problem(line, col int, message, suggestion string) *Node {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{line, col, message, suggestion})
	}
	return nil
}

// at returns the line and the column, from 1, of an offset in characters.
func (c *checker) at(offset int) (line, col int) {
	loc := c.info.GetLocationByOffset(int32(offset))
	return loc.Line(), loc.Column() + 1
}

// offset returns the offset, in characters, of e's own token: the operator, the dot of a
// selection, the name of a call, the first character of anything else.
func (c *checker) offset(e ast.Expr) int {
	r, _ := c.info.GetOffsetRange(e.ID())
	at := int(r.Start)
	if e.Kind() != ast.CallKind || at >= len(c.src) || c.src[at] != '(' {
		return at
	}
	for at > 0 && isSpace(c.src[at-1]) {
		at--
	}
	return at - len(e.AsCall().FunctionName())
}

// fieldOffset returns the offset of the field's name in a selection, after the dot.
func (c *checker) fieldOffset(e ast.Expr) int {
	at := c.offset(e) + 1
	for at < len(c.src) && isSpace(c.src[at]) {
		at++
	}
	return at
}

func isSpace(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == '\r' || r == '\f' }

// fault notes a problem at the place of e, and returns nil.
func (c *checker) fault(e ast.Expr, message, suggestion string) *Node {
	line, col := c.at(c.offset(e))
	return c.problem(line, col, message, suggestion)
}

// node makes a node at the place of e, and counts it. It returns nil, with a problem
// noted, for the first node beyond MaxNodes.
func (c *checker) node(e ast.Expr, op Op, t Type, args ...*Node) *Node {
	line, col := c.at(c.offset(e))
	c.nodes++
	c.cost++
	if c.nodes == MaxNodes+1 {
		return c.problem(line, col, fmt.Sprintf("the expression has more than %d parts", MaxNodes), "shorten it here")
	}
	return &Node{Op: op, Type: t, Args: args, Line: line, Col: col}
}

// constant makes a Const of a type and a value; nil beyond MaxNodes.
func (c *checker) constant(e ast.Expr, t Type, v any) *Node {
	n := c.node(e, Const, t)
	if n != nil {
		n.Value = v
	}
	return n
}

// article returns the name of a type with its article, for a sentence.
func article(t Type) string {
	switch t {
	case Int:
		return "an int"
	case Null:
		return "null"
	case Dyn:
		return "a viewer value"
	}
	return "a " + t.String()
}
