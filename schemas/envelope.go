package schemas

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/millrace/millrace"
)

// The slots of kept.texts.
const (
	textID = iota
	textEntity
	textType
	textObject
	textSubject
	textSlots
)

// The slots of kept.ints.
const (
	intTime = iota
	intVersion
	intDeleted
	intSlots
)

// compileEnvelope returns the plan that checks a whole body and keeps the values of its
// roles.
func compileEnvelope(s *Schema) plan {
	slots := map[string]slot{}
	for name, at := range map[string]slot{
		s.roles.ID.Name:      {keepString, textID},
		s.roles.Entity.Name:  {keepString, textEntity},
		s.roles.Type.Name:    {keepString, textType},
		s.roles.Object.Name:  {keepString, textObject},
		s.roles.Subject.Name: {keepString, textSubject},
		s.roles.Time.Name:    {keepInt, intTime},
		s.roles.Version.Name: {keepInt, intVersion},
		s.roles.Deleted.Name: {keepInt, intDeleted},
		s.roles.About.Name:   {keepStrings, 0},
	} {
		if name != "" {
			slots[name] = at
		}
	}
	c := newCompiler()
	c.slots = slots
	p, err := c.resolve(nil, s.root, s.root, "")
	if err != nil {
		panic("schemas: a schema cannot read itself: " + err.Error())
	}
	return p
}

// Check returns an [*Error] unless a body is exactly what a writer would have written. It
// does not check the limits of roles.
func (s *Schema) Check(body []byte) error {
	m := machine{input: input{b: body}, kept: new(kept)}
	defer m.release()
	return m.whole(s.envelope)
}

// Envelope validates the whole body strictly and returns its roles, which share
// body's memory. The error is an [*Error].
//
// A record without an object has its id as the object. Features without a subject have
// their entity as the subject. Their id and object are the subject, and if the schema has
// no version, their time is the version.
func (s *Schema) Envelope(body []byte) (Envelope, error) {
	var k kept
	m := machine{input: input{b: body}, kept: &k}
	defer m.release()
	if err := m.whole(s.envelope); err != nil {
		return Envelope{}, err
	}
	e := Envelope{
		Record: millrace.Record{
			ID:      millrace.RecordID(alias(k.texts[textID])),
			Time:    millrace.Time(k.ints[intTime]),
			Version: k.ints[intVersion],
			Object:  millrace.Object(alias(k.texts[textObject])),
			Deleted: k.ints[intDeleted] == 1,
			Schema:  s.fingerprint,
			Body:    body,
		},
		Entity:  millrace.Entity(alias(k.texts[textEntity])),
		Type:    millrace.ContentType(alias(k.texts[textType])),
		Subject: alias(k.texts[textSubject]),
	}
	if s.features {
		s.fillFeatures(&e)
	} else if e.Record.Object == "" {
		e.Record.Object = millrace.Object(e.Record.ID)
	}
	if err := s.checkEnvelope(&e); err != nil {
		return Envelope{}, err
	}
	err := s.addAbout(&e, k.about)
	return e, err
}

// alias returns text as a string that shares its memory.
func alias(text []byte) string { return unsafe.String(unsafe.SliceData(text), len(text)) }

func (s *Schema) fillFeatures(e *Envelope) {
	if e.Subject == "" {
		e.Subject = string(e.Entity)
	}
	e.Record.ID, e.Record.Object = millrace.RecordID(e.Subject), millrace.Object(e.Subject)
	if s.roles.Version.Name == "" {
		e.Record.Version = int64(e.Record.Time)
	}
}

// checkEnvelope returns an error for a role that is empty but required, or longer than its
// limit.
func (s *Schema) checkEnvelope(e *Envelope) error {
	id, idField := string(e.Record.ID), s.roles.ID.Name
	if s.features {
		idField = s.roles.Subject.Name
	}
	for _, r := range []struct {
		field, value string
		max          int
		required     bool
	}{
		{idField, id, millrace.MaxIDBytes, true},
		{s.roles.Entity.Name, string(e.Entity), millrace.MaxEntityBytes, true},
		{s.roles.Type.Name, string(e.Type), millrace.MaxTypeBytes, !s.features},
		{s.roles.Object.Name, string(e.Record.Object), millrace.MaxObjectBytes, true},
	} {
		if err := checkText(r.field, r.value, r.max, r.required); err != nil {
			return err
		}
	}
	if strings.ContainsRune(string(e.Type), 0) { // index nodes store features and the like under names with a NUL
		return &Error{Reason: BadValue, Field: s.roles.Type.Name, Detail: fmt.Sprintf("the type %q has a NUL", e.Type)}
	}
	return nil
}

// DefaultFuture is how far a record's time may be after its arrival, where no
// configuration says otherwise. It keeps a producer's wrong clock, or a wrong
// unit, from being the newest in a timeline for years.
const DefaultFuture = 24 * time.Hour

// Accept checks all that a record must pass to be published. Partitioners call it, and so
// does everybody who loads records for them. It checks Envelope, and that the record's time
// is at most future after arrived. arrived is the timestamp that the record has in Kafka's
// log, so that every reader of the log decides the same, at any time. If it is negative the
// record has no timestamp, and may have any time. The error is an [*Error].
func (s *Schema) Accept(body []byte, arrived millrace.Time, future time.Duration) (Envelope, error) {
	e, err := s.Envelope(body)
	if err != nil {
		return Envelope{}, err
	}
	if arrived >= 0 && e.Record.Time-millrace.Time(future.Milliseconds()) > arrived {
		return Envelope{}, &Error{Reason: TimeInTheFuture, Field: s.roles.Time.Name,
			Detail: fmt.Sprintf("%s is more than %s after %s, when the record arrived by its timestamp in Kafka", e.Record.Time, future, arrived)}
	}
	return e, nil
}

func checkText(field, value string, max int, required bool) error {
	if value == "" && required {
		return &Error{Reason: MissingRole, Field: field, Detail: "the value is empty"}
	}
	if len(value) > max {
		return &Error{Reason: OverLimit, Field: field, Detail: fmt.Sprintf("the value has %d bytes; at most %d are allowed", len(value), max)}
	}
	return nil
}

// addAbout adds the further entities, each once and without the record's own.
func (s *Schema) addAbout(e *Envelope, about []string) error {
	field := s.roles.About.Name
	if len(about) > millrace.MaxAbout {
		return &Error{Reason: OverLimit, Field: field, Detail: fmt.Sprintf("%d entities; at most %d are allowed", len(about), millrace.MaxAbout)}
	}
	for i, a := range about {
		if err := checkText(fmt.Sprintf("%s[%d]", field, i), a, millrace.MaxEntityBytes, true); err != nil {
			return err
		}
		if to := millrace.Entity(a); to != e.Entity && !slices.Contains(e.About, to) {
			e.About = append(e.About, to)
		}
	}
	return nil
}

// roleTime is the role of the field that orders a timeline.
const roleTime = "time"

// roleRule says which schemas may have a role, and which types its field may have.
type roleRule struct {
	role     string
	of       func(*Roles) *RoleField
	record   bool             // record schemas may have it
	feature  bool             // feature schemas may have it
	required bool             // every schema that may have it must
	want     string           // the types, in words
	fits     func(*node) bool // whether a type is one of them
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

// findRoles finds the fields that have roles, and every fault in them. It does not set
// their columns, which are not known yet.
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

// setRole sets the role that a field has, or returns why it may not have it.
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
