package dev

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// A directory of files, by path, with so little in each.
func filesIn(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Schemas come in the order of their files' names without what follows the dot, so that a
// later one may be named by a number behind the first one's name.
func TestOrderOfSchemas(t *testing.T) {
	m, err := openModule(filesIn(t, "schemas/track-2.avsc", "schemas/track.avsc", "schemas/track2.avsc", "schemas/album.avsc"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range m.schemas {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".avsc"))
	}
	if got := strings.Join(names, " "); got != "album track track-2 track2" {
		t.Errorf("they come as %s", got)
	}
}

// What would not be read is refused, and so is Millrace's own repository.
func TestModulesThatAreNone(t *testing.T) {
	for want, dir := range map[string]string{
		"spec.yml would not be read":        filesIn(t, "schemas/a.avsc", "models/m/spec.yml"),
		"next.yml would not be read":        filesIn(t, "schemas/a.avsc", "feeds/next.yml"),
		"the repository of Millrace itself": filesIn(t, "schemas/a.avsc", "go.mod=module github.com/millrace/millrace\n"),
		"has no schemas":                    filesIn(t, "other/a.avsc"),
	} {
		_, err := openModule(dir)
		if e := (*millrace.Error)(nil); !errors.As(err, &e) || e.Field != "module" || !strings.Contains(e.Detail, want) || e.WayOut == "" {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Of several models, each a spec.yaml, a fault names the one that has it.
func TestFaultsNameTheirModel(t *testing.T) {
	const good = "name: NAME\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: record.FIELD}\nscorer: linear\nparameters: {weights: {a: 1}}\n"
	dir := filesIn(t, "models/calm/spec.yaml="+strings.NewReplacer("NAME", "calm", "FIELD", "loudnes").Replace(good), "models/able/spec.yaml="+strings.NewReplacer("NAME", "able", "FIELD", "likes").Replace(good))
	m, err := openModule(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.files(); err == nil || !strings.Contains(err.Error(), filepath.Join("models", "calm")+": spec.yaml:") {
		t.Errorf("%v", err)
	}
}
