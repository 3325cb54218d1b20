package relevance

import (
	"testing"

	"github.com/millrace/millrace"
)

// BenchmarkBind is what a question pays before its first record.
func BenchmarkBind(b *testing.B) {
	layout := ShippedSchemas()["millrace.Activity"].Layout
	viewer := &millrace.Viewer{ID: "member:1", Attributes: map[string]any{"languages": []string{"en", "de"}, "types": []string{"post"}}}
	for _, m := range []*Model{builtinModel(b, "home"), builtinModel(b, "home").Interpreted()} {
		s, err := m.Bind(layout, nil, viewer, 0)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s.Execution(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Bind(layout, nil, viewer, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
