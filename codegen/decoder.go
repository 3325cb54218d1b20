package codegen

import (
	"bytes"
	"fmt"
	"go/format"
	"path"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// GenerateDecoder writes, into package pkg, the decoder that reads a record's Avro body into
// the columns of the schema's layout. Source is the schema's file, for the header.
func GenerateDecoder(pkg, source string, s *schemas.Schema) (File, error) {
	steps, err := s.Steps()
	if err != nil {
		return File{}, err
	}
	source = path.Base(source)
	name := s.Name()[strings.LastIndex(s.Name(), ".")+1:]
	columns := len(s.Layout().Fields())
	d := decoder{nullWords: (columns + 63) / 64, function: "append" + camel(name, true)}
	d.steps(steps)
	body, schema := d.word(s.Layout().Index(schemas.BodyColumn)), d.word(s.Layout().Index(schemas.SchemaColumn))
	var b bytes.Buffer
	header(&b, pkg, source, nil)
	fmt.Fprintf(&b, "func init() {\ncompute.RegisterDecoder(compute.Decoder{Schema: %q, Shape: %q, Append: %s})\n}\n\n", s.Name(), s.Shape(), d.function)
	b.Write(d.tables.Bytes())
	fmt.Fprintf(&b, "// %s appends the row of a %s: %s.\n", d.function, s.Name(), count(columns, "column"))
	fmt.Fprintf(&b, "func %s(a *compute.Appender, body []byte) bool {\n", d.function)
	b.WriteString("heap, base, ok := compute.BeginRow(a, body)\nif !ok {\nreturn false\n}\n")
	fmt.Fprintf(&b, "var w [%d]uint64 // of null bits, then one a column\nat := 0\n", d.nullWords+columns)
	if d.index {
		b.WriteString("var x uint64\n")
	}
	b.Write(d.body.Bytes())
	fmt.Fprintf(&b, "\nif at != len(body) {\nreturn false\n}\n%s = compute.BodyWord(body, base)\n%s = %#x\na.AppendWords(w[:], heap)\nreturn true\n}\n", body, schema, uint64(s.Fingerprint()))
	text, err := format.Source(b.Bytes())
	if err != nil {
		return File{}, fmt.Errorf("codegen: %s: the text does not parse: %w", source, err)
	}
	return File{strings.ToLower(name) + "_decoder.go", text}, nil
}

// decoder writes the function of one schema.
type decoder struct {
	function  string       // its name
	nullWords int          // words of null bits, before the words of columns
	index     bool         // the function reads an index, of an enum's symbol or a union's branch
	enums     int          // how many tables of symbols there are
	tables    bytes.Buffer // variables with the symbols of enums
	body      bytes.Buffer // of the function
}

// word returns the text for the word of a column; "_" for -1, no column.
func (d *decoder) word(c int) string {
	if c < 0 {
		return "_"
	}
	return fmt.Sprintf("w[%d]", d.nullWords+c)
}

// reads are the operations that are one call and give one word.
var reads = map[string]string{
	"boolean": "Boolean(body, at)", "int": "Int(body, at)", "long": "Long(body, at)", "time": "Time(body, at)",
	"float": "Float(body, at)", "double": "Double(body, at)", "string": "String(body, at, base)",
}

// lists are the reads of arrays, by the operation that reads an item.
var lists = map[string]string{"int": "Ints", "long": "Longs", "float": "Floats", "double": "Doubles", "string": "Strings"}

// steps writes the reads of some steps, in their order.
func (d *decoder) steps(steps []schemas.Step) {
	for len(steps) > 0 {
		n := run(steps)
		if n > 1 {
			d.longs(steps[:n])
		} else {
			d.step(steps[0])
		}
		steps = steps[n:]
	}
}

// run returns how many of the first steps become one read: as many longs as have columns side
// by side, else 1.
func run(steps []schemas.Step) int {
	n := 0
	for n < len(steps) && steps[n].Op == "long" && steps[n].Column >= 0 && steps[n].Column == steps[0].Column+n {
		n++
	}
	return max(n, 1)
}

// longs writes one read of several longs into columns side by side.
func (d *decoder) longs(steps []schemas.Step) {
	from := d.nullWords + steps[0].Column
	var fields []string
	for _, s := range steps {
		fields = append(fields, s.Field)
	}
	fmt.Fprintf(&d.body, "at = compute.ReadLongRun(body, at, w[%d:%d]) // %s\n", from, from+len(steps), strings.Join(fields, ", "))
}

// step writes the read of one step. A step that has no column passes over the bytes.
func (d *decoder) step(s schemas.Step) {
	b, word := &d.body, d.word(s.Column)
	if read, ok := reads[s.Op]; ok {
		fmt.Fprintf(b, "%s, at = compute.Read%s // %s\n", word, read, s.Field)
		return
	}
	switch s.Op {
	case "bytes":
		fmt.Fprintf(b, "at = compute.SkipBytes(body, at) // %s\n", s.Field)
	case "fixed":
		fmt.Fprintf(b, "at = compute.SkipFixed(body, at, %d) // %s\n", s.Size, s.Field)
	case "null":
		fmt.Fprintf(b, "w[%d] |= 1 << %d // %s is null\n", s.Column/64, s.Column%64, s.Field)
	case "enum":
		d.enum(s)
	case "union":
		d.union(s)
	case "array", "map":
		d.list(s)
	}
}

// list writes the read of an array or a map. An array of simple items that has a column is
// read into the heap. Of any other list the function reads only an empty one, and gives up on
// the record if the list has items: the decoder of package schemas then reads the record.
func (d *decoder) list(s schemas.Step) {
	if items := s.Subs[0]; s.Op == "array" && s.Column >= 0 && len(items) == 1 && lists[items[0].Op] != "" {
		fmt.Fprintf(&d.body, "%s, at, heap = compute.Read%s(body, at, heap) // %s\n", d.word(s.Column), lists[items[0].Op], s.Field)
		return
	}
	fmt.Fprintf(&d.body, "at = compute.ReadEmpty(body, at) // %s: one with items is left to the plan\n", s.Field)
}

// enum writes the read of an enum. If all symbols are short enough to stand in a word, the
// function looks the word up in a table; else the table has the texts.
func (d *decoder) enum(s schemas.Step) {
	if s.Column < 0 {
		fmt.Fprintf(&d.body, "_, at = compute.ReadIndex(body, at, %d) // %s\n", len(s.Symbols), s.Field)
		return
	}
	d.index = true
	fmt.Fprintf(&d.body, "x, at = compute.ReadIndex(body, at, %d) // %s\n", len(s.Symbols), s.Field)
	d.enums++
	table := fmt.Sprintf("%sSymbols%d", strings.TrimPrefix(d.function, "append"), d.enums)
	table = strings.ToLower(table[:1]) + table[1:]
	long := false
	var words []string
	for _, symbol := range s.Symbols {
		w, ok := column.InlineWord(symbol)
		long = long || !ok
		words = append(words, fmt.Sprintf("%#x, // %s\n", w, symbol))
	}
	if !long {
		fmt.Fprintf(&d.tables, "// %s are the words of %s.\nvar %s = [...]uint64{\n%s}\n\n", table, s.Field, table, strings.Join(words, ""))
		fmt.Fprintf(&d.body, "%s = %s[x]\n", d.word(s.Column), table)
		return
	}
	fmt.Fprintf(&d.tables, "// %s are those of %s.\nvar %s = [...]string{\n", table, s.Field, table)
	for _, symbol := range s.Symbols {
		fmt.Fprintf(&d.tables, "%q,\n", symbol)
	}
	d.tables.WriteString("}\n\n")
	fmt.Fprintf(&d.body, "%s, heap = compute.SymbolWord(heap, %s[x])\n", d.word(s.Column), table)
}

// union writes the read of a union: the index of a branch, and the steps of that branch.
func (d *decoder) union(s schemas.Step) {
	d.index = true
	fmt.Fprintf(&d.body, "\nx, at = compute.ReadIndex(body, at, %d) // %s\nswitch x {\n", len(s.Subs), s.Field)
	for i, branch := range s.Subs {
		if len(branch) == 0 {
			continue // a null, of a field without a column
		}
		fmt.Fprintf(&d.body, "case %d:\n", i)
		d.steps(branch)
	}
	d.body.WriteString("}\n")
}
