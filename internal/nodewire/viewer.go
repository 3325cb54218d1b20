package nodewire

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// maxListLen is how many elements a list among a viewer's attributes may have.
const maxListLen = 10_000

// Viewer returns the viewer of a request. It leaves out attributes that are null. The error, a
// [millrace.Error], is about an attribute of a kind that is not allowed.
func Viewer(v *feedv1.Viewer) (*millrace.Viewer, error) {
	out := &millrace.Viewer{ID: v.GetId(), Features: v.GetFeatures()}
	if len(v.GetAttributes()) == 0 {
		return out, nil
	}
	out.Attributes = make(map[string]any, len(v.Attributes))
	for name, value := range v.Attributes {
		x, ok := valueOf(value)
		if !ok {
			return nil, &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: fmt.Sprintf("viewer.attributes.%.70s", name), WayOut: "leave it out or send one of these",
				Detail: fmt.Sprintf("not a string, number, boolean, or list of at most %d strings or numbers", maxListLen),
			}
		}
		if x != nil {
			out.Attributes[name] = x
		}
	}
	return out, nil
}

// valueOf returns a value as [millrace.Viewer] has it: a string, float64, bool, []string or
// []float64, and nil for null. It returns false for a value that no attribute may have.
func valueOf(v *structpb.Value) (any, bool) {
	switch k := v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return nil, true
	case *structpb.Value_StringValue:
		return k.StringValue, true
	case *structpb.Value_NumberValue:
		return k.NumberValue, true
	case *structpb.Value_BoolValue:
		return k.BoolValue, true
	case *structpb.Value_ListValue:
		if values := k.ListValue.GetValues(); len(values) <= maxListLen {
			return listOf(values)
		}
	}
	return nil, false
}

func listOf(values []*structpb.Value) (any, bool) {
	var texts []string
	var numbers []float64
	for _, v := range values {
		switch k := v.GetKind().(type) {
		case *structpb.Value_StringValue:
			texts = append(texts, k.StringValue)
		case *structpb.Value_NumberValue:
			numbers = append(numbers, k.NumberValue)
		}
	}
	switch len(values) {
	case len(texts):
		return texts, true
	case len(numbers):
		return numbers, true
	}
	return nil, false
}
