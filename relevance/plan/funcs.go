package plan

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/expr/fn"
	"github.com/millrace/millrace/relevance/kernel"
)

// Func is a scalar function of models: the same Go function in the
// interpreter and, by its name, in generated code.
type Func struct {
	Go     string // how generated code calls it
	Args   []Kind
	Result Kind
	body   any // the Go function
}

// Funcs are the functions of models by their name in expressions. Functions
// that are operations of a plan (lookup, contains of a list, size) are not
// among them.
var Funcs = map[string]Func{
	"age":        numeric("fn.Age", fn.Age),
	"decay":      numeric("fn.Decay", fn.Decay),
	"exp":        numeric("fn.Exp", fn.Exp),
	"log1p":      numeric("kernel.Log1p", kernel.Log1p),
	"pow":        numeric("fn.Pow", fn.Pow),
	"sqrt":       numeric("fn.Sqrt", fn.Sqrt),
	"abs":        numeric("fn.Abs", fn.Abs),
	"min":        numeric("fn.Min", fn.Min),
	"max":        numeric("fn.Max", fn.Max),
	"clamp":      numeric("fn.Clamp", fn.Clamp),
	"coalesce":   numeric("fn.Coalesce", fn.Coalesce),
	"sigmoid":    numeric("kernel.Sigmoid", kernel.Sigmoid),
	"bucketize":  {"fn.Bucketize", []Kind{Number, Numbers}, Number, fn.Bucketize},
	"dot":        {"fn.Dot", []Kind{Numbers, Numbers}, Number, fn.Dot},
	"cosine":     {"fn.Cosine", []Kind{Numbers, Numbers}, Number, fn.Cosine},
	"contains":   {"strings.Contains", []Kind{String, String}, Bool, strings.Contains},
	"startsWith": {"strings.HasPrefix", []Kind{String, String}, Bool, strings.HasPrefix},
	"endsWith":   {"strings.HasSuffix", []Kind{String, String}, Bool, strings.HasSuffix},
}

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

// check reports arguments that do not fit.
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

// folds reports whether more than two arguments mean f(f(a, b), c).
func (f *Func) folds() bool { return f.Go == "fn.Min" || f.Go == "fn.Max" }
