package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/search"
)

// Func is a scalar function of models. The interpreter calls body; generated code calls the
// function that Go names, which gives the same results.
type Func struct {
	Go     string // the function that generated code calls; "": it calls none
	Args   []Kind
	Result Kind
	body   any // the Go function
}

// Funcs are the functions of models by their name in expressions. Functions
// that are operations of a plan (lookup, contains of a list, size) are not
// among them.
var Funcs = map[string]Func{
	"age":        numeric("compute.Age", compute.Age),
	"decay":      numeric("compute.Decay", compute.Decay),
	"exp":        numeric("compute.Exp", compute.Exp),
	"log1p":      numeric("compute.Log1p", compute.Log1p),
	"pow":        numeric("compute.Pow", compute.Pow),
	"sqrt":       numeric("compute.Sqrt", compute.Sqrt),
	"abs":        numeric("compute.Abs", compute.Abs),
	"min":        numeric("compute.Min", compute.Min),
	"max":        numeric("compute.Max", compute.Max),
	"clamp":      numeric("compute.Clamp", compute.Clamp),
	"coalesce":   numeric("compute.Coalesce", compute.Coalesce),
	"sigmoid":    numeric("compute.Sigmoid", compute.Sigmoid),
	"bucketize":  {"compute.Bucketize", []Kind{Number, Numbers}, Number, compute.Bucketize},
	"dot":        {"compute.Dot", []Kind{Numbers, Numbers}, Number, compute.Dot},
	"cosine":     {"compute.Cosine", []Kind{Numbers, Numbers}, Number, compute.Cosine},
	"l2":         {"", []Kind{Numbers, Numbers}, Number, compute.L2},                  // generated code never calls it: it is a [Similarity]
	"contains":   {"strings.Contains", []Kind{String, String}, Bool, search.Contains}, // generated code cannot call search.Contains, which is internal
	"startsWith": {"strings.HasPrefix", []Kind{String, String}, Bool, strings.HasPrefix},
	"endsWith":   {"strings.HasSuffix", []Kind{String, String}, Bool, strings.HasSuffix},
}

// numeric returns the Func of a Go function of one to three numbers that returns a number.
func numeric(name string, body any) Func {
	f := Func{Go: name, Result: Number, body: body}
	switch body.(type) {
	case func(float64) float64:
		f.Args = []Kind{Number}
	case func(a, b float64) float64:
		f.Args = []Kind{Number, Number}
	case func(a, b, c float64) float64:
		f.Args = []Kind{Number, Number, Number}
	default:
		panic("plan: " + name + " has another signature")
	}
	return f
}

// check returns an error if there are too few or too many arguments, or if one is of another
// kind. args are indices in p.Values.
func (f *Func) check(p *Plan, args []int) error {
	if len(args) != len(f.Args) {
		return fmt.Errorf("takes %d arguments, not %d", len(f.Args), len(args))
	}
	for i, a := range args {
		if got := p.Values[a].Kind; got != f.Args[i] {
			return fmt.Errorf("argument %d is a %s, not a %s", i+1, f.Args[i], got)
		}
	}
	return nil
}

// folds reports whether the function takes more than two arguments, as f(f(a, b), c).
func (f *Func) folds() bool { return f.Go == "compute.Min" || f.Go == "compute.Max" }
