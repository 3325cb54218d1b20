package expr

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/column"
)

func layout(t testing.TB, fields ...column.Field) *column.Layout {
	t.Helper()
	l, err := column.NewLayout(fields)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testEnv(t testing.TB, mode Mode) Env {
	e := Env{
		Mode: mode,
		Record: []*column.Layout{layout(t,
			column.Field{Name: "id", Kind: column.String},
			column.Field{Name: "actor", Kind: column.String},
			column.Field{Name: "created_at", Kind: column.Time},
			column.Field{Name: "language", Kind: column.String},
			column.Field{Name: "likes", Kind: column.Int},
			column.Field{Name: "mixed", Kind: column.Int},
			column.Field{Name: "torn", Kind: column.Int},
			column.Field{Name: "score", Kind: column.Double, Nullable: true},
			column.Field{Name: "sensitive", Kind: column.Bool},
			column.Field{Name: "tags", Kind: column.Strings},
			column.Field{Name: "features", Kind: column.Doubles},
			column.Field{Name: "place.country", Kind: column.String},
			column.Field{Name: "$body", Kind: column.String},
		), layout(t,
			column.Field{Name: "mixed", Kind: column.Double},
			column.Field{Name: "torn", Kind: column.String},
			column.Field{Name: "reach", Kind: column.Int},
		)},
		Entity: []*column.Layout{layout(t, column.Field{Name: "followers", Kind: column.Int})},
		Object: []*column.Layout{layout(t, column.Field{Name: "views", Kind: column.Int})},
	}
	if mode == Model {
		e.Viewer = map[string]Type{"age": Double, "language": String, "embedding": Doubles, "langs": Strings, "pro": Bool}
		e.Tables = map[string]Type{"affinity": String, "rates": Double}
	}
	return e
}

// TestParse prints the tree of each expression of testdata, or its faults. An
// input of several lines is one expression each, unless the command says
// "whole".
func TestParse(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			env := testEnv(t, Filter)
			if d.Cmd == "model" {
				env.Mode = Model
				env = testEnv(t, Model)
			}
			sources := strings.Split(d.Input, "\n")
			if d.HasArg("whole") {
				sources = []string{d.Input}
			}
			var b strings.Builder
			for _, src := range sources {
				n, err := Parse(src, env)
				var e *Error
				switch {
				case err == nil:
					fmt.Fprintf(&b, "%s: %s\n", n.Type, n)
				case errors.As(err, &e):
					fmt.Fprintln(&b, e)
				default:
					t.Fatalf("%s: untyped error %v", src, err)
				}
			}
			return b.String()
		})
	})
}

// TestHostile holds the parser to its bounds, whatever it is given.
func TestHostile(t *testing.T) {
	pad := func(s string) string { return strings.Repeat(s, MaxSourceBytes/len(s)) }
	for name, src := range map[string]string{
		"long":       strings.Repeat("x", MaxSourceBytes+1),
		"open":       pad("("),
		"closed":     strings.Repeat("(", 8000) + "record.likes" + strings.Repeat(")", 180),
		"lists":      pad("["),
		"not":        pad("!") + "",
		"minus":      strings.Repeat("-", 16000) + "record.likse > 0",
		"terms":      strings.Repeat("record.likes > 1 && ", 700) + "true",
		"sum":        strings.Repeat("1+", 5000) + "1 > 0",
		"ternary":    strings.Repeat("true ? true : ", 1000) + "true",
		"select":     "record" + strings.Repeat(".x", 5000),
		"unknown":    strings.Repeat("recrod.x && ", 1000) + "true",
		"elements":   "record.likes in [" + strings.Repeat("1,", 8000) + "1]",
		"garbage":    pad("#"),
		"quotes":     pad("'"),
		"words":      pad("a b "),
		"nul":        "record.likes\x00 > 1",
		"homoglyph":  "record.l\u0456kes > 1",
		"wide":       "record.\uff4cikes > 1",
		"utf8":       "record.likes\xff > 1",
		"pattern":    `record.language.matches("(a{1000}){1000}")`,
		"backtrack":  `record.language.matches("` + strings.Repeat("(a*)*", 60) + `")`,
		"patterns":   strings.Repeat(`record.language.matches("a{200}") || `, 20) + "false",
		"unfolded":   strings.Repeat(`record.language.matches("`+strings.Repeat("(a{9}){99}", 20)+`") || `, 60) + "false",
		"macro":      "record.tags.all(a, record.tags.all(b, record.tags.all(c, true)))",
		"empty":      "",
		"whitespace": pad(" "),
		"comment":    "// " + strings.Repeat("x", 1000),
		"index":      "record.tags[0] == 'a'",
	} {
		t.Run(name, func(t *testing.T) {
			env := testEnv(t, Filter)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			n, err := Parse(src, env)
			runtime.ReadMemStats(&after)
			var e *Error
			if !errors.As(err, &e) || len(e.Problems) == 0 || len(e.Problems) > maxProblems {
				t.Fatalf("want an *Error with 1 to %d problems, got %.200v and tree %.100v", maxProblems, err, n)
			}
			if len(e.Error()) > 64<<10 {
				t.Errorf("the error has %d bytes", len(e.Error()))
			}
			t.Logf("%d KiB", (after.TotalAlloc-before.TotalAlloc)>>10)
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("allocated %d MiB", took>>20)
			}
			for _, p := range e.Problems {
				if p.Line < 1 || p.Col < 1 {
					t.Errorf("no position: %v", p)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"record.likes > 1 && record.language in ['en', 'de']", "has(record.score) ? record.score < 2.5 : viewer.x",
		"as_of - record.created_at < duration('24h')", "log1p(record.likes) * decay(record.created_at, 3600)",
		"lookup({'en': 1}, record.language, 0)", "record.language.matches('^a.*')", "-9223372036854775808 < record.likes",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, src string, model bool) {
		mode := Filter
		if model {
			mode = Model
		}
		n, err := Parse(src, testEnv(t, mode))
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("untyped error: %v", err)
		}
		if err == nil {
			check(t, n, mode)
		} else if e.Error() == "" {
			t.Fatal("an error without words")
		}
	})
}

// check holds a tree to what its readers rely on.
func check(t *testing.T, n *Node, mode Mode) {
	if n == nil || n.Op == 0 || n.Type == 0 || n.Line < 1 || n.Col < 1 {
		t.Fatalf("malformed node %+v", n)
	}
	if mode == Model && (n.Type == Int || n.Type == Dyn || n.Type == Duration || n.Op == List) {
		t.Fatalf("%s has type %s in a model", n, n.Type)
	}
	for _, a := range n.Args {
		check(t, a, mode)
	}
}
