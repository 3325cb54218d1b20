package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// site is a place where a fault can be put, and how.
type site struct {
	File string // path
	Line int
	Kind string // the kind of fault, for people
	Text string // the line as it is in the file

	from, to int // the bytes of the file that are replaced
	// fault returns the code that replaces them. on is an expression that is true while the
	// fault is switched on, and id is the number of the fault.
	fault func(on, id string) string
}

// String returns a line that describes the site.
func (s *site) String() string { return fmt.Sprintf("%s:%d: %s: %s", s.File, s.Line, s.Kind, s.Text) }

// sitesOf returns the sites of a file, of all kinds of faults. Generated files have none.
func sitesOf(name string, src []byte) ([]*site, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(f) {
		return nil, nil
	}
	w := walker{file: files.File(f.Pos()), src: src, name: name}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			ast.Inspect(fn.Body, w.visit)
		}
	}
	return w.sites, nil
}

// walker collects the sites of a file.
type walker struct {
	file  *token.File
	src   []byte
	name  string
	sites []*site
}

// text returns the source of n.
func (w *walker) text(n ast.Node) string {
	return string(w.src[w.file.Offset(n.Pos()):w.file.Offset(n.End())])
}

func (w *walker) add(kind string, n ast.Node, fault func(on, id string) string) {
	line := w.file.Line(n.Pos())
	start := w.file.Offset(w.file.LineStart(line))
	text, _, _ := bytes.Cut(w.src[start:], []byte("\n"))
	w.sites = append(w.sites, &site{
		File: w.name, Line: line, Kind: kind, Text: strings.TrimSpace(string(text)),
		from: w.file.Offset(n.Pos()), to: w.file.Offset(n.End()), fault: fault,
	})
}

func (w *walker) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		w.condition(n.Cond)
	case *ast.BinaryExpr:
		w.binary(n)
	case *ast.CallExpr:
		w.call(n)
	case *ast.ReturnStmt:
		w.returned(n)
	case *ast.BlockStmt:
		w.statements(n.List)
	case *ast.CaseClause:
		w.statements(n.Body)
	case *ast.CommClause:
		w.statements(n.Body)
	case *ast.GenDecl:
		return n.Tok != token.CONST // a constant cannot depend on a switch
	}
	return true
}

func (w *walker) condition(cond ast.Expr) {
	text := w.text(cond)
	if b, ok := cond.(*ast.BinaryExpr); ok && b.Op == token.NEQ && isNil(b.Y) && strings.HasSuffix(strings.ToLower(w.text(b.X)), "err") {
		w.add("error ignored", cond, func(on, _ string) string { return fmt.Sprintf("!%s && (%s)", on, text) })
		return
	}
	w.add("condition negated", cond, func(on, _ string) string { return fmt.Sprintf("%s != (%s)", on, text) })
}

func (w *walker) binary(n *ast.BinaryExpr) {
	whole, x, y := w.text(n), w.text(n.X), w.text(n.Y)
	switch n.Op {
	case token.LAND:
		w.add("second half forgotten", n, func(on, _ string) string { return fmt.Sprintf("(%s && (%s || (%s)))", x, on, y) })
	case token.LOR:
		w.add("second half forgotten", n, func(on, _ string) string { return fmt.Sprintf("(%s || !%s && (%s))", x, on, y) })
	case token.LSS, token.GTR:
		if pure(n) {
			w.add("bound", n, func(on, _ string) string { return fmt.Sprintf("(%s || %s && (%s) == (%s))", whole, on, x, y) })
		}
	case token.LEQ, token.GEQ:
		if pure(n) {
			w.add("bound", n, func(on, _ string) string { return fmt.Sprintf("(%s && !(%s && (%s) == (%s)))", whole, on, x, y) })
		}
	case token.ADD, token.SUB:
		if y == "1" && pure(n.X) {
			w.add("off by one", n, func(_, id string) string { return fmt.Sprintf("mutantPick(%s, %s, %s)", id, whole, x) })
		}
	}
}

// call adds a fault that swaps two neighbouring arguments: the first two that are both
// variables. If their types differ, it does not build, and is left out later.
func (w *walker) call(n *ast.CallExpr) {
	if fn, ok := n.Fun.(*ast.Ident); ok && (fn.Name == "append" || fn.Name == "make" || fn.Name == "copy" || fn.Name == "delete") {
		return
	}
	for i := range max(0, len(n.Args)-1) {
		a, b := n.Args[i], n.Args[i+1]
		if !isName(a) || !isName(b) || n.Ellipsis.IsValid() && i+2 == len(n.Args) || isNil(a) || isNil(b) {
			continue
		}
		x, y := w.text(a), w.text(b)
		if x == y || x == "ctx" || y == "ctx" {
			continue
		}
		both := pair{a, b}
		w.add("arguments swapped", both, func(_, id string) string {
			return fmt.Sprintf("mutantPick(%s, %s, %s), mutantPick(%s, %s, %s)", id, x, y, id, y, x)
		})
		return
	}
}

// pair is two neighbouring nodes as one.
type pair struct{ a, b ast.Node }

func (p pair) Pos() token.Pos { return p.a.Pos() }
func (p pair) End() token.Pos { return p.b.End() }

func (w *walker) returned(n *ast.ReturnStmt) {
	for _, r := range n.Results {
		switch text := w.text(r); {
		case text == "true" || text == "false":
			w.add("another truth returned", r, func(on, _ string) string { return fmt.Sprintf("%s != %s", on, text) })
		case strings.HasSuffix(strings.ToLower(text), "err") && isName(r):
			w.add("error not returned", r, func(_, id string) string { return fmt.Sprintf("mutantPick(%s, %s, nil)", id, text) })
		}
	}
}

func (w *walker) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt, *ast.IncDecStmt:
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || slices.ContainsFunc(s.Lhs, func(e ast.Expr) bool { return w.text(e) == "_" }) {
				continue
			}
		case *ast.BranchStmt:
			if s.Label != nil || s.Tok == token.FALLTHROUGH || s.Tok == token.GOTO {
				continue
			}
		default:
			continue
		}
		text := w.text(s)
		w.add("statement left out", s, func(on, _ string) string { return fmt.Sprintf("if !%s {\n%s\n}", on, text) })
	}
}

func isNil(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "nil"
}

// isName reports whether an expression is a variable, or a field of one.
func isName(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		return isName(e.X)
	}
	return false
}

// pure reports whether an expression may be evaluated twice without harm.
func pure(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident, *ast.BasicLit:
		return true
	case *ast.SelectorExpr:
		return pure(e.X)
	case *ast.ParenExpr:
		return pure(e.X)
	case *ast.IndexExpr:
		return pure(e.X) && pure(e.Index)
	case *ast.UnaryExpr:
		return e.Op != token.ARROW && pure(e.X)
	case *ast.BinaryExpr:
		return pure(e.X) && pure(e.Y)
	case *ast.CallExpr:
		fn, ok := e.Fun.(*ast.Ident)
		return ok && (fn.Name == "len" || fn.Name == "cap") && len(e.Args) == 1 && pure(e.Args[0])
	}
	return false
}

// faulty returns the source of a file with faults at sites, whose numbers are in at. The sites
// must not overlap.
func faulty(src []byte, at map[*site]int) []byte {
	var all []*site
	for s := range at {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *site) int { return a.from - b.from })
	var out bytes.Buffer
	done := 0
	for _, s := range all {
		id := fmt.Sprint(at[s])
		out.Write(src[done:s.from])
		out.WriteString(s.fault("mutantOn("+id+")", id))
		done = s.to
	}
	out.Write(src[done:])
	return out.Bytes()
}

// switches returns the source of a file with the functions that switch faults on, for the
// package pkg: mutantOn(id) reports whether a fault is on, and mutantPick(id, right, wrong)
// returns one of two values.
func switches(pkg string) []byte {
	return []byte("package " + pkg + `

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

var (
	mutantNow, _  = strconv.Atoi(os.Getenv("MILLRACE_MUTANT"))
	mutantReached = os.Getenv("MILLRACE_MUTANTS_REACHED")
	mutantSeen    sync.Map
)

func mutantOn(id int) bool {
	if mutantReached != "" {
		if _, seen := mutantSeen.LoadOrStore(id, true); !seen {
			f, err := os.OpenFile(mutantReached, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
			if err != nil {
				panic(err)
			}
			fmt.Fprintln(f, id)
			f.Close()
		}
	}
	return id == mutantNow
}

func mutantPick[T any](id int, right, wrong T) T {
	if mutantOn(id) {
		return wrong
	}
	return right
}
`)
}
