package limits

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// The limits of a viewer, the person that a feed is made for. Attributes are strings,
// numbers, booleans and lists that filters and models read by name. Features are numbers by
// name.
const (
	MaxViewerIDBytes  = 512
	MaxAttributes     = 1_000
	MaxFeatures       = 10_000
	MaxAttributeBytes = 16 << 10 // of a string: an attribute, or a value of a list
	MaxListLen        = 10_000   // values of an attribute that is a list
)

// CheckViewerID refuses an id of a viewer that is too long, or is not UTF-8.
func CheckViewerID(id string) error {
	if len(id) > MaxViewerIDBytes || !utf8.ValidString(id) {
		return Invalid("viewer.id", fmt.Sprintf("send UTF-8 of at most %d bytes", MaxViewerIDBytes), "%d bytes are not an id", len(id))
	}
	return nil
}

// CheckViewer refuses a viewer that filters and models could not read, or that is larger than
// the limits.
func CheckViewer(v *feedv1.Viewer) error {
	if err := CheckViewerID(v.GetId()); err != nil {
		return err
	}
	if n := len(v.GetAttributes()); n > MaxAttributes {
		return tooMany("viewer.attributes", n, MaxAttributes)
	}
	if n := len(v.GetFeatures()); n > MaxFeatures {
		return tooMany("viewer.features", n, MaxFeatures)
	}
	if err := firstFault(v.GetAttributes(), func(name string, value *structpb.Value) error {
		if err := checkName(name); err != nil {
			return Invalid("viewer.attributes."+name, "rename it", "%v", err)
		}
		if err := checkAttribute(value); err != nil {
			wayOut := "send a string, a number, a boolean, or a list of only strings or only numbers"
			if errors.Is(err, errTooLong) {
				wayOut = "send less of it"
			}
			return Invalid("viewer.attributes."+name, wayOut, "%v", err)
		}
		return nil
	}); err != nil {
		return err
	}
	return firstFault(v.GetFeatures(), func(name string, x float64) error {
		if err := checkName(name); err != nil {
			return Invalid("viewer.features."+name, "rename it", "%v", err)
		}
		if _, both := v.GetAttributes()[name]; both {
			return Invalid("viewer.features."+name, "send it once", "%q is an attribute too, and viewer.%[1]s can be only one of them", name)
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return Invalid("viewer.features."+name, "send a finite number or leave it out", "%v is not finite", x)
		}
		return nil
	})
}

// firstFault returns the error of the first name, in alphabetical order, for which check
// returns one; nil if there is none.
func firstFault[V any](all map[string]V, check func(string, V) error) (first error) {
	of := ""
	for name, value := range all {
		if err := check(name, value); err != nil && (first == nil || name < of) {
			of, first = name, err
		}
	}
	return first
}

// tooMany refuses a map that has n entries, which are more than limit.
func tooMany(field string, n, limit int) error {
	return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: field, Detail: fmt.Sprintf("%d of them, more than %d", n, limit), WayOut: "send only what filters and models read"}
}

// checkName refuses a name that filters and models cannot write as viewer.NAME.
func checkName(name string) error {
	if name == "id" {
		return errors.New("viewer.id is the viewer's id")
	}
	for i := range len(name) {
		c := name[i] | 0x20
		if letter := 'a' <= c && c <= 'z' || name[i] == '_'; !letter && (i == 0 || name[i] < '0' || name[i] > '9') {
			return fmt.Errorf("%.100q is not a name: letters, digits and '_', a letter first", name)
		}
	}
	if name == "" || len(name) > 128 {
		return fmt.Errorf("a name has 1 to 128 bytes, not %d", len(name))
	}
	return nil
}

// errTooLong is wrapped by the errors of checkAttribute for an attribute that is too long,
// not of a wrong kind.
var errTooLong = errors.New("too long")

// checkAttribute accepts a scalar (see checkScalar), or a list of only strings or only
// numbers.
func checkAttribute(v *structpb.Value) error {
	list, ok := v.GetKind().(*structpb.Value_ListValue)
	if !ok {
		return checkScalar(v)
	}
	values := list.ListValue.GetValues()
	if len(values) > MaxListLen {
		return fmt.Errorf("a list of %d values is %w: more than %d", len(values), errTooLong, MaxListLen)
	}
	texts := 0
	for i, e := range values {
		switch e.GetKind().(type) {
		case *structpb.Value_BoolValue:
			return fmt.Errorf("value %d of the list is a boolean", i)
		case *structpb.Value_StringValue:
			texts++
		}
		if err := checkScalar(e); err != nil {
			return fmt.Errorf("value %d of the list: %w", i, err)
		}
	}
	if texts > 0 && texts < len(values) {
		return errors.New("a list of both strings and numbers")
	}
	return nil
}

// checkScalar accepts a boolean, a finite number, or a string of at most MaxAttributeBytes.
func checkScalar(v *structpb.Value) error {
	switch k := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return nil
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return fmt.Errorf("%v is not finite", k.NumberValue)
		}
		return nil
	case *structpb.Value_StringValue:
		if len(k.StringValue) > MaxAttributeBytes {
			return fmt.Errorf("a string of %d bytes is %w: more than %d", len(k.StringValue), errTooLong, MaxAttributeBytes)
		}
		return nil
	case *structpb.Value_StructValue:
		return errors.New("an object")
	case *structpb.Value_ListValue:
		return errors.New("a list")
	}
	return errors.New("null")
}
