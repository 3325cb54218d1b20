package schemas

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// Limits of a schema. Those on its size when written out hold against texts
// that are small but refer to the same types again and again.
const (
	maxSchemaBytes  = 64 << 10
	maxFields       = 1024
	maxNodes        = 8192
	maxDepth        = 32
	maxNameBytes    = 256
	maxAliases      = 64       // of a field or a type
	maxDefaultBytes = 64 << 10 // of all defaults together, encoded
)

// Parse reads a schema and checks everything about it. The error tells every
// fault of the file at once, each with the field it is in.
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

// parseTree reads a schema of any type, as far as its faults allow.
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
	open         map[string]bool  // being defined
	faults       []error
	defaultBytes int
}

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

// logicals are the logical types that mean something here; any other is
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

// finish measures a type and holds it against the limits.
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
