package codegen

import (
	"go/token"
	"strconv"
	"strings"
)

// names hands out identifiers, each once.
type names map[string]bool

// reserved are the identifiers that generated functions use themselves.
var reserved = []string{
	"k", "r", "i", "row", "rows", "sel", "out", "folded", "entity", "w", "n", "x", "compute", "math", "strings", "slices",
	"own0", "own1", "own2", "own3", "rest0", "rest1", "rest2", "rest3", "init", "float64", "int64", "uint64", "int", "int32", "len", "string", "bool", "true", "false", "nil",
}

func newNames() names {
	n := names{}
	for _, r := range reserved {
		n[r] = true
	}
	return n
}

// take returns an identifier that is still free, want or want with a number, and takes it.
func (n names) take(want string) string {
	name := want
	for i := 2; n[name] || token.IsKeyword(name); i++ {
		name = want + strconv.Itoa(i)
	}
	n[name] = true
	return name
}

// camel turns the_name or the.name into theName, or TheName if exported. It returns "x" if
// there is no letter or digit.
func camel(s string, exported bool) string {
	var b strings.Builder
	up := exported
	for _, r := range s {
		switch {
		case r >= '0' && r <= '9' && b.Len() == 0:
			b.WriteByte('x')
			b.WriteRune(r)
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			c := string(r)
			switch {
			case up:
				c = strings.ToUpper(c)
			case b.Len() == 0:
				c = strings.ToLower(c)
			}
			b.WriteString(c)
			up = false
		default:
			up = b.Len() > 0 || exported
		}
	}
	if b.Len() == 0 {
		return "x"
	}
	return b.String()
}
