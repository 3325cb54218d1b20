package intake

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/internal/memory"
)

// Half of a character is no end of the request.
func TestHalfACharacter(t *testing.T) {
	for _, src := range []string{`{"viewer":{"id":"\ud800"}}`, `{"viewer":{"id":"\ud800"},"feed":"home"}`, `{"viewer":{"id":"\ud800\u0041"}}`} {
		var e *millrace.Error
		if err := ReadJSON([]byte(src), &feedv1.GetFeedRequest{}, memory.New(1<<30, "requests")); !errors.As(err, &e) || !strings.Contains(e.Detail, "half of a character") {
			t.Errorf("%s: %v", src, err)
		}
	}
}

func FuzzUnmarshalJSON(f *testing.F) {
	for _, s := range []string{`{}`, `{"feed":"x","limit":"5"}`, `{"viewer":{"attributes":{"a":[1,"x",null]}}}`, `{"from":"2026-01-01T00:00:00Z"}`, `{"x":1}`, `[`, `{"limit":1e99}`, `{"viewer":{"viewer":{}}}`, `{"record":"r","request":{"feed":"x","viewer":{"id":1}}}`,
		`{"entities":["a","\u00e9\ud83d\ude00\n",""],"feed":"x"}`, `{"entities":["\ud800"]}`, `{"\u0065ntities":["a"]}`, `{"entities":["a"],"\u0065ntities":["b"]}`, `{"entities":["a"],"entities":["b"]}`,
		`{"entities":["a",]}`, `{"entities":[,]}`, `{"entities":["a" "b"]}`, `{"entities":null}`, `{"record":"r","request":{"entities":["a"]},"entity":"b"}`, `{"entities":[]} x`, `{"viewer":{"attributes":{"entities":["a"]}}}`, "{\"entities\":[\"\x01\"]}", "{\"entities\":[\"\xff\"]}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, req := range []proto.Message{&feedv1.GetFeedRequest{}, &feedv1.WhyRequest{}} {
			want := proto.Clone(req)
			wantErr := protojson.Unmarshal(b, want)
			if err := ReadJSON(b, req, memory.New(1<<30, "requests")); err != nil {
				var e *millrace.Error
				if !errors.As(err, &e) || e.WayOut == "" {
					t.Fatalf("no refusal with a way out: %v", err)
				}
				if wantErr == nil && e.Reason != millrace.ReasonTooLarge && !strings.Contains(e.Detail, "deeper") {
					t.Fatalf("protobuf takes it, and not we: %v", e)
				}
				continue
			}
			if wantErr != nil || !proto.Equal(req, want) {
				t.Fatalf("protobuf: %v, %v\nwe: %v", want, wantErr, req)
			}
			again, err := items.MarshalJSON(req)
			if err != nil {
				t.Fatal(err)
			}
			proto.Reset(req)
			if err := protojson.Unmarshal(again, req); err != nil {
				t.Fatalf("%s: %v", again, err)
			}
		}
	})
}
