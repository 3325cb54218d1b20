package broker

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Every reference of the document leads somewhere, and an answer has no field
// that the document lacks.
func TestOpenAPI(t *testing.T) {
	s := served(t)
	resp, err := http.Get(s.URL + "/v1/openapi.json")
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
	schemas := doc["components"].(object)["schemas"].(object)
	resolve := func(schema object) object {
		if to, ok := schema["$ref"].(string); ok {
			found, ok := schemas[strings.TrimPrefix(to, "#/components/schemas/")].(object)
			if !ok {
				t.Fatalf("%s leads nowhere", to)
			}
			return found
		}
		return schema
	}
	var conforms func(path string, schema object, value any)
	conforms = func(path string, schema object, value any) {
		schema = resolve(schema)
		switch v := value.(type) {
		case object:
			properties, named := schema["properties"].(object)
			for name, x := range v {
				switch p, ok := properties[name].(object); {
				case ok:
					conforms(path+"."+name, p, x)
				case named:
					t.Errorf("%s.%s is not in the document", path, name)
				}
			}
		case []any:
			items, ok := schema["items"].(object)
			for _, x := range v {
				if !ok {
					t.Fatalf("%s is no array in the document", path)
				}
				conforms(path+"[]", items, x)
			}
		}
	}
	for path, ask := range map[string]struct{ body, schema string }{
		"/v1/feed": {`{"feed":"recent","entities":["member:1","member:2"],"explain":true}`, "GetFeedResponse"},
		"/v1/why":  {`{"record":"r001","request":{"feed":"recent","entities":["member:1","member:2"]}}`, "WhyResponse"},
	} {
		_, _, body := post(t, s.URL+path, curl, ask.body)
		var answer object
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		conforms(ask.schema, schemas[ask.schema].(object), answer)
		if doc["paths"].(object)[path] == nil {
			t.Errorf("%s is not in the document", path)
		}
	}
	for _, schema := range schemas {
		for _, p := range schema.(object)["properties"].(object) {
			resolve(p.(object))
		}
	}
	request := resolve(doc["paths"].(object)["/v1/feed"].(object)["post"].(object)["requestBody"].(object)["content"].(object)["application/json"].(object)["schema"].(object))
	for _, field := range []string{"feed", "viewer", "entities", "as_of", "limit", "min_coverage"} {
		if request["properties"].(object)[field] == nil {
			t.Errorf("the request lacks %s", field)
		}
	}
}
