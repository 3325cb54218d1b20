package document

import (
	"encoding/json"
	"testing"
)

// A document is in JSON what it means in YAML.
func TestValue(t *testing.T) {
	n, err := Parse([]byte("name: news # a comment\nlimit: 20\nmask: 0x1f\nshare: 0.5\nmost: .inf\non: true\nno: \"true\"\nwindow: 168h\nnone:\ntypes: [post, 1]\nset: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(n.Value())
	const want = `{"limit":20,"mask":31,"most":".inf","name":"news","no":"true","none":null,"on":true,"set":{},"share":0.5,"types":["post",1],"window":"168h"}`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
	if v := (*Node)(nil).Value(); v != nil {
		t.Errorf("a document that is empty: %v", v)
	}
}
