package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What people wrote is not overwritten by a model that has its name; what was
// generated is.
func TestGenerateSparesOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec, file := filepath.Join(dir, "spec.yaml"), filepath.Join(dir, "models.go")
	if err := os.WriteFile(spec, []byte("name: models\nversion: \"1\"\nfeatures: {time: record.time}\nscorer: linear\nparameters: {weights: {time: 2}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "generate", "--out", dir, spec)
	run(t, "generate", "--out", dir, spec)
	const ours = "// Package models is ours.\npackage models\n"
	if err := os.WriteFile(file, []byte(ours), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := output("generate", "--out", dir, spec); err == nil || !strings.Contains(out, "models.go is not generated code") {
		t.Errorf("%v: %s", err, out)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != ours {
		t.Errorf("%v: the file is now\n%s", err, text)
	}
}

// The decoder that the command writes of a shipped schema is the one that is
// checked in.
func TestGenerateDecoder(t *testing.T) {
	t.Parallel()
	run(t, "generate", "--check", "--out", "../../schemas/decoders", "--package", "decoders", "--decoder", "../../schemas/activity.avsc")
	if out, err := output("generate"); err == nil || !strings.Contains(out+err.Error(), "--decoder") {
		t.Errorf("%v: %s", err, out)
	}
}

// What a feed's filter has of comparisons with constants becomes code; the
// faults of one that has none, or is wrong, say what to do.
func TestGenerateFeed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) string {
		file := filepath.Join(dir, "jobs.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const def = "name: jobs\nmodel: recency\nfilter: record.likes >= 3 && record.language == viewer.language\n"
	if out := run(t, "generate", "--out", dir, "--feed", write(def)); !strings.HasSuffix(out, "jobs_feed.go\n") {
		t.Errorf("wrote %s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "jobs_feed.go"))
	if err != nil || !strings.Contains(string(text), "// record.likes >= 3\n") || strings.Contains(string(text), "language") {
		t.Errorf("%v:\n%s", err, text)
	}
	run(t, "generate", "--out", dir, "--check", "--feed", write(def))
	for wrong, want := range map[string]string{
		strings.Replace(def, "likes", "liks", 1):             "did you mean likes?",
		strings.Replace(def, "record.likes >= 3 && ", "", 1): "nothing to write",
		strings.Replace(def, "model: recency\n", "", 1):      "model",
	} {
		if out, err := output("generate", "--out", dir, "--feed", write(wrong)); err == nil || !strings.Contains(out+err.Error(), want) {
			t.Errorf("%s: %v: %s", wrong, err, out)
		}
	}
}

// A feed's model and its shadows become one function; one that is neither built
// in nor named is asked for.
func TestGenerateShadows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec, feed := filepath.Join(dir, "fresh.yaml"), filepath.Join(dir, "feed.yaml")
	for name, text := range map[string]string{
		spec: "name: fresh\nversion: \"1\"\nfeatures: {age: age(record.time)}\nscorer: linear\nparameters: {weights: {age: -1}}\n",
		feed: "name: jobs\nmodel: recency\nshadow: [fresh]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "generate", "--out", dir, "--feed", feed, spec)
	text, err := os.ReadFile(filepath.Join(dir, "jobs_feed.go"))
	if err != nil || !strings.Contains(string(text), "by recency and fresh.\n") || !strings.Contains(string(text), "// age of fresh: age(record.time)\n") {
		t.Errorf("%v:\n%s", err, text)
	}
	if out, err := output("generate", "--out", dir, "--feed", feed); err == nil || !strings.Contains(out+err.Error(), "or name its spec") {
		t.Errorf("%v: %s", err, out)
	}
}
