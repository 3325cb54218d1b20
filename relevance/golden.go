package relevance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/schemas"
)

// The rules of golden rows.
const (
	goldenTolerance  = 1e-9   // of a score or feature, or of its share of a large one
	singleTolerance  = 2.5e-7 // of a score that was computed in float32: two units in its last place
	minGoldenRows    = 1      // of a model
	minGoldenTrained = 100    // of a model with trees
	maxGoldenRows    = 10_000
	maxGoldenLine    = 1 << 20
	maxGoldenBytes   = 4 << 20
)

// Golden is a row of golden.ndjson: features and the score that they should
// give. A missing number is null or left out. In a row that has a record, the
// features are what the spec's expressions should make of it.
type Golden struct {
	Features map[string]any `json:"features,omitempty"`
	Score    *float64       `json:"score,omitempty"`

	// Record is a record as millrace load takes it; fields of a record within may
	// be written by dotted names too. What is left out has the schema's default,
	// or else is 0, false, or empty.
	Record map[string]any `json:"record,omitempty"`
	Schema string         `json:"schema,omitempty"` // of the record: a name, or NAME@FINGERPRINT; the spec's first if left out
	Entity map[string]any `json:"entity,omitempty"` // the features of its entity; nothing is known if left out
	Object map[string]any `json:"object,omitempty"` // the features of what it is about, likewise
	Viewer map[string]any `json:"viewer,omitempty"` // id and attributes
	AsOf   any            `json:"as_of,omitempty"`  // the instant; the record's time if left out
}

// GoldenRows reads golden.ndjson.
func (p *Pack) GoldenRows() ([]Golden, error) { return ReadGolden(GoldenFile, p.files[GoldenFile]) }

// ReadGolden reads rows, a line each.
func ReadGolden(file string, text []byte) (rows []Golden, err error) {
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
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&row); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// golden holds the model against its golden rows and reports the first of each
// kind of fault.
func (p *Pack) golden(m *Model, schemas Schemas) error {
	rows, err := p.GoldenRows()
	if err != nil {
		return err
	}
	least := minGoldenRows
	if m.params.Forest != nil {
		least = minGoldenTrained
	}
	if len(rows) < least {
		return fmt.Errorf("%s has %d rows; %d are needed", GoldenFile, len(rows), least)
	}
	then, err := schemas.as(p.Manifest.Schemas)
	if err != nil {
		return err
	}
	return errors.Join(m.goldenScores(rows), m.goldenRecords(rows, then))
}

// goldenScores holds the scores of features as they are given.
func (m *Model) goldenScores(rows []Golden) error {
	tolerance := m.scoreTolerance()
	wrong, worst, at := 0, 0.0, 0
	for i, row := range rows {
		if row.Score == nil {
			return fmt.Errorf("%s:%d: no score", GoldenFile, i+1)
		}
		values, err := m.featureValues(row.Features)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", GoldenFile, i+1, err)
		}
		got := m.ScoreFeatures(values)
		if math.IsNaN(got) || math.IsInf(got, 0) {
			return fmt.Errorf("%s:%d: the score is %v", GoldenFile, i+1, got)
		}
		o := off(got, *row.Score)
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

func (m *Model) scoreTolerance() float64 {
	if f := m.params.Forest; f != nil && f.Single() {
		return singleTolerance
	}
	return goldenTolerance
}

// off is how far a number is from what it should be, as a share of a large one.
func off(got, want float64) float64 { return math.Abs(got-want) / max(1, math.Abs(want)) }

// goldenRecords holds what the expressions make of the records of rows. Every
// feature must have a value in one of them, or nothing has tested its
// expression.
func (m *Model) goldenRecords(rows []Golden, schemas Schemas) error {
	tested := map[string]bool{}
	for i, row := range rows {
		if row.Record == nil {
			continue
		}
		got, err := m.explainGolden(&row, schemas)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", GoldenFile, i+1, err)
		}
		want, err := m.featureValues(row.Features)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", GoldenFile, i+1, err)
		}
		for at, f := range got.Features {
			if !sameFeature(f.Value, want[at]) {
				return fmt.Errorf("%s:%d: feature %s is %s, and the row says %s: its expression is %s", GoldenFile, i+1, f.Name, featureText(f.Value), featureText(want[at]), m.spec.Features[at].Source)
			}
			tested[f.Name] = tested[f.Name] || hasValue(f.Value)
		}
		if row.Score != nil && !(off(got.Score, *row.Score) <= m.scoreTolerance()) {
			return fmt.Errorf("%s:%d: the record scores %v, and the row says %v", GoldenFile, i+1, got.Score, *row.Score)
		}
	}
	var untested []string
	for _, f := range m.spec.Features {
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

// sameFeature compares a feature with what a row says; missing is missing.
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

// Complete fills in the features and the score that the model gives a row with
// a record: for somebody who knows what they should be to check.
func (m *Model) Complete(row *Golden, schemas Schemas) error {
	got, err := m.explainGolden(row, schemas)
	if err != nil {
		return err
	}
	row.Features = map[string]any{}
	for _, f := range got.Features {
		if x, ok := f.Value.(float64); ok && !hasValue(x) {
			if math.IsInf(x, 0) {
				return m.infinite(f)
			}
			row.Features[f.Name] = nil
			continue
		}
		row.Features[f.Name] = f.Value
	}
	if row.Score = &got.Score; !hasValue(got.Score) {
		return fmt.Errorf("the score is %v", got.Score)
	}
	return nil
}

// Vector returns what the spec's expressions make of a row's record, in the
// order of [Model.FeatureTypes]: float64, NaN where there is no value, or
// string.
func (m *Model) Vector(row *Golden, schemas Schemas) ([]any, error) {
	got, err := m.explainGolden(row, schemas)
	if err != nil {
		return nil, err
	}
	values := make([]any, len(got.Features))
	for i, f := range got.Features {
		if x, ok := f.Value.(float64); ok && math.IsInf(x, 0) {
			return nil, m.infinite(f)
		}
		values[i] = f.Value
	}
	return values, nil
}

func (m *Model) infinite(f Explained) error {
	return fmt.Errorf("feature %s is %v: its expression is %s", f.Name, f.Value, m.featureSource(f.Name))
}

func (m *Model) featureSource(name string) string {
	i := slices.IndexFunc(m.spec.Features, func(f Feature) bool { return f.Name == name })
	return m.spec.Features[i].Source
}

// explainGolden scores a row's record. Features are in the order of the spec, and
// have no contributions of trees, which for a hundred rows of a large forest take
// longer than all the rest.
func (m *Model) explainGolden(row *Golden, schemas Schemas) (e Explanation, err error) {
	if row.Record == nil {
		return e, errors.New("the row has no record")
	}
	records, writer, err := m.goldenSchema(row.Schema, schemas)
	if err != nil {
		return e, err
	}
	rows, err := records.golden(writer, row.Record, "record")
	if err != nil {
		return e, err
	}
	layout := rows.Layout()
	asOf := millrace.Time(0)
	if at := layout.Time(); at >= 0 {
		asOf = millrace.Time(int64(rows.Word(at, 0)))
	}
	if row.AsOf != nil {
		t, err := goldenTime(row.AsOf)
		if err != nil {
			return e, fmt.Errorf("as_of: %w", err)
		}
		asOf = t
	}
	entityLayout := schemas[m.spec.Entity].Layout
	var entity *column.Slab
	if row.Entity != nil {
		if entityLayout == nil {
			return e, errors.New("entity: the spec names no schema of the entity's features")
		}
		if entity, err = schemas[m.spec.Entity].golden("", row.Entity, "entity"); err != nil {
			return e, err
		}
	}
	viewer, err := goldenViewer(row.Viewer)
	if err != nil {
		return e, err
	}
	s, err := m.Interpreted().Bind(rows.Layout(), entityLayout, viewer, asOf)
	if err != nil {
		return e, err
	}
	if err := m.goldenObject(s, row.Object, schemas); err != nil {
		return e, err
	}
	e, _ = s.Features(rows, 0, entity)
	return m.inOrder(e), nil
}

// inOrder puts features into the order of the spec.
func (m *Model) inOrder(e Explanation) Explanation {
	at := map[string]int{}
	for i, f := range m.spec.Features {
		at[f.Name] = i
	}
	slices.SortFunc(e.Features, func(a, b Explained) int { return at[a.Name] - at[b.Name] })
	return e
}

// goldenSchema returns what a row's schema names, and the fingerprint of the one
// that wrote the record, or "".
func (m *Model) goldenSchema(of string, all Schemas) (known Records, writer string, err error) {
	name, writer, _ := strings.Cut(of, "@")
	switch {
	case name == "" && len(m.spec.Schemas) == 0:
		return Records{Layout: RoleLayout()}, writer, nil
	case name == "":
		name = m.spec.Schemas[0]
	}
	if known = all[name]; known.Layout == nil {
		return known, writer, fmt.Errorf("no schema %s", name)
	}
	return known, writer, nil
}

// golden is one row of values by field, as what serves reads it: written under
// a schema of the family, and read in the columns of all of them. Where writer,
// a fingerprint, is "", that is the newest schema that has the fields.
func (r Records) golden(writer string, values map[string]any, what string) (*column.Slab, error) {
	if r.Family == nil {
		flat, err := flattened(r.Layout, values, what)
		if err != nil {
			return nil, err
		}
		return goldenSlab(r.Layout, flat, what)
	}
	s, flat, err := r.written(writer, values, what)
	if err != nil {
		return nil, err
	}
	own, err := goldenSlab(s.Layout(), flat, what)
	if err != nil || s.Layout() == r.Layout {
		return own, err
	}
	return r.Family.Reread(s, own, flat)
}

// written finds the schema of a row, and its values by column.
func (r Records) written(writer string, values map[string]any, what string) (_ *schemas.Schema, flat map[string]any, err error) {
	err = fmt.Errorf("schema: no schema %s@%s; %s has %s", r.Family.Name(), writer, r.Family.Name(), r.prints())
	newest := true
	for _, s := range slices.Backward(r.Family.Schemas()) {
		if writer != "" && writer != s.Fingerprint().String() {
			continue
		}
		flat, fault := flattened(s.Layout(), values, what)
		if fault == nil {
			return s, flat, nil
		}
		if newest {
			err, newest = fault, false
		}
	}
	return nil, nil, err
}

func (m *Model) goldenObject(s *Scorer, values map[string]any, schemas Schemas) error {
	if values == nil {
		return nil
	}
	known := schemas[m.spec.Object]
	if known.Layout == nil || s.ObjectLayout() == nil {
		return errors.New("object: the spec reads no features of what records are about")
	}
	features, err := known.golden("", values, "object")
	if err != nil {
		return err
	}
	objects := NewObjects(s.ObjectLayout())
	if err := objects.Add(features, 0); err != nil {
		return err
	}
	s.SetObjects(objects.Slab())
	return nil
}

// goldenSlab is one row of values by column. Fields that no value is given for
// have the schema's defaults.
func goldenSlab(l *column.Layout, flat map[string]any, what string) (*column.Slab, error) {
	a := column.New(l, 1, 0).Append()
	r := a.Begin()
	for i, f := range l.Fields() {
		v, given := flat[f.Name]
		switch {
		case given:
			if err := goldenValue(&r, i, f, v); err != nil {
				return nil, fmt.Errorf("%s.%s: %w", what, f.Name, err)
			}
		case l.Blank() != nil:
			r.Set(i, l.Blank(), 0)
		}
	}
	if err := a.End(r); err != nil {
		return nil, err
	}
	return a.Slab(), nil
}

// flattened returns the values of fields by dotted name, out of records within
// records, those without a column too. It names every field that there is not.
func flattened(l *column.Layout, values map[string]any, what string) (map[string]any, error) {
	var known []string
	for _, f := range l.Fields() {
		if !strings.HasPrefix(f.Name, "$") {
			known = append(known, f.Name)
		}
	}
	within := func(path string) bool {
		return slices.ContainsFunc(known, func(name string) bool { return strings.HasPrefix(name, path+".") })
	}
	flat := map[string]any{}
	var faults []error
	var walk func(path string, v any)
	walk = func(path string, v any) {
		object, _ := v.(map[string]any)
		switch {
		case slices.Contains(known, path), slices.Contains(l.Carried(), path):
			flat[path] = v
		case object != nil && within(path):
			for _, name := range slices.Sorted(maps.Keys(object)) {
				walk(path+"."+name, object[name])
			}
		case v == nil && within(path):
			for _, name := range known {
				if strings.HasPrefix(name, path+".") {
					flat[name] = nil
				}
			}
		default:
			faults = append(faults, fmt.Errorf("no field %s in %s; %s", path, what, nearest(path, known)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		walk(name, values[name])
	}
	return flat, errors.Join(faults...)
}

func goldenValue(r *column.Row, i int, f column.Field, v any) error {
	wrong := fmt.Errorf("it is a %s, and here is %v", f.Kind, v)
	if v == nil {
		if !f.Nullable {
			return errors.New("it is never null")
		}
		r.SetNull(i)
		return nil
	}
	switch f.Kind {
	case column.Time:
		t, err := goldenTime(v)
		if err != nil {
			return err
		}
		r.SetInt(i, int64(t))
	case column.Bool:
		x, ok := v.(bool)
		if !ok {
			return wrong
		}
		r.SetBool(i, x)
	case column.Int, column.Double:
		x, ok := v.(float64)
		if text, is := v.(string); is && f.Kind == column.Int { // how answers write long ones
			whole, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return wrong
			}
			r.SetInt(i, whole)
			return nil
		}
		if !ok || f.Kind == column.Int && (x != math.Trunc(x) || math.Abs(x) > 1<<53) {
			return wrong
		}
		if f.Kind == column.Int {
			r.SetInt(i, int64(x))
		} else {
			r.SetDouble(i, x)
		}
	case column.String:
		x, ok := v.(string)
		if !ok {
			return wrong
		}
		r.SetString(i, []byte(x))
	case column.Doubles, column.Strings:
		numbers, texts, ok := goldenList(v)
		switch {
		case !ok || f.Kind == column.Doubles && texts != nil || f.Kind == column.Strings && numbers != nil:
			return wrong
		case numbers != nil:
			r.SetDoubles(i, numbers)
		case texts != nil:
			r.SetStrings(i, texts)
		}
	}
	return nil
}

// goldenList reads a list of numbers or of texts; an empty one is neither.
func goldenList(v any) (numbers []float64, texts []string, ok bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, nil, false
	}
	for _, x := range list {
		switch x := x.(type) {
		case float64:
			numbers = append(numbers, x)
		case string:
			texts = append(texts, x)
		}
	}
	return numbers, texts, len(numbers) == len(list) || len(texts) == len(list)
}

func goldenTime(v any) (millrace.Time, error) {
	switch x := v.(type) {
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return millrace.Time(int64(x)), nil
		}
	case string:
		if t, err := time.Parse(time.RFC3339, x); err == nil {
			return millrace.TimeOf(t), nil
		}
	}
	return 0, fmt.Errorf("%v is no time; write RFC 3339, such as 2026-01-02T15:04:05Z, or milliseconds", v)
}

func goldenViewer(values map[string]any) (*millrace.Viewer, error) {
	v := &millrace.Viewer{Attributes: map[string]any{}}
	for name, x := range values {
		if list, ok := x.([]any); ok {
			numbers, texts, ok := goldenList(list)
			switch {
			case !ok:
				return nil, fmt.Errorf("viewer.%s: a list is of numbers or of texts", name)
			case numbers != nil:
				x = numbers
			default:
				x = texts
			}
		}
		if name == "id" {
			id, ok := x.(string)
			if !ok {
				return nil, errors.New("viewer.id: it is a text")
			}
			v.ID = id
			continue
		}
		v.Attributes[name] = x
	}
	return v, nil
}

// featureValues puts named features into the order of the spec.
func (m *Model) featureValues(named map[string]any) ([]any, error) {
	var names []string
	values := make([]any, len(m.spec.Features))
	found := 0
	for i, t := range m.FeatureTypes() {
		names = append(names, t.Name)
		v, ok := named[t.Name]
		if ok {
			found++
		}
		switch v := asNumber(v).(type) {
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
		for name := range named {
			if !slices.Contains(names, name) {
				return nil, fmt.Errorf("the spec has no feature %s; %s", name, nearest(name, names))
			}
		}
	}
	return values, nil
}
