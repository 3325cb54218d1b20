package limits

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// What is too long is told to be that, and not to be of the wrong kind.
func TestTooLongAttributes(t *testing.T) {
	text := structpb.NewStringValue(strings.Repeat("x", MaxAttributeBytes+1))
	for name, c := range map[string]struct {
		value *structpb.Value
		want  string
	}{
		"a string":       {text, "a string of 16385 bytes is too long: more than 16384; send less of it"},
		"one of a list":  {structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{text}}), "value 0 of the list: a string of 16385 bytes is too long: more than 16384; send less of it"},
		"no scalar":      {structpb.NewStructValue(&structpb.Struct{}), "an object; send a string, a number, a boolean, or a list"},
		"a long list":    {structpb.NewListValue(&structpb.ListValue{Values: make([]*structpb.Value, MaxListLen+1)}), "is too long: more than"},
		"a short string": {structpb.NewStringValue("x"), ""},
	} {
		err := CheckViewer(&feedv1.Viewer{Id: "v", Attributes: map[string]*structpb.Value{"a": c.value}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
