package intake

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/memory"
)

// The list is read by hand wherever the path leads, and only there.
func TestJSON(t *testing.T) {
	for text, want := range map[string]struct {
		rest     string
		entities []string
	}{
		`{"feed":"x","request":{"entities":[ "a" , "b\u0041\"" ],"limit":1}}`: {`{"feed":"x","request":{"entities":[],"limit":1}}`, []string{"a", `bA"`}},
		`{"entities":["a"],"request":{"viewer":{"entities":["b"]}}}`:          {`{"entities":["a"],"request":{"viewer":{"entities":["b"]}}}`, nil},
		` {"request":{"entities":[]}} x`:                                      {` {"request":{"entities":[]}} x`, nil},
		`{"request":[{"entities":["a"]}]}`:                                    {`{"request":[{"entities":["a"]}]}`, nil},
		`{"request":{"entities":"a"}}`:                                        {`{"request":{"entities":"a"}}`, nil},
		`7`:                                                                   {`7`, nil},
	} {
		got, err := JSON([]byte(text), "request", "entities")
		if err != nil || string(got.Rest) != want.rest || strings.Join(got.Entities, "|") != strings.Join(want.entities, "|") {
			t.Errorf("%s: %q %q %v", text, got.Rest, got.Entities, err)
		}
	}
	for _, text := range []string{
		``, `{`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{a:1}`, `[1,]`, `[`, `"`, `"\`, `{"request":{"entities":["a",]}}`, `{"request":{"entities":[1]}}`, `{"request":{"entities":["\x"]}}`,
		`{"request":{"entities":["\ud800"]}}`, `{"request":{"entities":["\u00g0"]}}`, `{"request":{"entities":["\ud83d\ndc00"]}}`, `{"request":{"entities":["\ud83d\ud83d"]}}`, `{"request":{"entities":["\u12"]}}`, `{"request":{"entities":["a\`, `{"request":{"entities":["a"`, `{"request":{"entities":["a"}}`, strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
		"[" + strings.Repeat("1,", MaxValues) + "1]", `{"request":{"entities":[` + strings.Repeat(`"",`, MaxEntities) + `""]}}`, `"` + strings.Repeat("x", MaxRestBytes) + `"`, strings.Repeat(" ", MaxBytes) + "1",
	} {
		var e *millrace.Error
		if _, err := JSON([]byte(text), "request", "entities"); !errors.As(err, &e) || e.WayOut == "" {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// Whatever the bytes, they are looked at without harm.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{0x0a, 1, 'x', 0x1a, 0, 0x12, 2, 0x12, 0})
	f.Add([]byte{0x0b, 0x0b, 0x0c})
	f.Fuzz(func(t *testing.T, b []byte) {
		cost, err := Message(b, (&feedv1.GetFeedRequest{}).ProtoReflect().Descriptor(), "entities")
		if err == nil && (cost < int64(len(b)) || cost > 2*int64(len(b))+valueBytes*int64(len(b))) {
			t.Errorf("%d bytes cost %d", len(b), cost)
		}
	})
}

// The look at a message takes little beside parsing it.
func BenchmarkMessage(b *testing.B) {
	req := &feedv1.GetFeedRequest{Feed: "recent"}
	for i := range 1000 {
		req.Entities = append(req.Entities, fmt.Sprint("member:", i))
	}
	message, err := proto.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Message(message, req.ProtoReflect().Descriptor(), "entities"); err != nil {
			b.Fatal(err)
		}
	}
}

// What is exactly as large as it may be is taken, and what is one larger is not, in JSON and
// in protobuf, with a refusal that says which bound it is.
func TestMessagesAtTheirLimits(t *testing.T) {
	// In JSON each has values, elements of lists and fields alike; the object itself is one.
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	texts := func(n int) string { return strings.TrimSuffix(strings.Repeat(`"",`, n), ",") }
	field := func(n protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), v)
	}
	deep := func(depth int) []byte { // a request, its viewer, an attribute and its value are four
		v := field(6, nil)
		for range (depth - 4) / 2 {
			v = field(6, field(1, v))
		}
		return field(2, field(2, slices.Concat(field(1, []byte("a")), field(2, v))))
	}
	besides := func(n int) []byte { // bytes with their tag and length
		return field(5, make([]byte, n-4))
	}
	bulk := strings.Repeat(`"`+strings.Repeat("x", 500)+`",`, MaxBytes/503)
	for name, c := range map[string]struct {
		fits, beyond []byte
		reason       millrace.Reason
		says         string
	}{
		"bytes":    {[]byte(`{"entities":[` + strings.TrimSuffix(bulk, ",") + "]}" + strings.Repeat(" ", MaxBytes-len(bulk)-len(`{"entities":[]}`)+1)), make([]byte, MaxBytes+1), millrace.ReasonTooLarge, fmt.Sprint("larger than ", MaxBytes)},
		"the rest": {[]byte(`"` + strings.Repeat("x", MaxRestBytes-2) + `"`), []byte(`"` + strings.Repeat("x", MaxRestBytes-1) + `"`), millrace.ReasonTooLarge, fmt.Sprintf("%d bytes beside the entities are more than %d", MaxRestBytes+1, MaxRestBytes)},
		"values":   {[]byte("[" + texts(MaxValues-1) + "]"), []byte("[" + texts(MaxValues) + "]"), millrace.ReasonTooLarge, fmt.Sprintf("more than %d values", MaxValues)},
		"entities": {[]byte(`{"entities":[` + texts(MaxEntities) + "]}"), []byte(`{"entities":[` + texts(MaxEntities+1) + "]}"), millrace.ReasonTooLarge, fmt.Sprintf("more than %d of them", MaxEntities)},
		"depth":    {[]byte(nested(MaxDepth + 1)), []byte(nested(MaxDepth + 2)), millrace.ReasonInvalid, fmt.Sprintf("deeper than %d", MaxDepth)},
	} {
		if _, err := JSON(c.fits, "entities"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var e *millrace.Error
		if _, err := JSON(c.beyond, "entities"); !errors.As(err, &e) || e.Reason != c.reason || !strings.Contains(e.Detail, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	desc := (&feedv1.GetFeedRequest{}).ProtoReflect().Descriptor()
	long := field(3, make([]byte, 512))
	for name, c := range map[string]struct {
		fits, beyond []byte
		says         string
	}{
		"bytes":         {append(repeated(long, MaxBytes/len(long)), make([]byte, MaxBytes%len(long))...), make([]byte, MaxBytes+1), fmt.Sprint("larger than ", MaxBytes)},
		"the rest":      {besides(MaxRestBytes), besides(MaxRestBytes + 1), fmt.Sprintf("%d bytes beside the entities", MaxRestBytes+1)},
		"with entities": {append(besides(MaxRestBytes), repeated(long, 3)...), append(besides(MaxRestBytes+1), field(3, []byte("a"))...), fmt.Sprintf("%d bytes beside the entities", MaxRestBytes+1)},
		"values":        {repeated(field(4, nil), MaxValues), repeated(field(4, nil), MaxValues+1), fmt.Sprintf("more than %d values", MaxValues)},
		"entities":      {repeated(field(3, nil), MaxEntities), repeated(field(3, nil), MaxEntities+1), fmt.Sprintf("more than %d of them", MaxEntities)},
		"long entities": {repeated(field(3, make([]byte, 128)), MaxBytes/131), repeated(field(3, make([]byte, 128)), MaxEntities+1), fmt.Sprint("larger than ", MaxBytes)},
		"depth":         {deep(MaxDepth), deep(MaxDepth + 2), fmt.Sprintf("deeper than %d", MaxDepth)},
	} {
		if _, err := Message(c.fits, desc, "entities"); err != nil {
			t.Errorf("%s in protobuf: %v", name, err)
		}
		if _, err := Message(c.beyond, desc, "entities"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s in protobuf: %v", name, err)
		}
	}
}

// repeated is so many copies of a field.
func repeated(field []byte, n int) []byte {
	return []byte(strings.Repeat(string(field), n))
}

// What a message costs is what it holds: its bytes twice, and so much for each value and for
// each entity.
func TestCosts(t *testing.T) {
	req := &feedv1.GetFeedRequest{Feed: "f", Entities: []string{"a", strings.Repeat("b", 300), ""}, Types: []string{"x", "y"}, Viewer: &feedv1.Viewer{Id: "v", Attributes: map[string]*structpb.Value{"a": structpb.NewNumberValue(1)}}}
	message, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	const values = 10 // feed, viewer, id, attribute with name, value and number, two types; and the limit below
	for _, b := range [][]byte{message, append(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 1), message...)} {
		cost, err := Message(b, req.ProtoReflect().Descriptor(), "entities")
		n := int64(values)
		if len(b) == len(message) {
			n--
		}
		if want := 2*int64(len(b)) + 3*entityBytes + n*valueBytes; err != nil || cost != want {
			t.Errorf("%d values in %d bytes cost %d, want %d; %v", n, len(b), cost, want, err)
		}
	}
	text := []byte(`{"feed":"f","entities":["a","bb"],"types":["x","y"]}`)
	got, err := JSON(text, "entities")
	if want := 2*int64(len(`{"feed":"f","entities":[],"types":["x","y"]}`)) + 6*valueBytes; err != nil || got.Cost != want {
		t.Errorf("the text costs %d, want %d; %v", got.Cost, want, err)
	}
	why, err := proto.Marshal(&feedv1.WhyRequest{Request: req, Record: "r"})
	if err != nil {
		t.Fatal(err)
	}
	cost, err := Message(why, (&feedv1.WhyRequest{}).ProtoReflect().Descriptor(), "request", "entities")
	if want := 2*int64(len(why)) + 3*entityBytes + (values+1)*valueBytes; err != nil || cost != want {
		t.Errorf("an inquiry costs %d, want %d; %v", cost, want, err)
	}
	// A request is held while it is read, and refused where there is no memory for it.
	budget := memory.New(1<<20, "requests")
	loan := budget.Borrow()
	back := &feedv1.GetFeedRequest{}
	if err := ReadMessage(message, back, loan); err != nil || !proto.Equal(back, req) || loan.Held() != 3*int64(len(message))+3*entityBytes+(values-1)*valueBytes {
		t.Errorf("%v, %v; %d bytes are held", back, err, loan.Held())
	}
	loan.Return()
	again := &feedv1.WhyRequest{}
	if err := ReadMessage(why, again, budget.Borrow()); err != nil || !proto.Equal(again.Request, req) || again.Record != "r" {
		t.Errorf("%v, %v", again, err)
	}
	var e *millrace.Error
	few := memory.New(100, "requests")
	if err := ReadMessage(message, &feedv1.GetFeedRequest{}, few.Borrow()); !errors.As(err, &e) || e.Reason != millrace.ReasonOverloaded {
		t.Errorf("%v", err)
	}
	if err := ReadJSON(text, &feedv1.GetFeedRequest{}, few); !errors.As(err, &e) || e.Reason != millrace.ReasonOverloaded || few.Held() != 0 {
		t.Errorf("%v", err)
	}
	if err := ReadJSON(text, &feedv1.GetFeedRequest{}, budget); err != nil {
		t.Error(err)
	}
	for _, m := range []proto.Message{&feedv1.GetFeedRequest{}, &feedv1.WhyRequest{}} {
		for _, bad := range []string{"\x12", "\x1a\x05a", "\x0a\xff", "\xff"} {
			if err := ReadMessage([]byte(bad), m, memory.New(1<<20, "requests").Borrow()); !errors.As(err, &e) || e.Reason != millrace.ReasonInvalid || !strings.Contains(e.WayOut, string(m.ProtoReflect().Descriptor().Name())) {
				t.Errorf("%q: %v", bad, err)
			}
		}
	}
}

// A fault of a JSON text is told by the field that is at fault, and by what it takes.
func TestFieldsAtFault(t *testing.T) {
	for text, want := range map[string]string{
		`{"feed":1}`: "feed: send a string", `{"limit":"x"}`: "limit: send a whole number", `{"explain":1}`: "explain: send true or false", `{"types":"x"}`: "types: send a list, each a string",
		`{"min_coverage":"x"}`: "min_coverage: send a number", `{"minCoverage":"x"}`: "min_coverage: send a number", `{"from":"x"}`: "from: send a time in RFC 3339", `{"viewer":1}`: "viewer: send an object",
		`{"viewer":{"id":1}}`: "viewer.id: send a string", `{"viewer":{"features":1}}`: "viewer.features: send an object", `{"viewer":{"features":{"a":"x"}}}`: "viewer.features: send an object",
		`{"viewer":{"nosuch":1}}`: "viewer.nosuch: use one of id, attributes, features", `{"nosuch":1,"feed":1}`: "feed: send a string", `{"a":1,"feed":1}`: "a: use one of feed, viewer", `{"feed":`: "", `7`: "",
	} {
		var e *millrace.Error
		err := ReadJSON([]byte(text), &feedv1.GetFeedRequest{}, memory.New(1<<20, "requests"))
		if !errors.As(err, &e) || want != "" && !strings.HasPrefix(e.Field+": "+e.WayOut, want) || want == "" && (e.Field != "" || e.WayOut != "send one JSON object") || strings.Contains(e.Detail, "proto:") {
			t.Errorf("%s: %+v", text, e)
		}
	}
	for text, want := range map[string]string{
		`{"request":{"entities":[1]}}`: "request.entities", `{"request":{"feed":1}}`: "request.feed", `{"record":1}`: "record", `{"request":{"viewer":{"id":1}}}`: "request.viewer.id",
	} {
		var e *millrace.Error
		if err := ReadJSON([]byte(text), &feedv1.WhyRequest{}, memory.New(1<<20, "requests")); !errors.As(err, &e) || e.Field != want {
			t.Errorf("%s: %+v", text, e)
		}
	}
	// A syntax error says where it is.
	for text, at := range map[string]int{``: 0, `{"a" 1}`: 5, `{"a":1 2}`: 7, `[1 2]`: 3, `{"entities":["a",]}`: 17, `{"entities":["a" "b"]}`: 17, `{"a":}`: 5, `{1}`: 1, `["a`: 3} {
		if _, err := JSON([]byte(text), "entities"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("at byte %d;", at)) {
			t.Errorf("%s: %v, want byte %d", text, err, at)
		}
	}
}
