package intake

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/limits"
)

// A request is read as protobuf reads it, whatever comes; only what is no
// UTF-8 is left to later checks.
func FuzzUnmarshalRequest(f *testing.F) {
	limit := int64(20)
	for _, req := range []*feedv1.GetFeedRequest{
		{Feed: "follows", Entities: []string{"member:1", "member:2", "", strings.Repeat("x", 300)}, Limit: &limit, Types: []string{"post"}},
		{Viewer: &feedv1.Viewer{Id: "member:9", Features: map[string]float64{"f": 1}}, Filter: "true"},
		{Viewer: &feedv1.Viewer{Attributes: map[string]*structpb.Value{"null, left to protobuf": structpb.NewNullValue()}}, Feed: "follows"},
		{},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		if len(b) > 0 {
			f.Add(append(slices.Clone(b), b...)) // fields that come again
			f.Add(b[:len(b)-1])
		}
	}
	f.Add([]byte("\x12\x03\x0a\x01v" + "\x12\x0e\x1a\x0c\x0a\x01f\x11\x00\x00\x00\x00\x00\x00\xf0\x3f")) // two viewers, to be joined
	f.Fuzz(func(t *testing.T, b []byte) {
		var want, got feedv1.GetFeedRequest
		wantErr, gotErr := proto.Unmarshal(b, &want), unmarshalRequest(b, &got)
		if wantErr != nil {
			if gotErr == nil && !slices.ContainsFunc(got.Entities, func(e string) bool { return limits.CheckText(e, 1<<30) != nil }) {
				t.Fatalf("read %v, which protobuf refuses: %v", &got, wantErr)
			}
			return
		}
		if gotErr != nil || !proto.Equal(&want, &got) {
			t.Fatalf("got %v, %v; want %v", &got, gotErr, &want)
		}
	})
}
