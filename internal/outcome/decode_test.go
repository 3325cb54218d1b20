package outcome

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// After a renaming both names read the field of the answer, in outcomes of before and
// after.
func TestARenamedFieldOfAnswersIsRead(t *testing.T) {
	const renamed = `"name": "given", "aliases": ["answer"]`
	text := strings.NewReplacer("NAME", "Act", "TYPE", `"string"`).Replace(actedBy)
	registry, err := registry.New(nil, nil)
	must(t, err)
	var lines [][]byte
	for _, of := range []struct{ schema, field string }{{text, "answer"}, {strings.Replace(text, `"name": "answer"`, renamed, 1), "given"}} {
		s, err := schemas.Parse([]byte(of.schema))
		must(t, err)
		_, err = registry.Admit(s)
		must(t, err)
		body, err := s.EncodeJSON([]byte(`{"event": "e", "who": "ann", "on": "x", "what": "click", "when": 1000, "` + of.field + `": "a-1"}`))
		must(t, err)
		lines = append(lines, schemas.Frame(s.Fingerprint(), body))
	}
	known := registry.Snapshot()
	seen := Seen{}
	for i, value := range lines {
		seen.Add(known, value)
		for field, want := range map[string]string{"answer": "a-1", "given": "a-1", "nothing": ""} {
			if o, err := Decode(known, value, field); err != nil || o.Answer != want {
				t.Errorf("schema %d, by %s: %q, %v", i, field, o.Answer, err)
			}
		}
		if _, err := Decode(known, value, "when"); err == nil || !strings.Contains(err.Error(), "when is no string") {
			t.Errorf("schema %d: %v", i, err)
		}
	}
	before, err := schemas.Unframe(lines[0])
	must(t, err)
	delete(seen, before.Fingerprint)
	for field, there := range map[string]bool{"answer": true, "given": true, "nothing": false} {
		if err := seen.Lacks("acts", nil, field); (err == nil) != there {
			t.Errorf("%s: %v", field, err)
		}
	}
}
