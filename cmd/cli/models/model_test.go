package models

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/display"
)

// TestSealOverTheSchemasOfAName: a model that reads fields which only one of two
// schemas of a name has is sealed, by golden rows of both.
func TestSealOverTheSchemasOfAName(t *testing.T) {
	const roles = `{"type":"record","name":"team.Talk","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},`
	dir, files := t.TempDir(), t.TempDir()
	v1, v2 := filepath.Join(files, "v1.avsc"), filepath.Join(files, "v2.avsc")
	for path, text := range map[string]string{
		v1:                                  roles + `{"name":"claps","type":"long","default":0},{"name":"stars","type":"int","default":0}]}`,
		v2:                                  roles + `{"name":"hearts","type":"long","default":0},{"name":"rating","type":"int","default":0,"aliases":["stars"]}]}`,
		filepath.Join(dir, "spec.yaml"):     "name: talks\nversion: \"1\"\nschemas: [team.Talk]\nfeatures: {claps: record.claps, hearts: record.hearts, stars: record.stars}\nscorer: linear\nparameters: {weights: {claps: 1, hearts: 10, stars: 100}}\n",
		filepath.Join(dir, "card.md"):       "Talks.\n",
		filepath.Join(dir, "golden.ndjson"): `{"features":{"claps":2,"hearts":0,"stars":3},"score":302,"record":{"claps":2,"stars":3}}` + "\n" + `{"features":{"claps":0,"hearts":4,"stars":5},"score":540,"record":{"hearts":4,"rating":5}}` + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := Seal(&out, dir, []string{v1, v2}); err != nil || !strings.Contains(out.String(), "talks 1 is sealed") {
		t.Fatalf("%v: %s", err, out.String())
	}
	out.Reset()
	if err := validateModel(&out, new(display.Form), dir, []string{v1, v2}); err != nil || !strings.Contains(out.String(), "fit to serve") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// A directory goes before a model of that name where it is a model's, and what is wrong
// with it is said to be of it; any other directory stands in nobody's way.
func TestADirectoryOfAModelsName(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("recency", 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := showModel(&out, new(display.Form), "recency", nil); err != nil || !strings.HasPrefix(out.String(), "recency ") {
		t.Errorf("%v: %s", err, out.String())
	}
	spec := "name: recency\nversion: \"1\"\nschemas: [shop.Unknown]\nfeatures: {likes: record.likes}\nscorer: linear\nparameters: {weights: {likes: 1}}\n"
	if err := os.WriteFile(filepath.Join("recency", "spec.yaml"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := showModel(&out, new(display.Form), "recency", nil); err == nil || !strings.HasSuffix(err.Error(), "that is of the directory recency here, which goes before a model of that name") {
		t.Errorf("%v", err)
	}
}

// A benchmark scores the records that the model is for, made up or of golden rows, and
// says which.
func TestBenchSaysWhatItScores(t *testing.T) {
	const own = `{"type":"record","name":"team.Item","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"emb","type":{"type":"array","items":"double"},"default":[]}]}`
	dir := t.TempDir()
	avsc, golden := filepath.Join(dir, "item.avsc"), filepath.Join(dir, "golden.ndjson")
	for path, text := range map[string]string{
		avsc:                            own,
		filepath.Join(dir, "spec.yaml"): "name: near\nversion: \"1\"\nschemas: [team.Item]\nviewer: {emb: list(double)}\nfeatures: {near: \"dot(record.emb, viewer.emb)\"}\nscorer: linear\nparameters: {weights: {near: 1}}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := flag.Set("test.benchtime", "2x"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := benchModel(&out, dir, []string{avsc}); err != nil || !strings.Contains(out.String(), "made-up records") || !strings.Contains(out.String(), "interpreted") {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := os.WriteFile(golden, []byte(`{"record":{"emb":[1,2]},"viewer":{"emb":[3,4]}}`+"\n"+`{"record":{"emb":[5]},"viewer":{"emb":[6]}}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := benchModel(&out, dir, []string{avsc}); err != nil || !strings.Contains(out.String(), "1024 at a time, records of 2 golden rows") {
		t.Errorf("%v: %s", err, out.String())
	}
}
