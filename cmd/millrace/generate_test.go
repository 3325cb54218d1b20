package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What people wrote is not overwritten by a model that has its name; what was
// generated is.
func TestGenerateSparesOtherFiles(t *testing.T) {
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
	run(t, "generate", "--check", "--out", "../../schemas/decoders", "--package", "decoders", "--decoder", "../../schemas/activity.avsc")
	if out, err := output("generate"); err == nil || !strings.Contains(out+err.Error(), "--decoder") {
		t.Errorf("%v: %s", err, out)
	}
}
