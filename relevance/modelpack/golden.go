package modelpack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/schemas"
)

// The rules of golden rows.
const (
	goldenTolerance  = 1e-9   // by how much a score or feature may differ, see off
	singleTolerance  = 2.5e-7 // the same for a score that was computed in float32: two units in its last place
	minGoldenRows    = 1      // of a model
	minGoldenTrained = 100    // of a model with trees
	maxGoldenRows    = 10_000
	maxGoldenLine    = 1 << 20 // bytes
	maxGoldenBytes   = 4 << 20 // of the file
)

// Golden is a row of golden.ndjson: features and the score that they should
// give. A missing number is null or left out. In a row that has a record, the
// features are what the spec's expressions should make of it.
type Golden struct {
	Features map[string]any `json:"features,omitempty"`
	Score    *float64       `json:"score,omitempty"`

	// Record is a record as millrace load takes it; fields of a nested record may
	// also be written by dotted names. A field that is left out has the schema's
	// default, or else is 0, false, or empty.
	Record Values         `json:"record,omitempty"`
	Schema string         `json:"schema,omitempty"` // of the record: a name, or NAME@FINGERPRINT; the spec's first if left out
	Entity Values         `json:"entity,omitempty"` // the features of the record's entity; none are known if left out
	Object Values         `json:"object,omitempty"` // the features of the record's object; none are known if left out
	Viewer map[string]any `json:"viewer,omitempty"` // id and attributes
	AsOf   any            `json:"as_of,omitempty"`  // the instant; the record's time if left out
}

// Values are fields of a record, as JSON writes them. A number is a
// [json.Number], since the schema decides how exactly it is read.
type Values map[string]any

// UnmarshalJSON reads an object.
func (v *Values) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode((*map[string]any)(v))
}

// GoldenRows reads golden.ndjson.
func (p *Pack) GoldenRows() ([]Golden, error) {
	return readGolden(GoldenFile, p.files[GoldenFile], (*Golden).read)
}

// ReadGolden reads rows, a line each, as [Golden.Read] does. file is its name in errors.
func ReadGolden(file string, text []byte) (rows []Golden, err error) {
	return readGolden(file, text, (*Golden).Read)
}

// Read reads a row. It refuses JSON that could be understood in two ways, and a viewer with
// what cannot be an attribute. The rows of a sealed pack are not checked for that, since
// earlier versions sealed packs without it.
func (g *Golden) Read(line []byte) error {
	if err := schemas.CheckJSON(line); err != nil {
		return err
	}
	if err := g.read(line); err != nil {
		return err
	}
	return g.CheckViewer()
}

// CheckViewer refuses a viewer with an attribute that is an object. A request to a broker
// has its attributes in such an object, and a row does not.
func (g *Golden) CheckViewer() error {
	for _, name := range slices.Sorted(maps.Keys(g.Viewer)) {
		if _, is := g.Viewer[name].(map[string]any); is {
			return fmt.Errorf(`viewer.%s is an object, and no attribute is; write attributes beside id: {"id": "member:1", "country": "de"}`, name)
		}
	}
	return nil
}

func (g *Golden) read(line []byte) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	return d.Decode(g)
}

func readGolden(file string, text []byte, read func(*Golden, []byte) error) (rows []Golden, err error) {
	if len(text) > maxGoldenBytes {
		return nil, fmt.Errorf("%s: %d bytes, more than %d; keep fewer rows", file, len(text), maxGoldenBytes)
	}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if len(line) > maxGoldenLine || len(rows) == maxGoldenRows {
			return nil, fmt.Errorf("%s:%d: a line of over %d bytes, or more than %d rows", file, n, maxGoldenLine, maxGoldenRows)
		}
		var row Golden
		if err := read(&row, line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// golden compares what the model gives with its golden rows, and returns the first fault
// of each kind. A row with a record may be read in any of the ways as. It also returns
// the rows.
func (p *Pack) golden(m *relevance.Model, schemas relevance.Schemas, as []reading) (rows []Golden, err error) {
	rows, err = p.GoldenRows()
	if err != nil {
		return nil, err
	}
	least := minGoldenRows
	if m.Parameters().Forest != nil {
		least = minGoldenTrained
	}
	if len(rows) < least {
		return nil, fmt.Errorf("%s has %d rows; %d are needed", GoldenFile, len(rows), least)
	}
	if err := affordableRows(m, len(rows), len(p.files[GoldenFile])); err != nil {
		return nil, err
	}
	then, err := atSeal(schemas, p.Manifest.Schemas)
	if err != nil {
		return nil, err
	}
	return rows, errors.Join(goldenScores(m, rows), goldenRecords(m, rows, then, as))
}

// maxViewers is how many viewers of golden rows are kept at most.
const maxViewers = 3

// viewersOf returns the first different viewers of golden rows.
func viewersOf(rows []Golden) (all []map[string]any) {
	for i := range rows {
		if v := rows[i].Viewer; v != nil && len(all) < maxViewers && !slices.ContainsFunc(all, func(w map[string]any) bool { return reflect.DeepEqual(v, w) }) {
			all = append(all, v)
		}
	}
	return all
}

// goldenScores returns an error if a row's features do not give its score.
func goldenScores(m *relevance.Model, rows []Golden) error {
	tolerance := scoreTolerance(m)
	records := make([][]any, len(rows))
	for i, row := range rows {
		if row.Score == nil {
			return fmt.Errorf("%s:%d: no score: write the number that the library gives, or let millrace model golden complete the row", GoldenFile, i+1)
		}
		var err error
		if records[i], err = featureValues(m, row.Features); err != nil {
			return fmt.Errorf("%s:%d: %w", GoldenFile, i+1, err)
		}
	}
	wrong, worst, at := 0, 0.0, 0
	for i, got := range m.ScoreFeatures(records...) {
		if math.IsNaN(got) || math.IsInf(got, 0) {
			return fmt.Errorf("%s:%d: the score is %v", GoldenFile, i+1, got)
		}
		o := off(got, *rows[i].Score)
		if o > tolerance {
			wrong++
		}
		if o > worst {
			worst, at = o, i+1
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d golden rows are off; the worst, %s:%d, by %.3g, and %.3g is allowed", wrong, len(rows), GoldenFile, at, worst, tolerance)
	}
	return nil
}

// scoreTolerance returns by how much a score of the model may differ, see off.
func scoreTolerance(m *relevance.Model) float64 {
	if f := m.Parameters().Forest; f != nil && f.Single() {
		return singleTolerance
	}
	return goldenTolerance
}

// off returns how far a number is from what it should be: the difference, divided by want
// if that is larger than 1.
func off(got, want float64) float64 { return math.Abs(got-want) / max(1, math.Abs(want)) }

// goldenRecords returns an error if the expressions do not make a row's features of its
// record. Every feature must have a value in one of the rows with a record, or nothing has
// tested its expression.
func goldenRecords(m *relevance.Model, rows []Golden, schemas relevance.Schemas, as []reading) error {
	tested, x := map[string]bool{}, newExplainer(m)
	for i, row := range rows {
		if row.Record == nil {
			continue
		}
		var fault error
		for _, as := range as {
			err := x.goldenRecord(&row, schemas, as, tested)
			if err == nil {
				fault = nil
				break
			}
			fault = cmp.Or(fault, err)
		}
		if fault != nil {
			return fmt.Errorf("%s:%d: %w", GoldenFile, i+1, fault)
		}
	}
	var untested []string
	for _, f := range m.Spec().Features {
		if !tested[f.Name] {
			untested = append(untested, f.Name)
		}
	}
	switch {
	case len(untested) == 0:
		return nil
	case len(tested) == 0:
		return fmt.Errorf("%s: no row has a record, so that nothing tests the expressions; add rows with record, viewer and as_of beside the features (millrace model golden writes them out)", GoldenFile)
	}
	return fmt.Errorf("%s: no row with a record gives a value to %s; mend the expression, or add a row where it has one", GoldenFile, strings.Join(untested[:min(len(untested), 10)], ", "))
}

// goldenRecord does this for one row, and sets tested for the features that have a value.
func (x *explainer) goldenRecord(row *Golden, schemas relevance.Schemas, as reading, tested map[string]bool) error {
	got, err := x.explain(row, schemas, as)
	if err != nil {
		return err
	}
	want, err := featureValues(x.Model, row.Features)
	if err != nil {
		return err
	}
	for at, f := range got.Features {
		if !sameFeature(f.Value, want[at]) {
			of := &x.Spec().Features[at]
			fault := fmt.Errorf("feature %s is %s, and the row says %s: its expression is %s", f.Name, featureText(f.Value), featureText(want[at]), of.Source)
			if row.AsOf == nil && readsInstant(of.Tree) {
				fault = fmt.Errorf("%w; the row has no as_of, so that it is as of the record's own time", fault)
			}
			return x.taken(row, schemas, fault)
		}
	}
	if row.Score != nil && !(off(got.Score, *row.Score) <= scoreTolerance(x.Model)) {
		return fmt.Errorf("the record scores %v, and the row says %v", got.Score, *row.Score)
	}
	for _, f := range got.Features {
		tested[f.Name] = tested[f.Name] || hasValue(f.Value)
	}
	return nil
}

// readsInstant reports whether an expression reads the instant of the question.
func readsInstant(n *expr.Node) bool {
	return n.Op == expr.AsOf || n.Op == expr.Call && (n.Name == "age" || n.Name == "decay") || slices.ContainsFunc(n.Args, readsInstant)
}

// sameFeature reports whether a feature is what a row says. Two missing numbers, NaN, are
// the same.
func sameFeature(got, want any) bool {
	x, number := got.(float64)
	y, alike := want.(float64)
	if !number || !alike {
		return got == want
	}
	if math.IsNaN(x) || math.IsNaN(y) {
		return math.IsNaN(x) && math.IsNaN(y)
	}
	return x == y || off(x, y) <= goldenTolerance
}

// hasValue reports whether a feature is a finite number, or a text that is not empty.
func hasValue(v any) bool {
	if x, ok := v.(float64); ok {
		return !math.IsNaN(x) && !math.IsInf(x, 0)
	}
	return v != ""
}

func featureText(v any) string {
	switch x := v.(type) {
	case string:
		return fmt.Sprintf("%q", x)
	case float64:
		if math.IsNaN(x) {
			return "missing"
		}
	}
	return fmt.Sprint(v)
}

// Complete fills in the features and the score that a model gives a row with a record, for
// a person to check. Features or a score that the row has stay: they may come from the
// library that trained the model. It fails if the score is no finite number.
func (g *Golden) Complete(m *relevance.Model, schemas relevance.Schemas) error {
	if g.Features != nil && g.Score != nil {
		return nil
	}
	got, err := newExplainer(m).explain(g, schemas, typed)
	if err != nil {
		return err
	}
	if g.Features == nil { // a feature that is left out of others is a missing value
		if g.Features, err = written(m, got); err != nil {
			return err
		}
	}
	if g.Score == nil {
		g.Score = &got.Score
	}
	if !hasValue(*g.Score) {
		return fmt.Errorf("the score is %v%s", *g.Score, noNumber(got.Features))
	}
	return nil
}

// noNumber returns in words which features are no finite number, the first ten; empty if
// none is.
func noNumber(of []relevance.Explained) string {
	var names []string
	for _, f := range of {
		if x, ok := f.Value.(float64); ok && !hasValue(x) {
			names = append(names, fmt.Sprintf("%s is %s", f.Name, featureText(x)))
		}
	}
	if len(names) == 0 {
		return ""
	}
	more := ""
	if n := len(names) - 10; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return ": feature " + strings.Join(names[:min(len(names), 10)], ", ") + more
}

// written returns the features of a row as JSON has them: null for a missing number. It
// fails for one that is infinite.
func written(m *relevance.Model, of relevance.Explanation) (map[string]any, error) {
	features := map[string]any{}
	for _, f := range of.Features {
		if x, ok := f.Value.(float64); ok && !hasValue(x) {
			if math.IsInf(x, 0) {
				return nil, infinite(m, f)
			}
			features[f.Name] = nil
			continue
		}
		features[f.Name] = f.Value
	}
	return features, nil
}

// Vector returns what the spec's expressions make of a row's record, in the
// order of [relevance.Model.FeatureTypes]: float64, NaN where there is no value, or
// string.
func (g *Golden) Vector(m *relevance.Model, schemas relevance.Schemas) ([]any, error) {
	got, err := newExplainer(m).explain(g, schemas, typed)
	if err != nil {
		return nil, err
	}
	values := make([]any, len(got.Features))
	for i, f := range got.Features {
		if x, ok := f.Value.(float64); ok && math.IsInf(x, 0) {
			return nil, infinite(m, f)
		}
		values[i] = f.Value
	}
	return values, nil
}

func infinite(m *relevance.Model, f relevance.Explained) error {
	return fmt.Errorf("feature %s is %v: its expression is %s", f.Name, f.Value, featureSource(m, f.Name))
}

func featureSource(m *relevance.Model, name string) string {
	all := m.Spec().Features
	return all[slices.IndexFunc(all, func(f relevance.Feature) bool { return f.Name == name })].Source
}

// inOrder sorts e.Features into the order of the spec.
func inOrder(m *relevance.Model, e relevance.Explanation) relevance.Explanation {
	at := map[string]int{}
	for i, f := range m.Spec().Features {
		at[f.Name] = i
	}
	slices.SortFunc(e.Features, func(a, b relevance.Explained) int { return at[a.Name] - at[b.Name] })
	return e
}

// featureValues returns the features of a row in the order of the spec: float64, NaN if it
// is missing, or string. It fails for one of another type or that the spec does not have.
func featureValues(m *relevance.Model, named map[string]any) ([]any, error) {
	values := make([]any, len(m.Spec().Features))
	found := 0
	for i, t := range m.FeatureTypes() {
		v, ok := named[t.Name]
		if ok {
			found++
		}
		if b, ok := v.(bool); ok {
			v = compute.Bool(b)
		}
		switch v := v.(type) {
		case nil:
			values[i] = math.NaN()
			if t.Type == plan.String.String() {
				values[i] = ""
			}
		case float64, string:
			values[i] = v
		}
		if _, text := values[i].(string); values[i] == nil || text != (t.Type == plan.String.String()) {
			return nil, fmt.Errorf("feature %s is a %s, and here is %v", t.Name, t.Type, v)
		}
	}
	if found != len(named) {
		var names []string
		for _, t := range m.FeatureTypes() {
			names = append(names, t.Name)
		}
		for name := range named {
			if !slices.Contains(names, name) {
				return nil, fmt.Errorf("the spec has no feature %s; %s", name, hint.Nearest(name, names))
			}
		}
	}
	return values, nil
}

// atSeal returns the schemas as they were when a pack was sealed. sealed has the
// fingerprints of then by name; of these, schemas that are not known are left out. Names
// that are not in it stay as they are.
func atSeal(s relevance.Schemas, sealed map[string]string) (relevance.Schemas, error) {
	then := maps.Clone(s)
	for name, prints := range sealed {
		if s[name].Family == nil {
			continue
		}
		f, err := s[name].Family.Of(strings.Fields(prints))
		if err != nil {
			return nil, err
		}
		if f != nil {
			then[name] = relevance.Records{Layout: f.Layout(), Family: f}
		}
	}
	return then, nil
}

// prints returns the fingerprints of a family's schemas, with spaces between, in the order
// of admission; "" if only the layout is known.
func (r records) prints() string {
	if r.Family == nil {
		return ""
	}
	var all []string
	for _, s := range r.Family.Schemas() {
		all = append(all, s.Fingerprint().String())
	}
	return strings.Join(all, " ")
}
