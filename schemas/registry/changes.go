package registry

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// Changes returns what a schema would change if it were admitted: which fields its name
// gains, loses or gets with another type, and to which of its fields a schema of another
// name, admitted earlier, gave another type. It is empty for a schema that is known. The
// error is the [*RefusedError] of [Registry.Admit].
func (s *Snapshot) Changes(add *schemas.Schema) ([]schemas.Change, error) {
	next, err := s.after(add)
	if err != nil || next == s {
		return nil, err
	}
	changes := elsewhere(s, add.Name(), add.Features(), add.Layout())
	if before := s.Family(add.Name()); before != nil {
		changes = before.AppendChanges(changes, next.Family(add.Name()))
	}
	return changes, nil
}

// elsewhere returns the fields of layout, which is that of the schemas of name, to which
// schemas of another name gave another type. It leaves out a field that is an int here and
// a double there, which filters read alike. Only names of the same sort count: those of
// features if features is true, else those of content.
func elsewhere(s *Snapshot, name string, features bool, layout *column.Layout) (changes []schemas.Change) {
	for _, f := range layout.Fields() {
		for _, family := range s.Families() {
			at := family.Layout().Index(f.Name)
			if family.Name() == name || family.Features() != features || at < 0 {
				continue
			}
			c := schemas.Change{Features: features, Field: f.Name}
			number := func(k column.Kind) bool { return k == column.Int || k == column.Double }
			switch first := family.Layout().Fields()[at].Kind; {
			case first == f.Kind, first == column.Double && f.Kind == column.Int:
			case number(first) && number(f.Kind):
				c.What, c.Detail = schemas.Widened, fmt.Sprintf("it is an int in %s, and filters read it as a double", family.Name())
				changes = append(changes, c)
			default:
				c.What, c.Detail = schemas.Clashes, fmt.Sprintf("it is %s, and %s in %s, which came first, so that filters read null in records of %s", f.Kind, first, family.Name(), name)
				changes = append(changes, c)
			}
			break
		}
	}
	return changes
}

// Disagreements returns the fields that filters read as null in the records of one name,
// because the schemas of a name that was admitted before gave them another type.
func (s *Snapshot) Disagreements() (all []schemas.Change) {
	before := &Snapshot{families: map[string]*schemas.Family{}}
	for _, f := range s.Families() {
		all = append(all, slices.DeleteFunc(elsewhere(before, f.Name(), f.Features(), f.Layout()), func(c schemas.Change) bool { return c.What != schemas.Clashes })...)
		before.names, before.families[f.Name()] = append(before.names, f.Name()), f
	}
	return all
}
