package filter

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// TestDocs compiles every filter of docs/filters.md, and holds the faults it
// shows to what is reported.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	env := expr.Env{
		Record: []*column.Layout{schemas.Activity().Layout()},
		Entity: []*column.Layout{mustLayout(t, []column.Field{{Name: "followers", Kind: column.Int}})},
	}
	filters := 0
	for _, block := range regexp.MustCompile("(?s)```cel\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for src := range strings.Lines(block[1]) {
			filters++
			if _, err := Compile(strings.TrimSpace(src), env); err != nil {
				t.Errorf("%s%v", src, err)
			}
		}
	}
	if filters < 10 {
		t.Errorf("found %d filters", filters)
	}
	_, err = Compile(`record.langauge == "en" && record.likes > "5"`, env)
	var faults *expr.Error
	if !errors.As(err, &faults) || !strings.Contains(string(page), "```\n"+faults.Error()+"\n```") {
		t.Errorf("the page does not show\n%v", err)
	}
}

// TestDocsOfNull runs the records of docs/filters.md through its filters.
func TestDocsOfNull(t *testing.T) {
	text, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "## Null, default and has()")
	block := func(what string) []string {
		_, rest, _ := strings.Cut(page, "```"+what+"\n")
		body, _, _ := strings.Cut(rest, "```")
		return strings.Split(strings.TrimSpace(body), "\n")
	}
	fields := map[string][]string{}
	for _, line := range block("fields") {
		n, field, _ := strings.Cut(line, " ")
		fields[n] = append(fields[n], field)
	}
	registry, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]*schemas.Schema{}
	for _, n := range slices.Sorted(maps.Keys(fields)) {
		written[n], err = schemas.Parse([]byte(`{"type":"record","name":"Review","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},` +
			`{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},` + strings.Join(fields[n], ",") + `]}`))
		if err == nil {
			_, err = registry.Admit(written[n])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	known, names := registry.Snapshot(), []string{}
	rows := column.New(known.Family("Review").Layout(), 3, 0).Append()
	for _, line := range block("records") {
		part := strings.SplitN(line, " ", 3)
		s := written[part[1]]
		body, err := s.EncodeJSON([]byte(`{"id":"r","who":"a","kind":"k","at":1,` + part[2][1:]))
		if err == nil {
			err = known.Decoder(s.Fingerprint()).Append(rows, body)
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, part[0])
	}
	filters := 0
	for _, m := range regexp.MustCompile("(?m)^\\| `(.*)` \\| ([A-Z ]*) \\|").FindAllStringSubmatch(page, -1) {
		f, err := Compile(strings.ReplaceAll(m[1], `\|`, "|"), EnvOf(known))
		if err != nil {
			t.Fatal(err)
		}
		b, err := f.Bind(known.Family("Review").Layout(), nil, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for _, row := range b.Select(rows.Slab(), 0, len(names), nil, nil) {
			kept = append(kept, names[row])
		}
		if got := strings.Join(kept, " "); got != m[2] {
			t.Errorf("%s keeps %s, and the page says %s", m[1], got, m[2])
		}
		filters++
	}
	if filters < 12 || len(names) != 3 {
		t.Errorf("found %d filters and %d records", filters, len(names))
	}
}
