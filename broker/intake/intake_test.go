package intake

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
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
		``, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{a:1}`, `[1,]`, `[`, `"`, `"\`, `{"request":{"entities":["a",]}}`, `{"request":{"entities":[1]}}`, `{"request":{"entities":["\x"]}}`,
		`{"request":{"entities":["\ud800"]}}`, `{"request":{"entities":["a"`, `{"request":{"entities":["a"}}`, strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
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
