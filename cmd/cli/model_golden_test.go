package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Rows are completed with what they lack, and are written once all are complete, also
// to the file that they stand in.
func TestModelGolden(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rows := filepath.Join(dir, "golden.ndjson")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "spec.yaml"), replaySpec)
	const record = `"record":{"likes":3,"verb":"post"}`
	const trained = `{"features":{"likes":2,"verb":"like"},"score":2}
{"features":{"likes":3},"score":7,` + record + `}
`
	const given = trained + `{"features":{"likes":3},` + record + `}
{"score":8,` + record + `}
{` + record + `}
`
	const want = trained + `{"features":{"likes":3},"score":103,` + record + `}
{"features":{"likes":3,"verb":"post"},"score":8,` + record + `}
{"features":{"likes":3,"verb":"post"},"score":103,` + record + `}
`
	write(rows, given)
	if out, err := execute(t.Context(), "model", "golden", dir, rows); err != nil || out != want {
		t.Errorf("%v\n%s\nnot\n%s", err, out, want)
	}
	in := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(rows); err != nil || string(text) != want {
			t.Errorf("%v\n%s\nnot\n%s", err, text, want)
		}
	}
	in(given)
	if out, err := execute(t.Context(), "model", "golden", dir, rows, "--out", rows); err != nil || out != "5 rows are in "+rows+", to be checked\n" {
		t.Errorf("%v\n%s", err, out)
	}
	in(want)
	const bad = given + `{"score":1}` + "\n"
	write(rows, bad)
	for _, to := range []string{"-", rows} {
		if out, err := execute(t.Context(), "model", "golden", dir, rows, "--out", to); err == nil || !strings.Contains(err.Error(), "golden.ndjson:6: the row has no record") || strings.Contains(out, "103") {
			t.Errorf("to %s: %v\n%s", to, err, out)
		}
	}
	in(bad)
}
