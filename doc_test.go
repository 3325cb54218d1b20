package millrace

import (
	"go/ast"
	"go/parser"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Every package says what it is for.
func TestPackagesHaveComments(t *testing.T) {
	said := map[string]bool{}
	for _, f := range files(t, parser.ParseComments|parser.PackageClauseOnly) {
		if f.test || ast.IsGenerated(f.syntax) {
			continue
		}
		starts := []string{"Package " + f.syntax.Name.Name + " "}
		if f.syntax.Name.Name == "main" {
			name := path.Base(f.dir)
			starts = []string{"Command " + name + " ", strings.ToUpper(name[:1]) + name[1:] + " "}
		}
		doc := f.syntax.Doc.Text()
		if doc != "" && !slices.ContainsFunc(starts, func(s string) bool { return strings.HasPrefix(doc, s) }) {
			t.Errorf("%s: the package comment does not start with %q", f.name, starts)
		}
		said[f.dir] = said[f.dir] || doc != ""
	}
	for dir, ok := range said {
		if !ok {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

// Every exported name says what it is.
func TestExportedNamesHaveComments(t *testing.T) {
	for _, f := range files(t, parser.ParseComments) {
		if f.test || ast.IsGenerated(f.syntax) || f.syntax.Name.Name == "main" {
			continue
		}
		for _, d := range f.syntax.Decls {
			for _, name := range undocumented(d) {
				t.Errorf("%s: %s has no doc comment", f.name, name)
			}
		}
	}
}

// selfEvident are methods that say no more than the interface they satisfy.
var selfEvident = []string{"String", "Error", "Unwrap", "Is", "Len", "Less", "Swap"}

// undocumented returns the exported names of a declaration without a comment.
func undocumented(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		receiver, exported := receiverOf(d)
		if d.Name.IsExported() && exported && d.Doc == nil && !(receiver != "" && slices.Contains(selfEvident, d.Name.Name)) {
			names = append(names, receiver+d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

// receiverOf returns "Type." of a method, and whether the type is exported; a
// function counts as exported here.
func receiverOf(d *ast.FuncDecl) (string, bool) {
	if d.Recv == nil {
		return "", true
	}
	expr := d.Recv.List[0].Type
	if p, ok := expr.(*ast.StarExpr); ok {
		expr = p.X
	}
	switch x := expr.(type) {
	case *ast.IndexExpr:
		expr = x.X
	case *ast.IndexListExpr:
		expr = x.X
	}
	name := expr.(*ast.Ident)
	return name.Name + ".", name.IsExported()
}

// machinePath is a path of somebody's own machine.
var machinePath = regexp.MustCompile(`(^|[^\w.$})/-])/(work|root|home|Users|mnt|opt)/`)

// inImage is a path within an image of others.
const inImage = "/opt/kafka/bin/"

// The project reads the same on every machine.
func TestTextNamesNoMachine(t *testing.T) {
	walk(t, func(name string) {
		if name == "doc_test.go" || name == ".git" {
			return
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(b) {
			return
		}
		for i, line := range strings.Split(string(b), "\n") {
			line = strings.ReplaceAll(line, inImage, "")
			if m := machinePath.FindString(line); m != "" {
				t.Errorf("%s:%d names a path of one machine: %q", name, i+1, m)
			}
		}
	})
}
