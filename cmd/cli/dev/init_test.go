package dev

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/version"
)

// The Go of a module is that of this one.
func TestInitNamesTheGoOfThisModule(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)^go (.+)$`).FindSubmatch(text); m == nil || string(m[1]) != goVersion {
		t.Errorf("go.mod says %s, and init %s", m, goVersion)
	}
}

// What a module's generated code is of may come, change and go.
func TestGenerateOfAModule(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ranking")
	if err := (scaffold{Module: "git.example.org/shop/ranking", Replace: filepath.Join("..", "..", "..")}).write(io.Discard, dir); err != nil {
		t.Fatal(err)
	}
	m := func() *module {
		t.Helper()
		m, err := openModule(dir)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	generate := func() string {
		t.Helper()
		var out bytes.Buffer
		if err := m().generate(&out, false); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	stale := func(want string) {
		t.Helper()
		if err := m().generate(&bytes.Buffer{}, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it is not %q: %v", want, err)
		}
	}
	change := func(name, from, to string) {
		t.Helper()
		file := filepath.Join(dir, name)
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte(from)) {
			t.Fatalf("%s without %q: %v", name, from, err)
		}
		if err := os.WriteFile(file, bytes.Replace(text, []byte(from), []byte(to), 1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}

	if err := m().generate(&bytes.Buffer{}, true); err != nil {
		t.Errorf("of a new module: %v", err)
	}
	for _, file := range []string{"gen/doc.go", "gen/helpful.go", "gen/review_decoder.go", "gen/reviews_feed.go", "models/helpful/manifest.json"} {
		if out := generate(); !strings.Contains(out, filepath.Join(dir, file)+"\n") {
			t.Errorf("it does not say that it wrote %s:\n%s", file, out)
		}
	}

	change("models/helpful/spec.yaml", "record.stars - 3", "record.stars - 2")
	stale("helpful.go is stale")
	change("models/helpful/spec.yaml", "record.stars - 2", "record.stars - 3")
	change("models/helpful/spec.yaml", "fresh: 3", "fresh: 4") // which is in no code
	stale("helpful is not as it was sealed")
	change("models/helpful/spec.yaml", "fresh: 4", "fresh: 3")

	// A schema that comes into use after another of its name has the decoder.
	first, err := os.ReadFile(filepath.Join(dir, "gen/review_decoder.go"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "schemas/review.avsc"))
	if err != nil {
		t.Fatal(err)
	}
	later := bytes.Replace(text, []byte(`    {"name": "text"`), []byte(`    {"name": "photos", "type": "int", "default": 0},`+"\n"+`    {"name": "text"`), 1)
	if err := os.WriteFile(filepath.Join(dir, "schemas/review_2.avsc"), later, 0o644); err != nil {
		t.Fatal(err)
	}
	generate()
	if second, err := os.ReadFile(filepath.Join(dir, "gen/review_decoder.go")); err != nil || bytes.Equal(first, second) || !bytes.Contains(second, []byte("// photos")) {
		t.Errorf("the decoder is not of the later schema, %v:\n%s", err, second)
	}

	// A feed without a filter has no code, and takes that away which it had.
	change("feeds/reviews.yaml", "filter: ", "# filter: ")
	stale("reviews_feed.go is generated from nothing that is there any more")
	if out := generate(); !strings.Contains(out, "reviews_feed.go is removed") || clitest.Exists(filepath.Join(dir, "gen/reviews_feed.go")) {
		t.Errorf("it was not removed:\n%s", out)
	}

	// Files of people stay.
	if err := os.WriteFile(filepath.Join(dir, "gen/mine.go"), []byte("package gen\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	generate()
	if !clitest.Exists(filepath.Join(dir, "gen/mine.go")) {
		t.Error("it removed a file that it had not written")
	}

	change("models/helpful/spec.yaml", "name: helpful", "name: doc")
	if err := m().generate(&bytes.Buffer{}, false); err == nil || !strings.Contains(err.Error(), "two of the schemas, models and feeds") {
		t.Errorf("two sources of one file: %v", err)
	}
	move("schemas", "gone")
	move("models", "gone-too")
	move("feeds", "gone-as-well")
	if _, err := openModule(dir); err == nil || !strings.Contains(err.Error(), "millrace init DIR") {
		t.Errorf("a directory with nothing: %v", err)
	}
}

// The binary of a release makes a module that requires the release.
func TestInitRequiresTheRelease(t *testing.T) {
	defer func(was string) { version.Release = was }(version.Release)
	version.Release = "v1.2.3"
	dir := filepath.Join(t.TempDir(), "ranking")
	if err := (scaffold{}).write(&bytes.Buffer{}, dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if want := "module example.org/ranking\n\ngo " + goVersion + "\n\nrequire github.com/millrace/millrace v1.2.3\n\ntool "; err != nil || !strings.HasPrefix(string(text), want) {
		t.Errorf("%v: go.mod is\n%s", err, text)
	}
	if clitest.Exists(filepath.Join(dir, "go.sum")) {
		t.Error("it has the checksums of nothing that it replaces")
	}
}
