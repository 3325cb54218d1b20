package doors

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// Every reference leads somewhere, everything is described, and every rule is
// of a field.
func TestOpenAPIIsWhole(t *testing.T) {
	recorded := httptest.NewRecorder()
	serveOpenAPI(recorded, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
	var doc object
	if err := json.Unmarshal(recorded.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	all := doc["components"].(object)["schemas"].(object)

	for name, schema := range all {
		if schema.(object)["description"] == "" {
			t.Errorf("%s is not described", name)
		}
		for field, p := range schema.(object)["properties"].(object) {
			if to, is := p.(object)["$ref"].(string); is && all[strings.TrimPrefix(to, "#/components/schemas/")] == nil {
				t.Errorf("%s.%s leads to %s, which is nowhere", name, field, to)
			}
			if text, _ := p.(object)["description"].(string); text == "" {
				t.Errorf("%s.%s is not described", name, field)
			}
		}
	}
	// Answers have all fields that a message always has, requests those that rules require.
	for m, answers := range map[proto.Message]bool{&feedv1.GetFeedResponse{}: true, &feedv1.Item{}: true, &feedv1.WhyResponse{}: true, &feedv1.GetFeedRequest{}: false, &feedv1.WhyRequest{}: false, &feedv1.Viewer{}: false} {
		desc := m.ProtoReflect().Descriptor()
		var want []any
		for i := range desc.Fields().Len() {
			f := desc.Fields().Get(i)
			if answers && !f.HasPresence() || rules[string(desc.Name()+"."+f.Name())].required {
				want = append(want, string(f.Name()))
			}
		}
		if got, _ := all[string(desc.Name())].(object)["required"].([]any); !slices.Equal(got, want) || answers && len(want) == 0 {
			t.Errorf("of %s are required %v, want %v", desc.Name(), got, want)
		}
	}
	for path := range rules {
		message, field, _ := strings.Cut(path, ".")
		m, _ := all[message].(object)
		if m == nil || m["properties"].(object)[field] == nil {
			t.Errorf("there is a rule for %s, which is nowhere", path)
		}
	}
	for path, p := range doc["paths"].(object) {
		if p.(object)["post"].(object)["summary"] == "" {
			t.Errorf("%s has no summary", path)
		}
	}
}

// The comments are those of the .proto that the Go was generated from.
func TestOpenAPIIsOfTheProto(t *testing.T) {
	got := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(protoFile, got); err != nil {
		t.Fatal(err)
	}
	comments := got.File[0].GetSourceCodeInfo()
	got.File[0].SourceCodeInfo = nil
	if want := protodesc.ToFileDescriptorProto(feedv1.File_millrace_feed_v1_feed_proto); !proto.Equal(got.File[0], want) {
		t.Error("feed.binpb is of another feed.proto than the Go; make proto writes both")
	}
	text, err := os.ReadFile("../../api/millrace/feed/v1/feed.proto")
	if err != nil {
		t.Fatal(err)
	}
	var written, kept []string
	for line := range strings.Lines(string(text)) {
		if line, ok := strings.CutPrefix(strings.TrimSpace(line), "//"); ok {
			written = append(written, strings.TrimSpace(line))
		}
	}
	for _, l := range comments.GetLocation() {
		for line := range strings.Lines(l.GetLeadingComments()) {
			kept = append(kept, strings.TrimSpace(line))
		}
	}
	slices.Sort(written)
	slices.Sort(kept)
	if !slices.Equal(written, kept) {
		t.Error("feed.binpb has other comments than feed.proto; make proto writes them")
	}
}
