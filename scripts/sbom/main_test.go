package main

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// The bill of this test's own binary names the standard library and what it
// was linked with, and says the same twice.
func TestBill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var once, twice bytes.Buffer
	for _, w := range []*bytes.Buffer{&once, &twice} {
		if err := run(w, []string{"v1.2.3", self}); err != nil {
			t.Fatal(err)
		}
	}
	if once.String() != twice.String() {
		t.Error("one binary has two bills")
	}
	var b bom
	if err := json.Unmarshal(once.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	if b.Metadata.Component.Ref != "pkg:golang/github.com/millrace/millrace@v1.2.3" || len(b.Metadata.Component.Hashes) != 1 {
		t.Errorf("of %+v", b.Metadata.Component)
	}
	if std := b.Components[0]; std.Purl != "pkg:golang/std@"+strings.TrimPrefix(runtime.Version(), "go") {
		t.Errorf("the standard library is %+v", std)
	}
	if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(b.Serial) {
		t.Errorf("the serial number is %s", b.Serial)
	}
	if of := b.Dependencies[0]; of.Ref != b.Metadata.Component.Ref || len(of.DependsOn) != len(b.Components) {
		t.Errorf("it depends on %v", of)
	}
}

func TestWhatIsNoBinaryHasNoBill(t *testing.T) {
	for _, args := range [][]string{nil, {"v1.2.3"}, {"v1.2.3", "main.go"}} {
		if err := run(new(bytes.Buffer), args); err == nil {
			t.Errorf("%v has a bill", args)
		}
	}
}
