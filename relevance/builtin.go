package relevance

import (
	"embed"
	"sync"

	_ "github.com/millrace/millrace/relevance/models" // the generated code
	"github.com/millrace/millrace/schemas"
)

//go:embed builtin/*.yaml
var builtin embed.FS

// ShippedSchemas are the schemas of every binary, for [Parse].
func ShippedSchemas() Schemas {
	s := Schemas{}
	for _, x := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		s[x.Name()] = x.Layout()
	}
	return s
}

// SchemasOf returns the schemas that ship and those of a registry: what specs may
// name where these are known.
func SchemasOf(known *schemas.Snapshot) Schemas {
	all := ShippedSchemas()
	for _, f := range known.Families() {
		all[f.Name()] = f.Layout()
	}
	for _, s := range known.All() {
		all[Edition(s.Name(), s.Fingerprint().String())] = s.Layout()
	}
	return all
}

// BuiltinSpec returns the source of a model that every binary has.
func BuiltinSpec(name string) ([]byte, error) { return builtin.ReadFile("builtin/" + name + ".yaml") }

var builtinModels = sync.OnceValue(func() map[string]*Model {
	models := map[string]*Model{}
	for _, name := range []string{"home", "recency"} {
		src, err := BuiltinSpec(name)
		if err != nil {
			panic(err)
		}
		m, err := Parse(name+".yaml", src, ShippedSchemas())
		if err != nil {
			panic(err)
		}
		models[name] = m
	}
	return models
})
