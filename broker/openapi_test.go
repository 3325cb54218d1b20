package broker

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/broker/limits"
)

// spec is an OpenAPI document that values are held against.
// jsonObject is a JSON object.
type jsonObject = map[string]any

type spec struct {
	*testing.T
	schemas jsonObject
}

func fetchSpec(t *testing.T, url string) (spec, jsonObject) {
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
	var doc jsonObject
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return spec{t, doc["components"].(jsonObject)["schemas"].(jsonObject)}, doc
}

func (s spec) resolve(schema jsonObject) jsonObject {
	to, ok := schema["$ref"].(string)
	if !ok {
		return schema
	}
	found, ok := s.schemas[strings.TrimPrefix(to, "#/components/schemas/")].(jsonObject)
	if !ok {
		s.Fatalf("%s leads nowhere", to)
	}
	return found
}

// faults are what is wrong with a value; none, if it is as the schema says.
func (s spec) faults(path string, schema jsonObject, value any) (all []string) {
	schema = s.resolve(schema)
	if options, ok := schema["anyOf"].([]any); ok {
		for _, o := range options {
			if len(s.faults(path, o.(jsonObject), value)) == 0 {
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
	case jsonObject:
		fault(kind != "object" && kind != "", " is an object")
		properties, _ := schema["properties"].(jsonObject)
		for name, x := range v {
			p, ok := properties[name].(jsonObject)
			if !ok {
				p, ok = schema["additionalProperties"].(jsonObject)
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
		items, _ := schema["items"].(jsonObject)
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
			var value jsonObject
			if err := json.Unmarshal([]byte(text), &value); err != nil {
				t.Fatal(err)
			}
			for _, fault := range s.faults(schema, s.schemas[schema].(jsonObject), value) {
				t.Errorf("%s: %s", text, fault)
			}
		}
		if doc["paths"].(jsonObject)[ask.path] == nil {
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
		var value jsonObject
		if err := json.Unmarshal([]byte(body), &value); err != nil {
			t.Fatal(err)
		}
		if len(s.faults("", s.schemas["GetFeedRequest"].(jsonObject), value)) == 0 {
			t.Errorf("the document allows %.80s", body)
		}
	}
}
