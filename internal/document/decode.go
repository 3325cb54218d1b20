package document

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/millrace/millrace/internal/hint"
)

// Decode reads a document in YAML into the struct that into points to, by the
// names in its yaml tags. It refuses a field that the struct doesn't have and
// one that stands twice, and returns every fault at once as an [Error]. An empty
// document changes nothing. If there are faults, the struct may be filled in part.
func Decode(src []byte, into any) error {
	n, err := Parse(src)
	if err != nil {
		return err
	}
	return n.Decode(into)
}

// Decode is [Decode] of a document that was parsed.
func (n *Node) Decode(into any) error {
	if n == nil || n.Kind == Null {
		return nil
	}
	d := decoder{&Error{}}
	d.value(n, reflect.ValueOf(into).Elem(), "")
	return d.faults.orNil()
}

// Encode writes a struct in YAML, as [Decode] reads it.
func Encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

type decoder struct {
	faults *Error
}

func (d *decoder) mismatch(n *Node, path, want string) {
	got := n.Kind.String()
	if n.Text != "" {
		got += fmt.Sprintf(", %.40q", n.Text)
	}
	d.faults.add(n.Line, n.Col, path, fmt.Sprintf("this is %s, and not %s", got, want), "")
}

// value reads n into v. A null value leaves v as it is.
func (d *decoder) value(n *Node, v reflect.Value, path string) {
	if n.Kind == Null {
		return
	}
	if _, ok := v.Interface().(time.Duration); ok {
		d.duration(n, v, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.entries(n, path, func(e Entry, path string) { d.field(e, v, path) })
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.entries(n, path, func(e Entry, path string) {
			x := reflect.New(v.Type().Elem()).Elem()
			d.value(e.Value, x, path)
			v.SetMapIndex(reflect.ValueOf(e.Key).Convert(v.Type().Key()), x)
		})
	case reflect.Slice:
		d.list(n, v, path)
	case reflect.Pointer: // a value that may be left out: it stays nil then, and if there is a fault
		x, before := reflect.New(v.Type().Elem()), len(d.faults.Faults)
		if d.value(n, x.Elem(), path); len(d.faults.Faults) == before {
			v.Set(x)
		}
	default:
		d.scalar(n, v, path)
	}
}

// entries calls read for each entry of a mapping, with its path.
func (d *decoder) entries(n *Node, path string, read func(Entry, string)) {
	if n.Kind != Mapping {
		d.mismatch(n, path, "a mapping of names to values")
		return
	}
	seen := make(map[string]bool, len(n.Entries))
	for _, e := range n.Entries {
		at := e.Key
		if path != "" {
			at = path + "." + e.Key
		}
		if seen[e.Key] {
			d.faults.add(e.Line, e.Col, at, "it stands twice", "remove one")
			continue
		}
		seen[e.Key] = true
		read(e, at)
	}
}

func (d *decoder) field(e Entry, v reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	fieldsOf(v, fields)
	if f, ok := fields[e.Key]; ok {
		d.value(e.Value, f, path)
		return
	}
	d.faults.add(e.Line, e.Col, path, "there is no such field", hint.Nearest(e.Key, slices.Sorted(maps.Keys(fields))))
}

// fieldsOf collects a struct's fields by their names in a document, including the fields
// of structs that are inline in it.
func fieldsOf(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		switch name, inline := Key(v.Type().Field(i)); {
		case inline:
			fieldsOf(v.Field(i), into)
		case name != "":
			into[name] = v.Field(i)
		}
	}
}

// Key returns the name that a field of a struct has in a document. inline reports that the
// field is a struct whose own fields take its place; it then has no name. A field that no
// document has is neither.
func Key(f reflect.StructField) (name string, inline bool) {
	name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	switch {
	case !f.IsExported() || name == "-":
		return "", false
	case options == "inline":
		return "", true
	}
	return cmp.Or(name, strings.ToLower(f.Name)), false
}

func (d *decoder) list(n *Node, v reflect.Value, path string) {
	if n.Kind != List {
		d.mismatch(n, path, "a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items)))
	for i, item := range n.Items {
		d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

func (d *decoder) duration(n *Node, v reflect.Value, path string) {
	t, err := time.ParseDuration(n.Text)
	if err != nil {
		d.mismatch(n, path, "a span of time such as 168h or 90s")
		return
	}
	v.SetInt(int64(t))
}

// scalar reads a text, number or boolean. A field of type string takes any scalar as it is
// written.
func (d *decoder) scalar(n *Node, v reflect.Value, path string) {
	want := ""
	if k := v.Kind(); k != reflect.String && (n.Kind == Int || n.Kind == Float) && octal(n.Text) {
		d.mismatch(n, path, "a number without zeros before it, with which some read it as octal")
		return
	}
	switch v.Kind() {
	case reflect.String:
		if n.Kind == List || n.Kind == Mapping {
			want = "a text"
			break
		}
		v.SetString(n.Text)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Text)
		if n.Kind != Bool || err != nil {
			want = "true or false"
			break
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.Text, 0, v.Type().Bits())
		if n.Kind != Int || err != nil {
			want = "an integer of 64 bits"
			break
		}
		v.SetInt(i)
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Text, 64)
		switch {
		case n.Kind != Int && n.Kind != Float:
			want = "a number"
		case err != nil || math.IsInf(f, 0) || math.IsNaN(f): // YAML's .nan and .inf are not taken either: ParseFloat refuses them
			want = "a finite number"
		}
		if want != "" {
			break
		}
		v.SetFloat(f)
	default:
		panic(fmt.Sprintf("document: a field of type %s", v.Type())) // a bug of the struct
	}
	if want != "" {
		d.mismatch(n, path, want)
	}
}

// octal reports whether a number begins with a 0 that makes it octal in YAML 1.1, but not
// in YAML 1.2.
func octal(text string) bool {
	text = strings.TrimLeft(text, "+-")
	return len(text) > 1 && text[0] == '0' && (text[1] >= '0' && text[1] <= '9' || text[1] == '_')
}

// Value returns the value in a form that encoding/json takes: nil, a bool, an int64, a
// float64, a string, a []any or a map[string]any. A number that JSON cannot write, such
// as .inf, is a string. A nil Node is nil.
func (n *Node) Value() any {
	if n == nil {
		return nil
	}
	switch n.Kind {
	case Null:
		return nil
	case Bool:
		return strings.EqualFold(n.Text, "true")
	case Int:
		if i, err := strconv.ParseInt(n.Text, 0, 64); err == nil {
			return i
		}
	case Float:
		if x, err := strconv.ParseFloat(n.Text, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return x
		}
	case List:
		all := make([]any, len(n.Items))
		for i, item := range n.Items {
			all[i] = item.Value()
		}
		return all
	case Mapping:
		all := make(map[string]any, len(n.Entries))
		for _, e := range n.Entries {
			all[e.Key] = e.Value.Value()
		}
		return all
	}
	return n.Text
}
