package limits

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
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

// Each part of a viewer is taken up to its limit, and refused by its name beyond it; of several
// faults the first by name is told.
func TestViewersAtTheirLimits(t *testing.T) {
	text, number := structpb.NewStringValue, structpb.NewNumberValue
	list := func(all ...*structpb.Value) *structpb.Value {
		return structpb.NewListValue(&structpb.ListValue{Values: all})
	}
	many := func(n int) map[string]*structpb.Value {
		all := map[string]*structpb.Value{}
		for i := range n {
			all[fmt.Sprint("a", i)] = number(1)
		}
		return all
	}
	features := func(n int) map[string]float64 {
		all := map[string]float64{}
		for i := range n {
			all[fmt.Sprint("f", i)] = 1
		}
		return all
	}
	numbers := make([]*structpb.Value, MaxListLen)
	for i := range numbers {
		numbers[i] = number(float64(i))
	}
	a := func(v *structpb.Value) *feedv1.Viewer {
		return &feedv1.Viewer{Attributes: map[string]*structpb.Value{"a": v}}
	}
	named := func(name string) *feedv1.Viewer {
		return &feedv1.Viewer{Attributes: map[string]*structpb.Value{name: number(1)}}
	}
	const attribute = "viewer.attributes.a"
	for name, c := range map[string]struct {
		viewer *feedv1.Viewer
		field  string // "": it is taken
	}{
		"none": {nil, ""}, "a long id": {&feedv1.Viewer{Id: strings.Repeat("x", MaxViewerIDBytes)}, ""}, "a longer id": {&feedv1.Viewer{Id: strings.Repeat("x", MaxViewerIDBytes+1)}, "viewer.id"}, "no UTF-8": {&feedv1.Viewer{Id: "\xff"}, "viewer.id"},
		"attributes": {&feedv1.Viewer{Attributes: many(MaxAttributes)}, ""}, "more attributes": {&feedv1.Viewer{Attributes: many(MaxAttributes + 1)}, "viewer.attributes"},
		"features": {&feedv1.Viewer{Features: features(MaxFeatures)}, ""}, "more features": {&feedv1.Viewer{Features: features(MaxFeatures + 1)}, "viewer.features"},
		"a boolean": {a(structpb.NewBoolValue(false)), ""}, "a long text": {a(text(strings.Repeat("x", MaxAttributeBytes))), ""}, "null": {a(structpb.NewNullValue()), attribute}, "nothing": {a(nil), attribute},
		"NaN": {a(number(math.NaN())), attribute}, "infinity": {a(number(math.Inf(-1))), attribute}, "texts": {a(list(text("a"), text("b"))), ""}, "an empty list": {a(list()), ""}, "a long list": {a(list(numbers...)), ""},
		"both": {a(list(text("a"), number(1))), attribute}, "both, otherwise": {a(list(number(1), text("a"))), attribute}, "booleans": {a(list(structpb.NewBoolValue(true))), attribute}, "lists": {a(list(list())), attribute}, "NaN in a list": {a(list(number(1), number(math.NaN()))), attribute},
		"a feature": {&feedv1.Viewer{Features: map[string]float64{"f": -1}}, ""}, "no number": {&feedv1.Viewer{Features: map[string]float64{"f": math.NaN()}}, "viewer.features.f"}, "no end": {&feedv1.Viewer{Features: map[string]float64{"f": math.Inf(1)}}, "viewer.features.f"},
		"twice":      {&feedv1.Viewer{Attributes: many(1), Features: map[string]float64{"a0": 1}}, "viewer.features.a0"},
		"a bad name": {&feedv1.Viewer{Features: map[string]float64{"f-g": 1}}, "viewer.features.f-g"},
		"several":    {&feedv1.Viewer{Attributes: map[string]*structpb.Value{"c": nil, "b": nil, "a": number(1), "d": nil}}, "viewer.attributes.b"},
		"letters":    {named("aZ_9"), ""}, "_": {named("_"), ""}, "z": {named("z"), ""}, "A0": {named("A0"), ""}, "Zz": {named("Zz"), ""}, "a digit": {named("0a"), "viewer.attributes.0a"}, "no name": {named(""), "viewer.attributes."}, "the id": {named("id"), "viewer.attributes.id"},
		"@": {named("a@"), "viewer.attributes.a@"}, "[": {named("a["), "viewer.attributes.a["}, "/": {named("a/"), "viewer.attributes.a/"}, ":": {named("a:"), "viewer.attributes.a:"}, "`": {named("`"), "viewer.attributes.`"}, "{": {named("{"), "viewer.attributes.{"}, "an umlaut": {named("ä"), "viewer.attributes.ä"},
		"a long name": {named(strings.Repeat("n", 128)), ""}, "a longer name": {named(strings.Repeat("n", 129)), "viewer.attributes." + strings.Repeat("n", 129)},
	} {
		var e *millrace.Error
		err := CheckViewer(c.viewer)
		if errors.As(err, &e) != (c.field != "") || err != nil && e.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Texts and filters are bounded to the byte.
func TestTexts(t *testing.T) {
	for text, good := range map[string]bool{"": false, "abc": true, "abcd": false, "\xff": false, "ä": true} {
		if err := CheckText(text, 3); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
	for filter, good := range map[string]bool{"": true, strings.Repeat("x", MaxFilterBytes): true, strings.Repeat("x", MaxFilterBytes+1): false, "\xff": false, "a\x00": false} {
		if err := CheckFilter(filter); (err == nil) != good {
			t.Errorf("%.20q: %v", filter, err)
		}
	}
	plain, nameless := errors.New("x"), &millrace.Error{Reason: millrace.ReasonInvalid}
	if Under("a", plain) != plain || Under("a", nameless) != error(nameless) {
		t.Error("an error without a field is another")
	}
	var e *millrace.Error
	if err := Under("a", Invalid("b", "c", "%d", 7)); !errors.As(err, &e) || e.Field != "a.b" || e.Detail != "7" || e.WayOut != "c" {
		t.Errorf("%v", err)
	}
}
