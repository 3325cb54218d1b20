package broker

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/limits"
)

// spec is an OpenAPI document that values are held against.
type spec struct {
	*testing.T
	schemas object
}

func fetchSpec(t *testing.T, url string) (spec, object) {
	t.Helper()
	resp, err := http.Get(url + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var doc object
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return spec{t, doc["components"].(object)["schemas"].(object)}, doc
}

func (s spec) resolve(schema object) object {
	to, ok := schema["$ref"].(string)
	if !ok {
		return schema
	}
	found, ok := s.schemas[strings.TrimPrefix(to, "#/components/schemas/")].(object)
	if !ok {
		s.Fatalf("%s leads nowhere", to)
	}
	return found
}

// faults are what is wrong with a value; none, if it is as the schema says.
func (s spec) faults(path string, schema object, value any) (all []string) {
	schema = s.resolve(schema)
	if options, ok := schema["anyOf"].([]any); ok {
		for _, o := range options {
			if len(s.faults(path, o.(object), value)) == 0 {
				return nil
			}
		}
		return []string{path + " is none of its kinds"}
	}
	fault := func(bad bool, what string) {
		if bad {
			all = append(all, path+what)
		}
	}
	kind, _ := schema["type"].(string)
	if set, ok := schema["enum"].([]any); ok {
		fault(!slices.Contains(set, value), " is none of its values")
	}
	within := func(n float64, least, most string) {
		low, ok := schema[least].(float64)
		fault(ok && n < low, " is below "+least)
		high, ok := schema[most].(float64)
		fault(ok && n > high, " is above "+most)
	}
	switch v := value.(type) {
	case object:
		fault(kind != "object" && kind != "", " is an object")
		properties, _ := schema["properties"].(object)
		for name, x := range v {
			p, ok := properties[name].(object)
			if !ok {
				p, ok = schema["additionalProperties"].(object)
			}
			fault(!ok && schema["additionalProperties"] != true, "."+name+" is not in the document")
			if ok {
				all = append(all, s.faults(path+"."+name, p, x)...)
			}
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			_, ok := v[name.(string)]
			fault(!ok, " lacks "+name.(string))
		}
	case []any:
		fault(kind != "array" && kind != "", " is a list")
		within(float64(len(v)), "minItems", "maxItems")
		items, _ := schema["items"].(object)
		for _, x := range v {
			all = append(all, s.faults(path+"[]", items, x)...)
		}
	case string:
		fault(kind != "string" && kind != "", " is a string")
		within(float64(len([]rune(v))), "minLength", "maxLength")
		pattern, ok := schema["pattern"].(string)
		fault(ok && !regexp.MustCompile(pattern).MatchString(v), " is not as "+pattern)
	case float64:
		fault(kind != "number" && kind != "integer" && kind != "", " is a number")
		within(v, "minimum", "maximum")
	case bool:
		fault(kind != "boolean" && kind != "", " is a boolean")
	}
	return all
}

// Answers are as the document says: nothing that it lacks, and all that it
// requires. So are the requests they answer.
func TestOpenAPI(t *testing.T) {
	w := served(t)
	s, doc := fetchSpec(t, w.URL)
	for _, ask := range []struct{ path, body, request, answer string }{
		{"/v1/feed", `{"feed":"recent","entities":["member:1","member:2"],"explain":true}`, "GetFeedRequest", "GetFeedResponse"},
		{"/v1/feed", `{"feed":"recent","viewer":{"id":"me","attributes":{"a":1,"b":["x"],"c":true},"features":{"f":0.5}},"entities":["member:1","member:2"],"limit":1,"fields":["text"],"min_coverage":0.5,"types":["post"]}`, "GetFeedRequest", "GetFeedResponse"},
		{"/v1/feed", `{"feed":"recent","entities":["nobody"]}`, "GetFeedRequest", "GetFeedResponse"},
		{"/v1/why", `{"record":"r001","request":{"feed":"recent","entities":["member:1","member:2"]}}`, "WhyRequest", "WhyResponse"},
		{"/v1/why", `{"record":"none","request":{"feed":"recent","entities":["member:1","member:2"]}}`, "WhyRequest", "WhyResponse"},
		{"/v1/feed", `{"feed":"recent","entities":[]}`, "", "Problem"},
		{"/v1/feed", `{"feed":"none","entities":["a"]}`, "GetFeedRequest", "Problem"},
	} {
		_, _, body := post(t, w.URL+ask.path, curl, ask.body)
		for text, schema := range map[string]string{ask.body: ask.request, body: ask.answer} {
			if schema == "" {
				continue
			}
			var value object
			if err := json.Unmarshal([]byte(text), &value); err != nil {
				t.Fatal(err)
			}
			for _, fault := range s.faults(schema, s.schemas[schema].(object), value) {
				t.Errorf("%s: %s", text, fault)
			}
		}
		if doc["paths"].(object)[ask.path] == nil {
			t.Errorf("%s is not in the document", ask.path)
		}
	}
}

// What the broker refuses, the document does not allow.
func TestOpenAPIBoundsRequests(t *testing.T) {
	url := served(t).URL
	s, _ := fetchSpec(t, url)
	for _, body := range []string{
		`{}`,
		`{"feed":"recent"}`,
		`{"entities":["a"]}`,
		`{"feed":"recent","entities":[]}`,
		`{"feed":"recent","entities":[""]}`,
		`{"feed":"recent","entities":["a"],"limit":0}`,
		`{"feed":"recent","entities":["a"],"limit":1001}`,
		`{"feed":"recent","entities":["a"],"min_coverage":1.5}`,
		`{"feed":"recent","entities":["a"],"fields":[""]}`,
		`{"feed":"recent","entities":["a"],"types":[""]}`,
		`{"feed":"recent","entities":["a"],"model":"!"}`,
		`{"feed":"recent","entities":["a"],"limt":3}`,
		`{"feed":"recent","entities":["a"],"filter":"` + strings.Repeat(" ", limits.MaxFilterBytes+1) + `"}`,
		`{"feed":"recent","entities":["a"],"viewer":{"attributes":{"a":{}}}}`,
	} {
		if status, _, answer := post(t, url+"/v1/feed", curl, body); status < 400 || status > 499 {
			t.Errorf("%.80s: %d %s", body, status, answer)
		}
		var value object
		if err := json.Unmarshal([]byte(body), &value); err != nil {
			t.Fatal(err)
		}
		if len(s.faults("", s.schemas["GetFeedRequest"].(object), value)) == 0 {
			t.Errorf("the document allows %.80s", body)
		}
	}
}

// Every reference leads somewhere, everything is described, and every rule is
// of a field.
func TestOpenAPIIsWhole(t *testing.T) {
	s, doc := fetchSpec(t, served(t).URL)
	for name, schema := range s.schemas {
		if schema.(object)["description"] == "" {
			t.Errorf("%s is not described", name)
		}
		for field, p := range schema.(object)["properties"].(object) {
			s.resolve(p.(object))
			if text, _ := p.(object)["description"].(string); text == "" {
				t.Errorf("%s.%s is not described", name, field)
			}
		}
	}
	for path := range rules {
		message, field, _ := strings.Cut(path, ".")
		m, _ := s.schemas[message].(object)
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
	text, err := os.ReadFile("../api/millrace/feed/v1/feed.proto")
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
