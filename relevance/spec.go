package relevance

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/schemas"
)

// Schemas are the schemas that a spec may name, by the full name of their Avro record.
type Schemas map[string]Records

// Records describes the records, or the features, of one full name.
type Records struct {
	Layout *column.Layout
	Family *schemas.Family // all schemas of the name, which make up Layout; nil: only the layout is known
}

// names returns the full names, sorted.
func (s Schemas) names() []string { return slices.Sorted(maps.Keys(s)) }

// maxFeatures bounds the features of a spec, since the cost of scoring grows with them.
const maxFeatures = 4096

// Spec is a checked model spec: what a model computes, without parameters.
type Spec struct {
	File     string   // the name of its file, for messages
	Name     string   // the model's name
	Version  string   // the model's version, 1 to 100 bytes
	About    string   // a description for people, or empty
	Schemas  []string // the schemas of the records; empty: it reads only the fields that every record has, see roles
	Entity   string   // the schema of the features of entities, or empty
	Object   string   // the schema of the features of objects, which are what records are about, or empty
	Features []Feature
	source   plan.Source   // what plans are built from
	types    []FeatureType // the types of Features
	tables   []literal     // the tables written in expressions
}

// Feature is a feature of a spec.
type Feature struct {
	Name   string
	Source string     // its expression
	Line   int        // the line of the expression in the file, from 1
	Tree   *expr.Node // the checked expression; nil only while a spec with faults is read
	at     pos        // where its name stands
}

// literal is a table that is written in an expression.
type literal struct {
	name  string
	value *expr.MapValue
}

// Source returns what plans are built from.
func (s *Spec) Source() *plan.Source { return &s.source }

// Scorer returns the name of the spec's scorer: "linear", "logistic" or
// "trees".
func (s *Spec) Scorer() string { return s.source.Scorer.String() }

// specReader reads a spec and its parameters, and collects the faults.
type specReader struct {
	specFile
	spec    *Spec
	schemas Schemas
	open    func(file string) ([]byte, error) // reads a file beside the spec; nil: it may name none
	tables  map[string]expr.Type              // the named tables of the parameters, with the types of their keys
	byName  map[string]int                    // indexes of the features, by name
	unknown bool                              // a schema that the spec names is not known
}

// The forms of a model's name, and of the name of a feature, a table or a viewer's value.
var (
	nameRule    = regexp.MustCompile(`^[a-z][a-z0-9_]*(-[a-z0-9_]+)*$`)
	featureRule = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// specKeys are the keys of a spec.
var specKeys = []string{"name", "version", "about", "schemas", "entity", "object", "viewer", "features", "scorer", "trees", "parameters"}

// untilFull calls read, and returns its result. If read finds more than maxProblems faults,
// add panics with tooMany; untilFull then ends read and returns zero Parameters.
func (r *specReader) untilFull(read func() Parameters) (params Parameters) {
	defer func() {
		if p := recover(); p != nil && p != any(tooMany{}) {
			panic(p)
		}
	}()
	return read()
}

// readParametersAlone reads only the parameters and the scorer of a spec, for which no
// schemas need be known.
func (r *specReader) readParametersAlone() Parameters {
	r.spec = &Spec{File: r.in.name}
	var parameters *document.Node
	for _, e := range r.specFile.read() {
		switch e.key {
		case "scorer":
			r.scorer(e.value)
		case "parameters":
			parameters = e.value
		}
	}
	return r.readParameters(parameters)
}

// read reads the spec and the parameters in it.
func (r *specReader) read() Parameters {
	top := r.specFile.read()
	if top == nil {
		return Parameters{}
	}
	r.spec = &Spec{File: r.in.name}
	at := map[string]entry{}
	for _, e := range top {
		if !slices.Contains(specKeys, e.key) {
			r.add(e.at, nearest(e.key, specKeys), "a spec has no %s", e.key)
			continue
		}
		at[e.key] = e
	}
	start := top[0].at
	for _, k := range []string{"name", "version", "features", "scorer"} {
		if _, ok := at[k]; !ok {
			r.add(start, "add "+k+":", "the spec has no %s", k)
		}
	}
	r.head(at)
	r.viewer(at["viewer"].value)
	params := r.readParameters(at["parameters"].value)
	r.tables = params.tableTypes()
	r.features(at["features"].value)
	if r.spec.source.Scorer == plan.Trees {
		r.forest(&params, at["trees"])
	} else {
		if e, ok := at["trees"]; ok {
			r.add(e.at, "write scorer: trees", "there are trees, and the scorer is another")
		}
		r.weights(&params)
	}
	return params
}

// head reads all keys but viewer, features, trees and parameters.
func (r *specReader) head(at map[string]entry) {
	s := r.spec
	if e, ok := at["name"]; ok {
		if s.Name = r.text(e.value, "name"); s.Name != "" && !nameRule.MatchString(s.Name) {
			r.add(r.position(e.value), "use small letters, digits, - and _, such as home-v2", "%q is not a model's name", s.Name)
		}
	}
	if e, ok := at["version"]; ok {
		// The same rule as that of the cluster's store of versions.
		if s.Version = r.text(e.value, "version"); s.Version == "" || len(s.Version) > 100 || strings.ContainsFunc(s.Version, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }) {
			r.add(r.position(e.value), `write 1 to 100 bytes without spaces, such as "2"`, "%q is not the name of a version", s.Version)
		}
	}
	if e, ok := at["about"]; ok {
		s.About = r.text(e.value, "about")
	}
	if e, ok := at["schemas"]; ok {
		for _, n := range r.list(e.value, "schemas") {
			s.Schemas = append(s.Schemas, r.schema(n))
		}
	}
	if e, ok := at["entity"]; ok {
		s.Entity = r.schema(e.value)
	}
	if e, ok := at["object"]; ok {
		s.Object = r.schema(e.value)
	}
	if e, ok := at["scorer"]; ok {
		r.scorer(e.value)
	}
}

// schemaWayOut says what to do about an unknown schema. It is for a user of a command,
// which reads schemas from files, and for one whose index nodes refuse a model.
const schemaWayOut = "; to a command give the .avsc files of others by --schema, to a cluster by millrace schema define"

func (r *specReader) schema(n *document.Node) string {
	name := r.text(n, "a schema")
	if known := r.schemas.names(); !slices.Contains(known, name) && name != "" {
		r.unknown = true
		r.add(r.position(n), nearest(name, known)+schemaWayOut, "no schema %s", name)
	}
	return name
}

func (r *specReader) scorer(n *document.Node) {
	scorers := map[string]plan.Scorer{"linear": plan.Linear, "logistic": plan.Logistic, "trees": plan.Trees}
	name := r.text(n, "scorer")
	s, ok := scorers[name]
	if !ok {
		r.add(r.position(n), nearest(name, slices.Sorted(maps.Keys(scorers))), "no scorer %q", name)
	}
	r.spec.source.Scorer = s
}

// viewerKinds has the kind of value for each word that declares the type of a viewer's
// value.
var viewerKinds = map[string]plan.Kind{
	"bool": plan.Bool, "double": plan.Number, "string": plan.String,
	"list(double)": plan.Numbers, "list(string)": plan.Strings,
}

// ViewerValues returns the viewer's values that a spec declares, by name, each with the
// word for its type that refusals use. A request with a value of another type is refused.
// The schemas of the spec need not be known.
func (t SpecText) ViewerValues() (map[string]string, error) {
	r := t.reader(nil)
	r.untilFull(func() (none Parameters) {
		r.spec = &Spec{File: r.in.name}
		for _, e := range r.specFile.read() {
			if e.key == "viewer" {
				r.viewer(e.value)
			}
		}
		return none
	})
	return viewerValuesOf(r.spec), r.err()
}

// ViewerValues returns the viewer's values that the model's spec declares; see
// [SpecText.ViewerValues].
func (m *Model) ViewerValues() map[string]string { return viewerValuesOf(m.spec) }

// viewerValuesOf returns the viewer's values that a spec declares, with the words for their
// types.
func viewerValuesOf(s *Spec) map[string]string {
	all := map[string]string{}
	for _, v := range s.source.Viewer {
		if v.Name != "id" { // every viewer may have an id, and it is not declared
			all[v.Name] = v.Kind.String()
		}
	}
	return all
}

func (r *specReader) viewer(n *document.Node) {
	vars := []plan.Var{{Name: "id", Kind: plan.String}}
	for _, e := range r.mapping(n, "viewer") {
		if e.key == "id" {
			r.add(e.at, "remove it", "viewer.id is always there")
			continue
		}
		if !featureRule.MatchString(e.key) {
			r.add(e.at, "use letters, digits and _", "%q is not a name", e.key)
			continue
		}
		text := r.text(e.value, "a type")
		kind, ok := viewerKinds[text]
		if !ok {
			r.add(r.position(e.value), nearest(text, slices.Sorted(maps.Keys(viewerKinds))), "no type %q", text)
			continue
		}
		vars = append(vars, plan.Var{Name: e.key, Kind: kind})
	}
	slices.SortFunc(vars, func(a, b plan.Var) int { return strings.Compare(a.Name, b.Name) })
	r.spec.source.Viewer = vars
}

func (r *specReader) features(n *document.Node) {
	env := r.env()
	r.byName = map[string]int{}
	entries := r.mapping(n, "features")
	if n != nil && len(entries) == 0 {
		r.add(r.position(n), "add a feature, such as recency: record.time", "there are no features")
	}
	if len(entries) > maxFeatures {
		r.add(entries[maxFeatures].at, "", "there are %d features; a model has at most %d", len(entries), maxFeatures)
		return
	}
	for _, e := range entries {
		if !featureRule.MatchString(e.key) {
			r.add(e.at, "use letters, digits and _", "%q is not a feature's name", e.key)
			continue
		}
		src := r.text(e.value, "a feature")
		r.byName[e.key] = len(r.spec.Features)
		f := Feature{Name: e.key, Source: src, Line: r.position(e.value).line, at: e.at}
		f.Tree = r.expression(e.value, src, env)
		r.spec.Features = append(r.spec.Features, f)
		r.spec.source.Features = append(r.spec.source.Features, plan.Feature{Name: f.Name, Expr: f.Tree})
	}
}

// roles are the fields that every record has, whatever its schema calls them: a schema
// says which of its fields has which role.
var roles = []column.Field{
	{Name: "id", Kind: column.String}, {Name: "entity", Kind: column.String}, {Name: "type", Kind: column.String},
	{Name: "time", Kind: column.Time}, {Name: "version", Kind: column.Int, Nullable: true},
	{Name: "object", Kind: column.String, Nullable: true},
}

// env returns what the spec's expressions may refer to: the fields of its schemas, and
// each role under its own name, unless a schema has a field of that name.
func (r *specReader) env() expr.Env {
	env := expr.Env{Mode: expr.Model, Viewer: map[string]expr.Type{}, Tables: r.tables}
	s := r.spec
	s.source.Roles = map[string]bool{}
	for _, name := range s.Schemas {
		if l := r.schemas[name].Layout; l != nil {
			env.Record = append(env.Record, l)
		}
	}
	var extra []column.Field
	for _, f := range roles {
		if !slices.ContainsFunc(env.Record, func(l *column.Layout) bool { return l.Index(f.Name) >= 0 }) {
			extra = append(extra, f)
			s.source.Roles[f.Name] = true
		}
	}
	if l, err := column.NewLayout(extra); err == nil {
		env.Record = append(env.Record, l)
	}
	if l := r.schemas[s.Entity].Layout; l != nil {
		env.Entity = []*column.Layout{l}
	}
	if l := r.schemas[s.Object].Layout; l != nil {
		env.Object = []*column.Layout{l}
	}
	types := map[plan.Kind]expr.Type{
		plan.Bool: expr.Bool, plan.Number: expr.Double, plan.String: expr.String,
		plan.Numbers: expr.Doubles, plan.Strings: expr.Strings,
	}
	for _, v := range s.source.Viewer {
		env.Viewer[v.Name] = types[v.Kind]
	}
	return env
}

// expression parses a feature's source; nil after a fault.
func (r *specReader) expression(n *document.Node, src string, env expr.Env) *expr.Node {
	if r.unknown { // then the fields are not known either
		return nil
	}
	if src == "" && n.Kind != document.String { // it is no text, which is a fault that is noted already
		return nil
	}
	tree, err := expr.Parse(src, env)
	if err == nil {
		r.literals(tree)
		return tree
	}
	var faults *expr.Error
	if !errors.As(err, &faults) {
		r.add(r.position(n), "", "%v", err)
		return nil
	}
	places := r.places(n, src)
	for _, p := range faults.Problems {
		r.add(places[offset(src, p.Line, p.Col)], r.suggestion(p), "%s", p.Message)
	}
	return nil
}

// suggestion returns what to do about a fault of an expression. If the expression reads
// features whose schema the spec does not name, the suggestion is to name that schema.
func (r *specReader) suggestion(p expr.Problem) string {
	for root, schema := range map[string]string{"entity": r.spec.Entity, "object": r.spec.Object} {
		if schema == "" && strings.HasSuffix(p.Message, " in "+root) {
			return "say which features the spec reads, such as " + root + ": millrace.Features"
		}
	}
	return p.Suggestion
}

// offset returns the index, in characters, of a line and a column of text, both from 1.
func offset(text string, line, col int) int {
	i := 0
	runes := []rune(text)
	for ; line > 1 && i < len(runes); i++ {
		if runes[i] == '\n' {
			line--
		}
	}
	return min(i+max(col-1, 0), len(runes))
}

// literals adds the tables that are written in an expression to the spec, each once.
func (r *specReader) literals(n *expr.Node) {
	if m, ok := n.Value.(*expr.MapValue); ok {
		name := plan.LiteralTable(n)
		if !slices.ContainsFunc(r.spec.tables, func(l literal) bool { return l.name == name }) {
			r.spec.tables = append(r.spec.tables, literal{name, m})
		}
	}
	for _, a := range n.Args {
		r.literals(a)
	}
}

// featureKind returns the kind of value of a feature whose expression has type t. It
// fails for a type that a feature cannot have, such as a list.
func featureKind(t expr.Type) (plan.Kind, error) {
	switch t {
	case expr.Double, expr.Int, expr.Time, expr.Duration, expr.Bool:
		return plan.Number, nil
	case expr.String:
		return plan.String, nil
	}
	return 0, fmt.Errorf("a feature is a number, a boolean or a string, and this is a %s", t)
}

// RoleLayout returns the layout of the fields that every record has by role, for a spec
// that names no schema.
func RoleLayout() *column.Layout {
	fields := slices.Clone(roles)
	for i := range fields {
		fields[i].Role = fields[i].Name
	}
	l, err := column.NewLayout(fields)
	if err != nil {
		panic(err)
	}
	return l
}

// FeatureType is a feature's name and the type of its value.
type FeatureType struct {
	Name string `json:"name"`
	Type string `json:"type"` // "number" or "string"
}

// FeatureTypes returns the features of the spec with their types, in order. The caller
// must not change them.
func (m *Model) FeatureTypes() []FeatureType { return m.spec.types }

// featureTypes returns the types of features, in their order.
func featureTypes(features []Feature) (all []FeatureType) {
	for _, f := range features {
		kind, err := featureKind(f.Tree.Type)
		if err != nil {
			continue // refused when the spec was read
		}
		all = append(all, FeatureType{f.Name, kind.String()})
	}
	return all
}
