package schemas

import (
	"errors"
	"fmt"
)

// roleTime is the role of the field that orders a timeline.
const roleTime = "time"

// roleRule says what a role is and which types its field may have.
type roleRule struct {
	role     string
	of       func(*Roles) *RoleField
	record   bool // a role of record schemas
	feature  bool // a role of feature schemas
	required bool // on every schema that may have it
	want     string
	fits     func(*node) bool
}

func isKind(ks ...kind) func(*node) bool {
	return func(n *node) bool {
		for _, k := range ks {
			if n.kind == k {
				return true
			}
		}
		return false
	}
}

func isObject(n *node) bool {
	t, ok := n.nullable()
	return n.kind == kindString || ok && t.kind == kindString
}

func isTime(n *node) bool { return n.kind == kindLong && n.logical == "timestamp-millis" }

func isStrings(n *node) bool { return n.kind == kindArray && n.items.kind == kindString }

var roleRules = []roleRule{
	{"id", func(r *Roles) *RoleField { return &r.ID }, true, false, true, "a string", isKind(kindString)},
	{"entity", func(r *Roles) *RoleField { return &r.Entity }, true, true, true, "a string", isKind(kindString)},
	{"type", func(r *Roles) *RoleField { return &r.Type }, true, false, true, "a string or an enum", isKind(kindString, kindEnum)},
	{roleTime, func(r *Roles) *RoleField { return &r.Time }, true, true, false, `{"type": "long", "logicalType": "timestamp-millis"}`, isTime},
	{"about", func(r *Roles) *RoleField { return &r.About }, true, false, false, "an array of strings", isStrings},
	{"version", func(r *Roles) *RoleField { return &r.Version }, true, true, false, "an int or a long", isKind(kindInt, kindLong)},
	{"object", func(r *Roles) *RoleField { return &r.Object }, true, false, false, "a string, or a union of null and string", isObject},
	{"deleted", func(r *Roles) *RoleField { return &r.Deleted }, true, false, false, "a boolean", isKind(kindBoolean)},
	{"subject", func(r *Roles) *RoleField { return &r.Subject }, false, true, false, "a string", isKind(kindString)},
}

// findRoles finds the fields that have roles, and every fault in them. Their
// columns are not known yet.
func findRoles(fields []field, features bool) (roles Roles, faults []error) {
	for i := range fields {
		if fields[i].role == "" {
			continue
		}
		if err := setRole(&roles, &fields[i], features); err != nil {
			faults = append(faults, err)
		}
	}
	for _, rule := range roleRules {
		if rule.required && rule.in(features) && rule.of(&roles).Name == "" {
			faults = append(faults, fmt.Errorf("schemas: no field has the role %q; give %s the property \"millrace\": %q", rule.role, rule.want, rule.role))
		}
	}
	switch {
	case roles.Time.Name != "":
	case !features:
		faults = append(faults, errors.New(`schemas: no field has the role "time"; give a timestamp-millis the property "millrace": "time"`))
	case roles.Version.Name == "":
		faults = append(faults, errors.New(`schemas: no field says which features are newer; give one the property "millrace": "version" or "time"`))
	}
	return roles, faults
}

// in reports whether feature schemas, or record schemas, may have the role.
func (r roleRule) in(features bool) bool {
	return features && r.feature || !features && r.record
}

func setRole(roles *Roles, f *field, features bool) error {
	for _, rule := range roleRules {
		if rule.role != f.role || !rule.in(features) {
			continue
		}
		at := rule.of(roles)
		if at.Name != "" {
			return fmt.Errorf("schemas: field %q: field %q has the role %q already", f.name, at.Name, f.role)
		}
		at.Name = f.name
		if f.typ != nil && !rule.fits(f.typ) {
			return fmt.Errorf("schemas: field %q: the role %q needs %s, not %s", f.name, f.role, rule.want, f.typ.what())
		}
		return nil
	}
	if features {
		return fmt.Errorf("schemas: field %q: feature schemas have no role %s; they have entity, subject, version and time", f.name, quote(f.role))
	}
	return fmt.Errorf("schemas: field %q: record schemas have no role %s; they have id, entity, about, type, time, version, object and deleted", f.name, quote(f.role))
}
