package schemas

import (
	"errors"
	"fmt"
	"slices"
)

// CheckEvolution reports why records of old could not be read under new, with
// every field that a role has moved from or to.
func CheckEvolution(old, new *Schema) error {
	if old.Name() != new.Name() {
		return fmt.Errorf("schemas: %s is not an evolution of %s; an evolution keeps the full name", new.Name(), old.Name())
	}
	if old.features != new.features {
		return fmt.Errorf("schemas: one %s is of features and the other of records; give the new one a name of its own", old.Name())
	}
	_, err := NewDecoder(old, new)
	return errors.Join(err, checkRolesStay(old, new))
}

// checkRolesStay makes sure that a record says the same of itself under both
// schemas: a role stays on its field, and one added begins at its zero.
func checkRolesStay(old, new *Schema) error {
	var faults []error
	to := pair(old.root, new.root)
	read := map[int]bool{}
	for i, j := range to {
		was := old.root.fields[i]
		is := field{name: was.name}
		if j >= 0 {
			is = new.root.fields[j]
			read[j] = true
		}
		if was.role != is.role {
			faults = append(faults, fmt.Errorf("schemas: field %q: its role was %q and is %q; a role stays on its field", is.name, was.role, is.role))
		}
	}
	for j, f := range new.root.fields {
		isNew := f.role != "" && !read[j] && f.hasDefault
		if isNew && slices.ContainsFunc(f.def, func(b byte) bool { return b != 0 }) {
			faults = append(faults, fmt.Errorf("schemas: field %q: the role %q is new, so its default must be empty, 0 or false, which is what earlier records say", f.name, f.role))
		}
	}
	return errors.Join(faults...)
}
