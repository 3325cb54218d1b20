package random

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// baselineMain is the part of the baseline that all worlds share. The baseline is a Go
// program of its own, generated and built for each world, because a general interpreter
// would be slower than what somebody writes by hand for one workload. It needs the standard
// library alone, and shares no code with Millrace.
//
//go:embed baseline/main.go.txt
var baselineMain []byte

// report is what the baseline prints, as JSON. Its fields have the same names there.
type report struct {
	Answers [][]item // by question
	CPU     int64    // time of a question, in ns
	Queries int      // how many questions it answered while CPU was measured
	Bytes   int64    // resident memory of its process
}

// item is an item of an answer.
type item struct {
	ID, Object string
	Score      float64
	Also       []string // ids of further records of the object
}

// baseline is the paths of a baseline that is built, and of the data that it reads.
type baseline struct{ program, data string }

// build generates and builds the baseline, and writes the data that it reads. With fault,
// the baseline's scores are wrong.
func (w *world) build(ctx context.Context, dir string, fault bool) (*baseline, error) {
	code, err := format.Source([]byte(w.golang(fault)))
	if err != nil {
		return nil, fmt.Errorf("the baseline's code: %w", err)
	}
	for name, text := range map[string][]byte{"go.mod": []byte("module baseline\n\ngo 1.24\n"), "main.go": baselineMain, "workload.go": code} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	b := &baseline{filepath.Join(dir, "baseline"), filepath.Join(dir, "data")}
	build := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", b.program, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the baseline is not built: %w: %s", err, said)
	}
	return b, w.writeData(b.data)
}

// run has the baseline answer every question once, and then again for length, while it
// measures its CPU time.
func (b *baseline) run(ctx context.Context, length time.Duration) (r report, err error) {
	cmd := exec.CommandContext(ctx, b.program, b.data, length.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("the baseline: %w", err)
	}
	return r, json.Unmarshal(out, &r)
}

// golang returns the baseline's Go file for this world: its types, readers, filter and model.
func (w *world) golang(fault bool) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("package main")
	line("import (\n\"math\"\n\"slices\"\n\"strings\"\n)")
	line("var ( _ = math.Abs; _ = slices.Contains[[]string]; _ = strings.Contains )")
	line("const (\nasOf int64 = %d\nwindow int64 = %d\nlimit = %d\nkinds = %d\nentityCap = %d\ndistinct = %v\n)", asOf, w.window.Milliseconds(), w.limit, w.kinds, w.cap, w.distinct)
	line("var asked = %#v", w.asked)
	w.goTypes(line)
	w.goReaders(line)
	conditions := []string{"true"}
	for _, c := range w.filter {
		conditions = append(conditions, c.golang)
	}
	line("func keep(p *Post, v *Viewer) bool { return %s }", strings.Join(conditions, " &&\n"))
	w.goScore(line, fault)
	return b.String()
}

// goTypes writes the types Post (a record), Viewer and Question.
func (w *world) goTypes(line func(string, ...any)) {
	line("type Post struct {\nID, Entity, Object string\nAt int64")
	for _, f := range w.fields {
		t := goType[f.kind]
		if f.kind == vectors && f.single {
			t = "[]float32"
		}
		line("%s %s", f.goName(), t)
		if f.nullable {
			line("%sSet bool", f.goName())
		}
	}
	line("}\ntype Viewer struct {")
	for _, a := range w.attrs {
		line("%s %s", a.goName(), goType[a.kind])
	}
	line("}\ntype Question struct {\nFollows []string\nViewer Viewer\n}")
}

var goType = map[kind]string{ints: "int64", doubles: "float64", singles: "float32", bools: "bool", texts: "string", prose: "string", vectors: "[]float64", tags: "[]string", numbers: "[]int64"}

// goRead returns Go code that reads a value of a kind; single is for vectors of float32.
func goRead(k kind, single bool) string {
	switch k {
	case ints:
		return "r.long()"
	case doubles:
		return "r.double()"
	case singles:
		return "float32(r.double())"
	case bools:
		return "r.bool()"
	case texts, prose:
		return "r.text()"
	case vectors:
		if single {
			return "list(r.length(), func() float32 { return float32(r.double()) })"
		}
		return "list(r.length(), r.double)"
	case tags:
		return "list(r.length(), r.text)"
	}
	return "list(r.length(), r.long)"
}

// goReaders writes the functions that read a Post and a Viewer from what writeData writes.
func (w *world) goReaders(line func(string, ...any)) {
	line("func readPost(r *in, entity string) (p Post) {\np.Entity, p.ID, p.Object, p.At = entity, r.text(), r.text(), r.long()")
	for _, f := range w.fields {
		if f.nullable {
			line("if p.%sSet = r.bool(); p.%sSet {", f.goName(), f.goName())
		}
		line("p.%s = %s", f.goName(), goRead(f.kind, f.single))
		if f.nullable {
			line("}")
		}
	}
	line("return p\n}\nfunc readViewer(r *in) (v Viewer) {")
	for _, a := range w.attrs {
		line("v.%s = %s", a.goName(), goRead(a.kind, false))
	}
	line("return v\n}")
}

// goScore writes the function that scores by the model. With fault, it adds 1e-3 to the sum
// that the score is made of.
func (w *world) goScore(line func(string, ...any), fault bool) {
	m := w.model
	for i, t := range m.tables {
		line("var t%d = map[string]float64{%s}", i, t)
	}
	for i, v := range m.vectors {
		line("var w%d = []float64{%s}", i, v)
	}
	wrong := 0.0
	if fault {
		wrong = 1e-3
	}
	if m.scorer == "trees" {
		w.goForest(line)
		line("func score(p *Post, v *Viewer) float64 {\nx := [...]float64{")
		for _, c := range m.features {
			line("%s,", c.golang)
		}
		line("}\nreturn %s + walk(forest, x[:])\n}", double(wrong))
		return
	}
	line("func score(p *Post, v *Viewer) float64 {\ns := %s", double(m.bias+wrong))
	for i, c := range m.features {
		line("s += %s * (%s)", double(m.weights[i]), c.golang)
	}
	if m.scorer == "logistic" {
		line("return 1 / (1 + math.Exp(-s))\n}")
		return
	}
	line("return s\n}")
}

// goForest writes the model's trees, as a variable.
func (w *world) goForest(line func(string, ...any)) {
	line("var forest = []Tree{")
	for _, t := range w.model.trees {
		var nodes, leaves []string
		for i := range t.feature {
			nodes = append(nodes, fmt.Sprintf("{%d, %s, %d, %d}", t.feature[i], double(t.threshold[i]), t.left[i], t.right[i]))
		}
		for _, x := range t.leaves {
			leaves = append(leaves, double(x))
		}
		line("{[]Node{%s}, []float64{%s}},", strings.Join(nodes, ", "), strings.Join(leaves, ", "))
	}
	line("}")
}

// writeData writes what the baseline reads: the live records (without older versions and
// deleted ones), and the questions. Whole numbers and lengths are varints, and other numbers
// have 8 bytes. The value of a nullable field follows a number that is 0 if it is null.
func (w *world) writeData(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(f, 1<<20)
	b := binary.AppendVarint(nil, int64(len(w.records)))
	for _, x := range w.records {
		object := x.object
		if object == "" {
			object = x.id
		}
		b = appendText(b, x.entity)
		b = binary.AppendVarint(b, int64(x.kind))
		b = appendText(appendText(b, x.id), object)
		b = binary.AppendVarint(b, x.at)
		for i, f := range w.fields {
			if f.nullable {
				b = appendValue(b, x.values[i] != nil)
			}
			if x.values[i] != nil {
				b = appendValue(b, x.values[i])
			}
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	b = binary.AppendVarint(b, int64(len(w.questions)))
	for _, q := range w.questions {
		b = appendValue(b, q.follows)
		for _, v := range q.values {
			b = appendValue(b, v)
		}
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	return out.Flush()
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendVarint(b, int64(len(s))), s...)
}

// appendValue appends a value in the form that writeData describes.
func appendValue(b []byte, v any) []byte {
	switch x := v.(type) {
	case int64:
		return binary.AppendVarint(b, x)
	case float64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	case bool:
		return binary.AppendVarint(b, int64(fromBool(x)))
	case string:
		return appendText(b, x)
	case []string:
		b = binary.AppendVarint(b, int64(len(x)))
		for _, s := range x {
			b = appendText(b, s)
		}
	case []float64:
		b = binary.AppendVarint(b, int64(len(x)))
		for _, n := range x {
			b = appendValue(b, n)
		}
	case []int64:
		b = binary.AppendVarint(b, int64(len(x)))
		for _, n := range x {
			b = binary.AppendVarint(b, n)
		}
	default:
		panic(fmt.Sprintf("a value of type %T", v)) // no field or attribute has another type
	}
	return b
}
