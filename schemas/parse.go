package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// Limits of a schema. Fields, nodes and depth are counted with every reference replaced by
// the type that it refers to, since a small text may refer to the same types again and
// again.
const (
	maxSchemaBytes  = 64 << 10 // of the text
	maxFields       = 1024
	maxNodes        = 8192 // types
	maxDepth        = 32   // levels of types
	maxNameBytes    = 256
	maxAliases      = 64       // of a field or a type
	maxDefaultBytes = 64 << 10 // of all defaults together, encoded
)

// Parse reads a schema and checks everything about it. The error has every
// fault of the text, each with the field it is in.
func Parse(avsc []byte) (*Schema, error) {
	p, err := parseTree(avsc)
	if err != nil {
		return nil, err
	}
	s := &Schema{root: p.root, json: string(avsc), features: p.features}
	faults := p.faults
	if p.root != nil && p.root.kind != kindRecord {
		faults = append(faults, fmt.Errorf("schemas: the schema is of %s; Millrace keeps records", p.root.what()))
	} else if p.root != nil || p.top != nil {
		roles, roleFaults := findRoles(p.top, p.features)
		s.roles, faults = roles, append(faults, roleFaults...)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if s.layout, err = layoutOf(s.root); err != nil {
		return nil, err
	}
	for _, rule := range roleRules {
		at := rule.of(&s.roles)
		at.Column = s.layout.Index(at.Name)
	}
	if err := secondReader(avsc); err != nil {
		return nil, err
	}
	s.canonical = canonicalForm(s.root)
	s.fingerprint = fingerprint(s.canonical)
	s.envelope = compileEnvelope(s)
	s.bytes = s.weigh()
	return s, nil
}

// parseTree reads a schema of any type. The faults of the types are in the parser; the
// error says that the text is too long or no JSON.
func parseTree(avsc []byte) (*parser, error) {
	if len(avsc) > maxSchemaBytes {
		return nil, fmt.Errorf("schemas: the schema has more than %d bytes", maxSchemaBytes)
	}
	text, err := jsontext.Value(avsc)
	if err != nil {
		return nil, fmt.Errorf("schemas: the schema is not JSON: %w", err)
	}
	p := &parser{named: map[string]*node{}, open: map[string]bool{}}
	if object, ok := text.(map[string]any); ok {
		switch v := object["millrace"]; v {
		case nil:
		case "features":
			p.features = true
		default:
			p.fault("", `the record's property millrace is %v; it may be "features"`, quote(v))
		}
	}
	p.root = p.typ(text, "", "", 0)
	return p, nil
}

// parser turns the JSON of a schema into nodes, and goes on after a fault.
type parser struct {
	root         *node            // nil after a fault
	features     bool             // what the record's property millrace says
	top          []field          // of the outermost record; those at fault have no type
	named        map[string]*node // by full name; nil where the definition is at fault
	open         map[string]bool  // full names whose definition is being read
	faults       []error
	defaultBytes int // of all defaults so far, encoded
}

// fault notes a fault of the field at a path, or of the schema if path is empty.
func (p *parser) fault(path, format string, args ...any) {
	where := "schemas: "
	if path != "" {
		where = fmt.Sprintf("schemas: field %q: ", path)
	}
	p.faults = append(p.faults, errors.New(where+fmt.Sprintf(format, args...)))
}

// typ returns the type that v describes, in the namespace ns, or nil after a
// fault.
func (p *parser) typ(v any, ns, path string, depth int) *node {
	if depth > maxDepth {
		p.fault(path, "types nest deeper than %d levels", maxDepth)
		return nil
	}
	switch v := v.(type) {
	case string:
		return p.reference(v, ns, path)
	case []any:
		return p.union(v, ns, path, depth)
	case map[string]any:
		return p.object(v, ns, path, depth)
	}
	p.fault(path, "a type is a name, a list (a union) or an object, not %v", v)
	return nil
}

// reference returns the type of a name, or nil after a fault.
func (p *parser) reference(name, ns, path string) *node {
	if k, ok := primitives[name]; ok {
		return p.finish(&node{kind: k}, path)
	}
	full := qualify(name, ns)
	if p.open[full] {
		p.fault(path, "%s contains itself; recursive schemas are refused, since their values have no bound", full)
		return nil
	}
	n, ok := p.named[full]
	if !ok {
		p.fault(path, "unknown type %q; define it before it is used", name)
	}
	return n
}

func (p *parser) object(o map[string]any, ns, path string, depth int) *node {
	name, ok := o["type"].(string)
	if !ok {
		if o["type"] == nil {
			p.fault(path, `the type object has no "type"`)
			return nil
		}
		return p.typ(o["type"], ns, path, depth+1)
	}
	switch name {
	case "record", "enum", "fixed":
		return p.definition(name, o, ns, path, depth)
	case "array":
		return p.collection(kindArray, o, "items", "[]", ns, path, depth)
	case "map":
		return p.collection(kindMap, o, "values", "{}", ns, path, depth)
	}
	n := p.reference(name, ns, path)
	if n == nil || n.name != "" {
		return n
	}
	if logical, ok := o["logicalType"].(string); ok && slices.Contains(logicals[n.kind], logical) {
		n.logical = logical
	}
	return n
}

// logicals are the logical types that count, by the type that has them. All others are
// ignored, as the Avro specification asks.
var logicals = map[kind][]string{
	kindInt:  {"date", "time-millis"},
	kindLong: {"time-micros", "timestamp-millis", "timestamp-micros"},
}

func (p *parser) collection(k kind, o map[string]any, attr, mark, ns, path string, depth int) *node {
	v, ok := o[attr]
	if !ok {
		p.fault(path, "the %s has no %q", k, attr)
		return nil
	}
	items := p.typ(v, ns, path+mark, depth+1)
	if items == nil {
		return nil
	}
	if items.minBytes == 0 {
		p.fault(path, "the %s of the %s can take no bytes, so that a few bytes could claim any number of them", attr, k)
		return nil
	}
	return p.finish(&node{kind: k, items: items}, path)
}

func (p *parser) union(list []any, ns, path string, depth int) *node {
	if len(list) == 0 {
		p.fault(path, "the union is empty")
		return nil
	}
	n := &node{kind: kindUnion}
	seen := map[string]bool{}
	for _, v := range list {
		b := p.typ(v, ns, path, depth+1)
		if b == nil {
			continue
		}
		if b.kind == kindUnion {
			p.fault(path, "a union stands directly in a union")
			continue
		}
		key := b.kind.String() + b.name
		if seen[key] {
			p.fault(path, "the union has %s twice", b.what())
			continue
		}
		seen[key] = true
		n.branches = append(n.branches, b)
	}
	if len(n.branches) < len(list) {
		return nil
	}
	return p.finish(n, path)
}

// finish measures a type. It returns nil after a fault if the type exceeds a limit.
func (p *parser) finish(n *node, path string) *node {
	n.measure()
	switch {
	case n.allFields > maxFields:
		p.fault(path, "written out, the type has %d fields; at most %d are allowed", n.allFields, maxFields)
	case n.nodes > maxNodes:
		p.fault(path, "written out, the type has %d types within; at most %d are allowed", n.nodes, maxNodes)
	case n.depth > maxDepth:
		p.fault(path, "written out, types nest deeper than %d levels", maxDepth)
	default:
		return n
	}
	return nil
}

// definition reads a named type: a record, enum or fixed.
func (p *parser) definition(what string, o map[string]any, ns, path string, depth int) *node {
	full, ns, ok := p.fullName(what, o, ns, path)
	if !ok {
		return nil
	}
	if _, twice := p.named[full]; twice || p.open[full] {
		p.fault(path, "%s is defined twice", full)
		return nil
	}
	n := &node{name: full, aliases: p.aliases(o, path), fallback: -1}
	for i, a := range n.aliases {
		n.aliases[i] = qualify(a, ns)
	}
	before := len(p.faults)
	p.open[full] = true
	switch what {
	case "enum":
		p.enum(n, o, path)
	case "fixed":
		p.fixed(n, o, path)
	default:
		p.record(n, o, ns, path, depth)
	}
	delete(p.open, full)
	p.named[full] = nil
	if len(p.faults) == before {
		p.named[full] = p.finish(n, path)
	}
	return p.named[full]
}

func (p *parser) enum(n *node, o map[string]any, path string) {
	n.kind = kindEnum
	list, ok := o["symbols"].([]any)
	if !ok || len(list) == 0 {
		p.fault(path, "the enum %s has no list of symbols", n.name)
		return
	}
	seen := make(map[string]bool, len(list))
	for _, v := range list {
		s, ok := v.(string)
		if !ok || !isName(s) {
			p.fault(path, "the enum %s has the symbol %v; symbols are letters, digits and _, not starting with a digit", n.name, quote(v))
			continue
		}
		if seen[s] {
			p.fault(path, "the enum %s has the symbol %s twice", n.name, s)
		}
		seen[s] = true
		n.symbols = append(n.symbols, s)
	}
	if v, ok := o["default"]; ok {
		s, _ := v.(string)
		if n.fallback = slices.Index(n.symbols, s); n.fallback < 0 {
			p.fault(path, "the enum %s has the default %v, which is none of its symbols", n.name, quote(v))
		}
	}
}

func (p *parser) fixed(n *node, o map[string]any, path string) {
	n.kind = kindFixed
	number, _ := o["size"].(json.Number)
	size, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || size < 0 || size > millrace.MaxBodyBytes {
		p.fault(path, "the fixed %s has the size %v; it is a whole number from 0 to %d", n.name, o["size"], millrace.MaxBodyBytes)
		return
	}
	n.size = int(size)
}

func (p *parser) record(n *node, o map[string]any, ns, path string, depth int) {
	n.kind = kindRecord
	list, ok := o["fields"].([]any)
	if !ok {
		p.fault(path, "the record %s has no list of fields", n.name)
		return
	}
	if len(list) > maxFields {
		p.fault(path, "the record %s has %d fields; at most %d are allowed", n.name, len(list), maxFields)
		return
	}
	seen := map[string]bool{}
	for i, v := range list {
		if f, ok := p.field(v, i, ns, path, depth); ok {
			n.fields = append(n.fields, f)
		}
		for _, name := range namesOf(v) {
			if seen[name] {
				p.fault(join(path, name), "the record %s has two fields of this name or alias", n.name)
			}
			seen[name] = true
		}
	}
}

// namesOf returns the name and the first maxAliases aliases of a field in JSON, each once.
func namesOf(v any) (names []string) {
	o, _ := v.(map[string]any)
	if s, ok := o["name"].(string); ok {
		names = append(names, s)
	}
	list, _ := o["aliases"].([]any)
	for _, a := range list[:min(len(list), maxAliases)] {
		if s, ok := a.(string); ok && !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}

func (p *parser) field(v any, i int, ns, path string, depth int) (f field, ok bool) {
	o, ok := v.(map[string]any)
	if !ok {
		p.fault(path, "field %d is not an object", i)
		return f, false
	}
	f.name, _ = o["name"].(string)
	if !isName(f.name) {
		p.fault(path, "field %d has the name %v; names are letters, digits and _, not starting with a digit", i, quote(o["name"]))
		return f, false
	}
	at := join(path, f.name)
	before := len(p.faults)
	f.aliases = p.aliases(o, at)
	if role, ok := o["millrace"]; ok {
		if f.role, ok = role.(string); !ok || path != "" {
			p.fault(at, "the property millrace is a string on a field of the outermost record")
		}
	}
	t, ok := o["type"]
	if !ok {
		p.fault(at, `the field has no "type"`)
		return f, false
	}
	f.typ = p.typ(t, ns, at, depth+1)
	if path == "" {
		p.top = append(p.top, f)
	}
	if f.typ == nil {
		return f, false
	}
	if def, ok := o["default"]; ok {
		p.setDefault(&f, def, at)
	}
	return f, len(p.faults) == before
}

func (p *parser) setDefault(f *field, def any, path string) {
	text, err := json.Marshal(def)
	if err == nil {
		e := encoder{defaults: true, max: maxDefaultBytes - p.defaultBytes}
		f.def, err = e.encode(nil, f.typ, text, path)
	}
	if err != nil {
		p.fault(path, "the default does not fit the type: %s", detailOf(err))
		return
	}
	f.hasDefault = true
	p.defaultBytes += len(f.def)
}

// fullName returns a definition's full name, and the namespace of the names within it.
func (p *parser) fullName(what string, o map[string]any, outer, path string) (full, ns string, ok bool) {
	name, ok := o["name"].(string)
	if !ok {
		p.fault(path, "the %s has no name", what)
		return "", "", false
	}
	ns = outer
	if v, has := o["namespace"]; has && v != nil {
		if ns, ok = v.(string); !ok || ns != "" && !isFullName(ns) {
			p.fault(path, "the namespace %v of %s is not names joined by dots", quote(v), quote(name))
			return "", "", false
		}
	}
	full = qualify(name, ns)
	if !isFullName(full) || len(full) > maxNameBytes {
		p.fault(path, "the %s has the name %s; names are letters, digits and _, not starting with a digit", what, quote(name))
		return "", "", false
	}
	if _, taken := primitives[shortName(full)]; taken {
		p.fault(path, "the %s has the name of a primitive type, %s", what, quote(name))
		return "", "", false
	}
	return full, strings.TrimSuffix(full[:len(full)-len(shortName(full))], "."), true
}

func (p *parser) aliases(o map[string]any, path string) (names []string) {
	v, ok := o["aliases"]
	if !ok {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		p.fault(path, "aliases is not a list")
	}
	if len(list) > maxAliases {
		p.fault(path, "there are %d aliases; at most %d are allowed", len(list), maxAliases)
		return nil
	}
	for _, v := range list {
		s, ok := v.(string)
		if !ok || !isFullName(s) {
			p.fault(path, "the alias %v is not a name", quote(v))
			continue
		}
		names = append(names, s)
	}
	return names
}

// qualify returns the full name of a name in a namespace.
func qualify(name, ns string) string {
	if ns == "" || strings.Contains(name, ".") {
		return name
	}
	return ns + "." + name
}

var (
	nameForm     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	fullNameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
)

func isName(s string) bool     { return len(s) <= maxNameBytes && nameForm.MatchString(s) }
func isFullName(s string) bool { return fullNameForm.MatchString(s) }

// quote renders a value of the file for a message, shortened.
func quote(v any) string {
	s := fmt.Sprint(v)
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strconv.Quote(s)
}
