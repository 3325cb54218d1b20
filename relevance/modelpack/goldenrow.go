package modelpack

import (
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
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// reading is how the values of a row become columns.
type reading bool

const (
	// typed reads them as index nodes do: they are written as Avro under the row's
	// schema, and decoded.
	typed reading = false
	// asWritten takes them as the row has them: a float has the bits of a double, an
	// int may be a long, and an enum any text. Earlier versions sealed packs by it,
	// and nodes must still take those.
	asWritten reading = true
)

// layouts are the layouts of a row's record and of the features of its entity.
type layouts struct{ rows, entity *column.Layout }

// records are the schemas of one name, by which a row's values are read.
type records struct{ relevance.Records }

// explainer explains the records of golden rows by the interpreter. It has one scorer for
// all rows of the same layouts, since planning a model costs more than running it.
type explainer struct {
	*relevance.Model
	scorers map[layouts]*relevance.Scorer
}

func newExplainer(m *relevance.Model) *explainer {
	return &explainer{m.Interpreted(), map[layouts]*relevance.Scorer{}}
}

// scorer returns the scorer for records of some layouts, bound to a viewer.
func (x *explainer) scorer(l layouts, viewer *millrace.Viewer, asOf millrace.Time) (*relevance.Scorer, error) {
	if s, ok := x.scorers[l]; ok {
		s.SetObjects(nil)
		return s, s.Rebind(viewer, asOf)
	}
	s, err := x.Bind(l.rows, l.entity, viewer, asOf)
	if err == nil {
		x.scorers[l] = s
	}
	return s, err
}

// question is what a row asks for: the score of a record for a viewer at an instant.
type question struct {
	rows    *column.Slab // the record, one row
	entity  *column.Slab // the features of its entity, one row; nil if none are known
	layouts layouts
	viewer  *millrace.Viewer
	asOf    millrace.Time
}

// question reads all of a row except for the object.
func (x *explainer) question(row *Golden, schemas relevance.Schemas, as reading) (q question, err error) {
	if row.Record == nil {
		return q, errors.New("the row has no record")
	}
	known, writer, err := x.goldenSchema(row.Schema, schemas)
	if err != nil {
		return q, err
	}
	if q.rows, err = known.golden(writer, row.Record, "record", as); err != nil {
		return q, x.whichSchema(row, err)
	}
	q.layouts = layouts{q.rows.Layout(), schemas[x.Spec().Entity].Layout}
	if at := q.rows.Layout().Time(); at >= 0 {
		q.asOf = millrace.Time(int64(q.rows.Word(at, 0)))
	}
	if row.AsOf != nil {
		if q.asOf, err = goldenTime(row.AsOf); err != nil {
			return q, fmt.Errorf("as_of: %w", err)
		}
	}
	if row.Entity != nil {
		if q.layouts.entity == nil {
			return q, errors.New("entity: the spec names no schema of the entity's features")
		}
		if q.entity, err = (records{schemas[x.Spec().Entity]}).golden("", row.Entity, "entity", as); err != nil {
			return q, err
		}
	}
	q.viewer, err = goldenViewer(row.Viewer)
	return q, err
}

// explain scores a row's record. Features are in the order of the spec. They have no
// contributions to the score of trees: for a hundred rows of a large forest these would
// take longer than all the rest.
func (x *explainer) explain(row *Golden, schemas relevance.Schemas, as reading) (e relevance.Explanation, err error) {
	q, err := x.question(row, schemas, as)
	if err != nil {
		return e, err
	}
	s, err := x.scorer(q.layouts, q.viewer, q.asOf)
	if err != nil {
		return e, err
	}
	if err := x.goldenObject(s, row.Object, schemas, as); err != nil {
		return e, err
	}
	e, _ = s.Features(q.rows, 0, q.entity)
	return inOrder(x.Model, e), nil
}

// whichSchema adds to the fault of a record under which schema it was read, if the row does
// not say so and the spec names several schemas.
func (x *explainer) whichSchema(row *Golden, fault error) error {
	all := x.Spec().Schemas
	if row.Schema != "" || len(all) < 2 {
		return fault
	}
	return fmt.Errorf("%w\nthe row names no schema, so that its record is of %s, the first that the spec names: a record of another says so, as \"schema\": %q", fault, all[0], all[1])
}

// taken adds to the fault of a record by which schema of its name it was read, if the row
// does not say so and there are several.
func (x *explainer) taken(row *Golden, all relevance.Schemas, fault error) error {
	known, writer, err := x.goldenSchema(row.Schema, all)
	if err != nil || writer != "" || known.Family == nil || len(known.Family.Schemas()) < 2 {
		return fault
	}
	s, _, err := known.written("", row.Record, "record")
	if err != nil {
		return fault
	}
	var others []string
	for _, o := range known.Family.Schemas() {
		if o != s {
			others = append(others, fmt.Sprintf("%s@%s", known.Family.Name(), o.Fingerprint()))
		}
	}
	return fmt.Errorf("%w\nthe row does not say which schema wrote its record, so that it was read by %s@%s, the newest that has its fields: a record of another says so, as \"schema\": %q (others: %s)", fault, known.Family.Name(), s.Fingerprint(), others[len(others)-1], strings.Join(others, ", "))
}

// goldenSchema returns the schemas that a row's schema names, and the fingerprint in it, or
// "" if it has none.
func (x *explainer) goldenSchema(of string, all relevance.Schemas) (known records, writer string, err error) {
	name, writer, _ := strings.Cut(of, "@")
	switch {
	case name == "" && len(x.Spec().Schemas) == 0:
		return records{relevance.Records{Layout: relevance.RoleLayout()}}, writer, nil
	case name == "":
		name = x.Spec().Schemas[0]
	}
	if known = (records{all[name]}); known.Layout == nil {
		return known, writer, fmt.Errorf("no schema %s; %s; give the .avsc files of others by --schema", name, hint.Nearest(name, slices.Sorted(maps.Keys(all))))
	}
	return known, writer, nil
}

// golden returns one row of values by field, in the columns of the family. They are
// written under the schema whose fingerprint is writer, or, if that is "", under the newest
// schema that has the fields. what is the part of the golden row, for errors.
func (r records) golden(writer string, values map[string]any, what string, as reading) (*column.Slab, error) {
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
	if as == typed {
		rows, err := r.Family.Read(s, flat)
		return rows, inWords(err, what)
	}
	own, err := goldenSlab(s.Layout(), flat, what)
	if err != nil || s.Layout() == r.Layout {
		return own, err
	}
	return r.Family.Reread(s, own, flat)
}

// Unread removes from a row the features of entity and object if the model reads none of
// them, and returns which it removed: one file of rows may be for several models.
func (g *Golden) Unread(m *relevance.Model) (names []string) {
	if m.Spec().Entity == "" && g.Entity != nil {
		g.Entity, names = nil, append(names, "entity")
	}
	if m.Spec().Object == "" && g.Object != nil {
		g.Object, names = nil, append(names, "object")
	}
	return names
}

// inWords returns what a schema refuses as an error with a line for each field.
func inWords(err error, what string) error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range several.Unwrap() {
			all = append(all, inWords(one, what))
		}
		return errors.Join(all...)
	}
	if fault := (*schemas.Error)(nil); errors.As(err, &fault) && fault.Field != "" {
		return fmt.Errorf("%s.%s: %s", what, fault.Field, fault.Detail)
	}
	return err
}

// written returns the schema that a row is written under, see golden, and the row's values
// by dotted path. If no schema has the fields the error is that of the newest.
func (r records) written(writer string, values map[string]any, what string) (_ *schemas.Schema, flat map[string]any, err error) {
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

// goldenObject gives the scorer the features of a row's object; nil values are none.
func (x *explainer) goldenObject(s *relevance.Scorer, values map[string]any, schemas relevance.Schemas, as reading) error {
	if values == nil {
		return nil
	}
	objects, err := x.objects(s, []Golden{{Object: values}}, schemas, as)
	if err == nil && objects != nil {
		s.SetObjects(objects.Slab())
	}
	return err
}

// objects returns the features of the objects of rows, a row each; nil if s reads none.
func (x *explainer) objects(s *relevance.Scorer, rows []Golden, schemas relevance.Schemas, as reading) (*relevance.Objects, error) {
	known := records{schemas[x.Spec().Object]}
	if known.Layout == nil {
		return nil, errors.New("object: the spec names no schema of the features of what records are about")
	}
	var objects *relevance.Objects // stays nil if nothing reads them: rows may have features that a model does not use
	if l := s.ObjectLayout(); l != nil {
		objects = relevance.NewObjects(l)
	}
	for i := range rows {
		if rows[i].Object == nil {
			if objects != nil {
				objects.AddNone()
			}
			continue
		}
		features, err := known.golden("", rows[i].Object, "object", as)
		if err != nil {
			return nil, err
		}
		if objects == nil {
			continue
		}
		if err := objects.Add(features, 0); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// goldenSlab returns one row of values by column. Fields without a value have the schema's
// defaults.
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

// flattened returns the values of fields by dotted name, including those of nested records
// and those without a column. The error names every field that the layout does not have.
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
		_, carried := l.Carried()[path]
		switch {
		case slices.Contains(known, path), carried:
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
			faults = append(faults, fmt.Errorf("no field %s in %s; %s", path, what, hint.Nearest(path, known)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		walk(name, values[name])
	}
	return flat, errors.Join(faults...)
}

// goldenValue sets the column i of a row to a value of JSON.
func goldenValue(r *column.Row, i int, f column.Field, v any) error {
	v = plainNumber(v)
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
		if text, is := v.(string); is && f.Kind == column.Int { // answers write large integers as strings
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

// plainNumber returns a [json.Number] as a float64, and any other value as it is.
func plainNumber(v any) any {
	if n, ok := v.(json.Number); ok {
		if x, err := n.Float64(); err == nil {
			return x
		}
	}
	return v
}

// goldenList reads a list of numbers or of texts. Both are nil for an empty list. It is not
// ok if v is no list, or one of anything else.
func goldenList(v any) (numbers []float64, texts []string, ok bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, nil, false
	}
	for _, x := range list {
		switch x := plainNumber(x).(type) {
		case float64:
			numbers = append(numbers, x)
		case string:
			texts = append(texts, x)
		}
	}
	return numbers, texts, len(numbers) == len(list) || len(texts) == len(list)
}

// goldenTime reads a time: RFC 3339, or milliseconds since 1970.
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

// goldenViewer reads a viewer; nil values are one without id and attributes.
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
